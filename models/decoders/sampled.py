"""Span probabilities from Monte-Carlo weight samples."""

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from concord.models.decoders.distribution import LabelDistribution, SpanQuery


class SampledDistribution(LabelDistribution):
    """A distribution with the labels and marginals of one decoder and the span probabilities of M weight samples.

    The labels of a span's words depend on each other: a sample that doubts the first word doubts the next. So the
    probability of a span is the mean of its probability in each sample, not the product of the words' means.
    """

    def __init__(self, deciding: LabelDistribution, samples: Sequence[LabelDistribution]) -> None:
        """Combine the deciding distribution with that of each weight sample."""
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
    def span_probability(self, query: SpanQuery) -> Tensor:
        return torch.stack([sample.span_probability(query) for sample in self._samples]).mean(dim=0)
