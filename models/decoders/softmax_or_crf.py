"""The decoder of taggers whose configuration chooses between softmax and CRF."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from concord.models.decoders.crf.distribution import Crf
from concord.models.decoders.distribution import LabelDistribution
from concord.models.decoders.softmax import SoftmaxDistribution
from concord.models.schemes import LabelScheme

DecoderName = Literal["softmax", "crf"]


class SoftmaxOrCrf(nn.Module):
    """A softmax, or a CRF whose mode is the best well-formed label sequence."""

    def __init__(self, name: DecoderName, labels: Sequence[str], scheme: LabelScheme) -> None:
        """Build the decoder; a softmax has no parameters."""
        super().__init__()
        self.crf = Crf(labels, scheme, legal_mode=True) if name == "crf" else None

    def forward(self, logits: Tensor, mask: Tensor) -> LabelDistribution:
        """Build the distribution from logits ``(B, T, L)`` and the mask of words ``(B, T)``."""
        if self.crf is None:
            return SoftmaxDistribution(logits, mask)
        distribution: LabelDistribution = self.crf(logits, mask)
        return distribution
