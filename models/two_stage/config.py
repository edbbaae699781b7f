"""Configuration of the two-stage taggers."""

from typing import Literal

from pydantic import Field

from concord.models.config import Config
from concord.models.decoders.softmax import DecoderName
from concord.models.layers.relative_transformer import TwoStreamConfig
from concord.models.layers.variational_lstm import VariationalLstmConfig
from concord.models.tagger import TaggerConfig
from concord.models.words.representation import WordRepresentationConfig

MemoryKey = Literal["lower", "exact"]
LabelStream = Literal["released", "paper"]


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


class FirstPassConfig(Config):
    """The first pass of a tagger whose folder has one (`concord cascade`)."""

    gate: float = Field(default=0.2, ge=0)
    """Nats; a sentence with a word of this entropy or more is read by the encoder and both stages. With 0 all are."""


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
    label_stream: LabelStream = "released"
    """Where stage two attends to labels: `released`, in the last layer alone, before which the memory is read; `paper`,
    in every layer, which updates them like words (Ye et al., 2021, eq. 9). What the memory returns then takes the place
    of both streams (eq. 12 and 13): a word reads its own slot too, and the memory's labels stand for the sentence's,
    which cannot be switched off beside them. How the memory is read and drafts are embedded stays the released code's,
    except for `label_embedding`."""
    decoder: DecoderName = "softmax"
    """The decoder of stage two. A CRF decodes the whole sentence, and uncertain words take its labels."""
    threshold: float = 0.35
    """Nats; a word of higher uncertainty takes stage two's label. Training chooses the value on the dev set."""
    first_pass: FirstPassConfig | None = None
    """None for a tagger without a first pass, as training leaves it."""

    @property
    def document_memory(self) -> MemoryConfig | None:
        """The document memory; None for a tagger without one."""
        return None

    @property
    def reads_own_slot(self) -> bool:
        """Whether a word reads its own slot of a document memory, whose results then take the place of both streams."""
        return self.label_stream == "paper"
