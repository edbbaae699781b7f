"""Doc-UANet: UANet with a document memory (Ye et al., 2021, section III-E).

As in the released code the memory is read once, before the last two-stream layer, by the word stream; unlike it a
batch may hold many documents. Labels agree across a document through this memory alone: no vote and no rule follows.
"""

from typing import ClassVar

from concord.models.data.vocabulary import Vocabulary
from concord.models.tagger import TaggerConfig
from concord.models.two_stage.config import MemoryConfig, TwoStageConfig
from concord.models.two_stage.tagger import TwoStageTagger


class DocUaNetConfig(TwoStageConfig):
    """Sizes of Doc-UANet."""

    memory: MemoryConfig = MemoryConfig()


class DocUaNet(TwoStageTagger):
    """UANet whose uncertain words look at their other occurrences in the document."""

    name: ClassVar[str] = "doc_uanet"
    config_class: ClassVar[type[TaggerConfig]] = DocUaNetConfig
    learns_from_documents: ClassVar[bool] = True

    def __init__(self, config: DocUaNetConfig, vocabulary: Vocabulary) -> None:
        """Build both stages and the memory's reader."""
        memory = config.memory if config.memory.contexts or config.memory.labels else None
        super().__init__(config, vocabulary, memory=memory)
