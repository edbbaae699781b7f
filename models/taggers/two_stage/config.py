"""Configuration of the two-stage taggers."""

from typing import Literal

from pydantic import Field

from concord.models.config import Config
from concord.models.decoders.softmax import DecoderName
from concord.models.layers.relative_transformer import TwoStreamConfig
from concord.models.layers.variational_lstm import VariationalLstmConfig
from concord.models.taggers.base import TaggerConfig
from concord.models.words.representation import WordRepresentationConfig

MemoryKey = Literal["lower", "exact"]
Form = Literal["released", "paper"]
"""Where the released code and the text of Ye et al. (2021) differ: the one or the other."""


class MemoryConfig(Config):
    """The document memory."""

    key: MemoryKey = "lower"
    """What makes two words the same: `lower` (lower-cased, digits as 0) or `exact`."""
    slots: int = Field(default=10, ge=0)
    """How many other occurrences a word reads, the first in document order; with 0 no word reads another."""
    contexts: bool = True
    """Whether a word reads stage one's states of these. False is "- document context" of Ye et al. (2021), Table IV."""
    labels: bool = True
    """Whether a word reads the drafts of these. False is "- document label"; with both off there is no memory."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on the reading weights."""
    value_gradient: Form = "paper"
    """Whether training reaches the label embedding through the drafts in memory, as in the `paper`; in the `released`
    code the memory holds them detached, so that only the sentence's own drafts train it. Labels are the same."""


class TwoStageConfig(TaggerConfig):
    """The configuration that UANet and Doc-UANet share."""

    draft_representation: WordRepresentationConfig = WordRepresentationConfig(unit_variance=True)
    lstm: VariationalLstmConfig = VariationalLstmConfig()
    samples: int = Field(default=8, ge=1)
    """Number M of Monte-Carlo weight samples at inference."""
    sample_seed: int = 20210823
    """Seed of the weight samples, which are drawn once per model."""
    samples_above: float | None = Field(default=None, ge=0)
    """Nats; weight samples are drawn only for sentences in which the mean weights leave a word more uncertain than
    this, and the mean weights draft the others. None draws them for every sentence, as does a call that sets their
    number."""
    refine_representation: WordRepresentationConfig = WordRepresentationConfig(unit_variance=True)
    sentence_labels: bool = True
    """Whether stage two reads the sentence's drafts. False is "- label" of Ye et al. (2021), Table IV ("- sentence
    label" where a memory's labels are still read)."""
    label_embedding: Literal["expected", "hard"] = "expected"
    """How a draft is embedded: `expected`, the mean embedding under its probabilities (released code), or `hard`, the
    embedding of its label (paper)."""
    label_dimension: int = Field(default=400, ge=1)
    """Dimensions of a label embedding."""
    two_stream: TwoStreamConfig = TwoStreamConfig()
    label_stream: Form = "released"
    """Where stage two attends to labels: `released`, in the last layer alone, before which the memory is read; `paper`,
    in every layer, which updates them like words (Ye et al., 2021, eq. 9). The words' representations then read the
    memory (eq. 10), and what they read is joined to both streams before every layer (eq. 12 and 13). How the memory is
    addressed and drafts are embedded stays the released code's, except for `label_embedding`; that a word skips its own
    slot is of the code, and nothing that the paper asks for."""
    decoder: DecoderName = "softmax"
    """The decoder of stage two. A CRF decodes the whole sentence, and uncertain words take its labels."""
    threshold: float = 0.35
    """Nats; a word of higher uncertainty takes stage two's label. Training chooses the value on the dev set."""

    @property
    def document_memory(self) -> MemoryConfig | None:
        """The document memory; None for a tagger without one."""
        return None
