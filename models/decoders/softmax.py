"""The softmax decoder: each word's label on its own."""

from torch import Tensor
from typing_extensions import override

from concord.models.data.batch import IGNORED_LABEL
from concord.models.decoders.distribution import AskedSpans, LabelDistribution


class SoftmaxDistribution(LabelDistribution):
    """Independent labels, from logits of shape ``(B, T, L)``."""

    def __init__(self, logits: Tensor, mask: Tensor) -> None:
        """Normalise the logits in fp32.

        Args:
            mask: true where a word stands, shape ``(B, T)``, bool.
        """
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
    def span_probability(self, asked: AskedSpans) -> Tensor:
        return joint_probability(self._log_probabilities.exp(), asked)


def joint_probability(probabilities: Tensor, asked: AskedSpans) -> Tensor:
    """Give the probability of stretches whose words are labelled independently.

    Args:
        probabilities: shape ``(..., B, T, L)``, float.

    Returns:
        Shape ``(..., K)``: the product over a stretch's words of the sum over the labels that a word may have.
    """
    joint = probabilities.new_ones(*probabilities.shape[:-3], len(asked.starts))
    for step in range(asked.allowed.shape[1]):
        allowed = asked.allowed[:, step]
        # A word of any label changes nothing; its probabilities need not sum to 1 in every bit.
        bound = ((asked.lengths > step) & ~allowed.all(dim=1)).nonzero()[:, 0]
        words = probabilities[..., asked.sentences[bound], asked.starts[bound] + step, :]
        joint[..., bound] *= (words * allowed[bound]).sum(dim=-1)
    return joint
