"""The softmax decoder: each word's label on its own."""

from torch import Tensor
from typing_extensions import override

from models.data import IGNORED_LABEL
from models.decoders.base import LabelDistribution


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
