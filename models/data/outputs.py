"""What a tagger returns: drafts, refined labels, attention and predictions; and the options of a call."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field

from concord.models.config import Affects, Config
from concord.models.labels import Span

Precision: TypeAlias = Literal["fp32", "bf16"]
OnBatch: TypeAlias = Callable[[int, int], None]
"""Called with the words that are done, and the words there are."""


class PredictOptions(Config):
    """The options of one call of ``Tagger.predict_documents``."""

    precision: Precision = "fp32"
    """bf16 computes networks in bfloat16, faster on some devices; an encoder in int8 stays so, and on a CPU a tagger of
    two stages computes its encoder alone in bfloat16. Probabilities, entropies and CRFs stay in fp32. A run then
    reports the share of labels that differ from those of fp32."""
    batch_words: Annotated[int, Affects("bytes")] = Field(default=4096, ge=1)
    """Most words (padding included) in a batch of sentences on a CPU, unless one sentence is longer; on a GPU, sixteen
    times as many. Lower it where memory is short; there is nothing to gain by raising it."""
    samples: int | None = Field(default=None, ge=1)
    """Monte-Carlo weight samples M; the tagger's own number if null."""
    threshold: float | None = None
    """Uncertainty in nats above which stage two decides; the tagger's own threshold if null."""


DEFAULT_OPTIONS = PredictOptions()


if TYPE_CHECKING:
    # Readers of finished collections need a prediction's fields, but not torch, which takes seconds to import.
    from torch import Tensor

Source = Literal["model", "terms", "corrected", "candidate"]
"""Where the label of an entity comes from: the tagger alone, a list of terms that it agrees with, or a person. A
candidate is no entity, but a span that may have been missed."""


def known_numbers(values: Iterable[float | None]) -> list[float]:
    """Return the numbers among values, which are None where a tagger has no scores."""
    return [value for value in values if value is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """The output of stage one for a batch of sentences (Ye et al., 2021, section III-A).

    For a sentence without weight samples of its own, the mean weights stand for each of the M samples.
    """

    probabilities: "Tensor"
    """Mean of the softmax over the M weight samples, shape ``(B, T, L)``, float."""
    labels: "Tensor"
    """Argmax of the mean probabilities, shape ``(B, T)``, int64."""
    uncertainty: "Tensor"
    """Entropy of the mean probabilities in nats, shape ``(B, T)``, float, 0..ln L."""
    hidden: "Tensor"
    """Mean of the M hidden states, shape ``(B, T, H)``, float."""
    samples: "Tensor"
    """The softmax of each weight sample, shape ``(M, B, T, L)``; M is 0 for word labels, which have no spans."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refined:
    """The labels of both stages, merged."""

    probabilities: "Tensor"
    """Softmax of stage two, shape ``(B, T, L)``, float."""
    labels: "Tensor"
    """The refined label where the draft was uncertain, else the draft, shape ``(B, T)``, int64."""
    refined: "Tensor"
    """True where the label is stage two's, shape ``(B, T)``, bool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionWeights:
    """Attention weights of the words of a batch."""

    weights: "Tensor"
    """Shape ``(B, heads, T, K)``, float, 0..1; a row sums to 1, or to 0 for a word with nothing to attend to."""
    over: Literal["words", "labels", "document"]
    """What the K columns stand for: the T words of the sentence, the L labels, or all words of the batch in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionMap:
    """Attention weights of the words of one sentence, as a figure shows them."""

    weights: "Tensor"
    """Shape ``(heads, T, K)``, float32, 0..1, on the CPU; rows sum as in ``AttentionWeights``."""
    columns: tuple[str, ...]
    """The name of each column: a word of the sentence, a label, or a word of the document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The prediction for one sentence; one entry per word unless said otherwise."""

    labels: tuple[str, ...]
    """Final labels in BIO2, always well formed; the words' own labels under the scheme ``TOKENS``."""
    draft_labels: tuple[str, ...]
    """Stage one's labels in the same form; equal to ``labels`` for a one-stage tagger."""
    probabilities: tuple[float | None, ...]
    """Probability of the label by the stage that decided it, 0..1; None for a tagger without scores, as below."""
    margins: tuple[float | None, ...]
    """Probability of the best label less that of the second best, 0..1; where two stages labelled the word, the smaller
    of their margins, so that a small margin marks every near tie."""
    uncertainty: tuple[float | None, ...]
    """Entropy of stage one in nats; of the marginals for a one-stage tagger."""
    refined: tuple[bool, ...]
    """True where the label is stage two's."""
    spans: tuple[Span, ...]
    """The entities, as half-open word indices; none for word labels. Candidates are among them if asked for."""
    confidences: tuple[float | None, ...]
    """One per span, 0..1: the probability that exactly these words are an entity of this type."""
    sources: tuple[Source, ...] = ()
    """One per span; empty where all are the tagger's alone."""

    @property
    def entities(self) -> list[tuple[Span, float | None, Source]]:
        """Each span with its confidence and its source."""
        sources: Sequence[Source] = self.sources or ["model"] * len(self.spans)
        return list(zip(self.spans, self.confidences, sources, strict=True))
