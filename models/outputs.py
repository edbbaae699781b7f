"""What taggers return: drafts of stage one, labels of stage two, attention, and predictions as plain text."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from concord.models.labels import Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """The output of stage one for a batch of sentences (Ye et al., 2021, section III-B).

    Attributes:
        probabilities: mean of the softmax over the M weight samples, shape ``(B, T, L)``, float.
        labels: argmax of the mean probabilities, shape ``(B, T)``, int64.
        uncertainty: entropy of the mean probabilities in nats, shape ``(B, T)``, float, 0..ln L.
        hidden: mean of the M hidden states, shape ``(B, T, H)``, float.
        samples: the softmax of each weight sample, shape ``(M, B, T, L)``, float; M is 0 for word labels, which have
            no spans that need them.
    """

    probabilities: Tensor
    labels: Tensor
    uncertainty: Tensor
    hidden: Tensor
    samples: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Refined:
    """The labels of both stages, merged.

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
    """Attention weights of the words of a batch.

    Attributes:
        weights: shape ``(B, heads, T, K)``, float, 0..1; a row sums to 1, or to 0 for a word with nothing to attend to.
        over: what the K columns stand for: the T words of the sentence, the L labels, or the words of all sentences of
            the batch in reading order.
    """

    weights: Tensor
    over: Literal["words", "labels", "document"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionMap:
    """Attention weights of the words of one sentence, as a figure shows them.

    Attributes:
        weights: shape ``(heads, T, K)``, float32, 0..1, on the CPU; a row sums to 1, or to 0 for a word with
            nothing to attend to.
        columns: the name of each column: a word of the sentence, a label, or a word of the document.
    """

    weights: Tensor
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The prediction for one sentence; one entry per word unless said otherwise.

    Attributes:
        labels: final labels in BIO2, always well formed; the words' own labels under the scheme ``TOKENS``.
        draft_labels: stage one's labels in the same form; equal to ``labels`` for a one-stage tagger.
        probabilities: probability of the label by the stage that decided it, 0..1.
        margins: probability of the best label less that of the second best, 0..1; where two stages labelled the word,
            the smaller of their margins, so that a small margin marks every near tie.
        uncertainty: entropy of stage one in nats; of the marginals for a one-stage tagger.
        refined: true where the label is stage two's.
        spans: the entities, as half-open word indices; none for word labels.
        confidences: one per span, 0..1: the probability that exactly these words are an entity of this type.
    """

    labels: tuple[str, ...]
    draft_labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    margins: tuple[float, ...]
    uncertainty: tuple[float, ...]
    refined: tuple[bool, ...]
    spans: tuple[Span, ...]
    confidences: tuple[float, ...]
