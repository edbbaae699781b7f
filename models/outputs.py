"""What taggers give: stage one, stage two, attention, and the prediction that leaves the room as plain text."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from concord.models.labels import Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """What stage one says of a batch of sentences (Ye et al., section III-B).

    Attributes:
        probabilities: mean of the softmax over the M weight samples, shape ``(B, T, L)``, float.
        labels: argmax of the mean probabilities, shape ``(B, T)``, int64.
        uncertainty: entropy of the mean probabilities in nats, shape ``(B, T)``, float, 0..ln L.
        hidden: mean of the M hidden states, shape ``(B, T, H)``, float.
        samples: the softmax of each weight sample, shape ``(M, B, T, L)``, float; under ``TOKENS``, where no span asks
            for them, there are 0.
    """

    probabilities: Tensor
    labels: Tensor
    uncertainty: Tensor
    hidden: Tensor
    samples: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Refined:
    """What stage two says.

    Attributes:
        probabilities: softmax of stage two, shape ``(B, T, L)``, float.
        labels: the refined label where the draft was uncertain, else the draft, shape ``(B, T)``, int64.
        refined: true where the label is stage two's, shape ``(B, T)``, bool.
    """

    probabilities: Tensor
    labels: Tensor
    refined: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionWeights:
    """Where the words of a batch look.

    Attributes:
        weights: shape ``(B, heads, T, K)``, float, 0..1; a row sums to 1, or to 0 where a word has nothing to look at.
        over: what the K columns are: the T words of the sentence, the L labels, or the words of all sentences of the
            batch in reading order.
    """

    weights: Tensor
    over: Literal["words", "labels", "document"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionMap:
    """Where the words of one sentence look; what a figure draws.

    Attributes:
        weights: shape ``(heads, T, K)``, float32, 0..1, on the CPU; a row sums to 1, or to 0 where a word has nothing
            to look at.
        columns: the name of each column: a word of the sentence, a label, or a word of the document.
    """

    weights: Tensor
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The labels of one sentence, one entry a word.

    Attributes:
        labels: final labels in BIO2, always well formed; plain labels where the tagger's scheme is ``TOKENS``.
        draft_labels: stage one's labels, written likewise; the final ones for a tagger of one stage.
        probabilities: probability that the deciding stage gave to its own label, 0..1.
        margins: probability of the best label less that of the second best, 0..1; for a tagger of two stages
            the smaller of both stages' where both were read, so that a small margin marks every near tie.
        uncertainty: entropy of stage one in nats; for a tagger of one stage that of its marginals.
        refined: true where stage two gave the label.
        spans: the entities, half-open word indices; none under ``TOKENS``.
        confidences: one a span, 0..1: the probability that just these words are an entity of this type.
    """

    labels: tuple[str, ...]
    draft_labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    margins: tuple[float, ...]
    uncertainty: tuple[float, ...]
    refined: tuple[bool, ...]
    spans: tuple[Span, ...]
    confidences: tuple[float, ...]
