"""Doc-UANet: UANet with a document memory (Ye et al., 2021, section III-C).

As in the released code, the memory is read once, by the word stream before the last two-stream layer, or, with
``label_stream: paper``, by the words' representations, to join the streams before every layer; unlike in the code, a
batch may contain several documents. Only this memory makes labels agree across a document: there is no vote or rule.
"""

from typing import ClassVar

from typing_extensions import override

from concord.models.taggers.base import TaggerConfig
from concord.models.taggers.two_stage import TwoStageTagger
from concord.models.taggers.two_stage_networks import MemoryConfig, TwoStageConfig


class DocUaNetConfig(TwoStageConfig):
    """Sizes of Doc-UANet."""

    memory: MemoryConfig = MemoryConfig()

    @property
    @override
    def document_memory(self) -> MemoryConfig | None:
        return self.memory if self.memory.contexts or self.memory.labels else None


class DocUaNet(TwoStageTagger):
    """UANet whose uncertain words attend to their other occurrences in the document."""

    name: ClassVar[str] = "doc_uanet"
    config_class: ClassVar[type[TaggerConfig]] = DocUaNetConfig
    learns_from_documents: ClassVar[bool] = True
