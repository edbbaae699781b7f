"""Monte-Carlo weight samples that speak for spans together."""

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from concord.models.decoders.distribution import AskedSpans, LabelDistribution


class SampledDistribution(LabelDistribution):
    """A distribution whose labels and marginals are those of one decoder, its spans those of M weight samples.

    The labels of a span's words hang together: a sample that doubts the first word doubts the next. So a span has the
    mean over the samples of its probability, and not the product of means.
    """

    def __init__(self, deciding: LabelDistribution, samples: Sequence[LabelDistribution]) -> None:
        """Take what decides and what each weight sample says."""
        self._deciding = deciding
        self._samples = samples

    @override
    def log_prob(self, labels: Tensor) -> Tensor:
        return self._deciding.log_prob(labels)

    @override
    def mode(self) -> Tensor:
        return self._deciding.mode()

    @override
    def marginals(self) -> Tensor:
        return self._deciding.marginals()

    @override
    def span_probability(self, asked: AskedSpans) -> Tensor:
        return torch.stack([sample.span_probability(asked) for sample in self._samples]).mean(dim=0)
