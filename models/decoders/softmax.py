"""The softmax decoder: each word's label independently."""

from torch import Tensor
from typing_extensions import override

from concord.models.data.batch import IGNORED_LABEL
from concord.models.decoders.distribution import LabelDistribution, SpanQuery


class SoftmaxDistribution(LabelDistribution):
    """Independent labels, from logits of shape ``(B, T, L)``, which are normalised in fp32."""

    def __init__(self, logits: Tensor, mask: Tensor) -> None:
        self._log_probabilities = logits.float().log_softmax(dim=-1)
        self._mask = mask

    @override
    def log_prob(self, labels: Tensor) -> Tensor:
        known = labels.masked_fill(labels == IGNORED_LABEL, 0)
        gold = self._log_probabilities.gather(2, known[:, :, None])[:, :, 0]
        return (gold * self._mask).sum(dim=1)

    @override
    def mode(self) -> Tensor:
        return self._log_probabilities.argmax(dim=-1) * self._mask

    @override
    def marginals(self) -> Tensor:
        return self._log_probabilities.exp() * self._mask[:, :, None]

    @override
    def span_probability(self, query: SpanQuery) -> Tensor:
        return joint_probability(self._log_probabilities.exp(), query)


def joint_probability(probabilities: Tensor, query: SpanQuery) -> Tensor:
    """Return the probability of spans whose words are labelled independently; ``(..., B, T, L)`` to ``(..., K)``.

    It is the product over a span's words of the sum over the labels that the word may have.
    """
    joint = probabilities.new_ones(*probabilities.shape[:-3], len(query.starts))
    for step in range(query.allowed.shape[1]):
        allowed = query.allowed[:, step]
        # A word that may have any label changes nothing, but its probabilities may not sum to exactly 1.
        bound = ((query.lengths > step) & ~allowed.all(dim=1)).nonzero()[:, 0]
        words = probabilities[..., query.sentences[bound], query.starts[bound] + step, :]
        joint[..., bound] *= (words * allowed[bound]).sum(dim=-1)
    return joint
