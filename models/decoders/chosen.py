"""A decoder by name, for taggers that may end in either."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from concord.models.decoders.crf.distribution import Crf
from concord.models.decoders.distribution import LabelDistribution
from concord.models.decoders.softmax import SoftmaxDistribution
from concord.models.schemes import LabelScheme

DecoderName = Literal["softmax", "crf"]


class ChosenDecoder(nn.Module):
    """Softmax, or a CRF whose mode is sought among the well-formed label sequences."""

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
