"""The softmax decoder, each word's label independently, and the choice between it and a CRF."""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import IGNORED_LABEL
from concord.models.decoders.crf import Crf
from concord.models.decoders.distribution import LabelDistribution, SpanQuery
from concord.models.labels import LabelScheme

DecoderName = Literal["softmax", "crf"]


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
    def log_prob_allowed(self, allowed: Tensor) -> Tensor:
        # Padding allows every label, since a logarithm of no probability has no gradient.
        possible = allowed | ~self._mask[:, :, None]
        words = self._log_probabilities.masked_fill(~possible, float("-inf")).logsumexp(dim=-1)
        return (words * self._mask).sum(dim=1)

    @override
    def expected_log_prob(self, weights: Tensor) -> Tensor:
        return (weights * self._log_probabilities).sum(dim=(1, 2))

    @override
    def mode(self) -> Tensor:
        return self._log_probabilities.argmax(dim=-1) * self._mask

    @override
    def marginals(self) -> Tensor:
        return self._log_probabilities.exp() * self._mask[:, :, None]

    @override
    def span_probability(self, query: SpanQuery) -> Tensor:
        return joint_probability(self._log_probabilities.exp(), query)


class SoftmaxOrCrf(nn.Module):
    """A softmax, which has no parameters, or a CRF whose mode is the best well-formed label sequence."""

    __call__: Callable[..., LabelDistribution]

    def __init__(self, name: DecoderName, labels: Sequence[str], scheme: LabelScheme) -> None:
        super().__init__()
        self.crf = Crf(labels, scheme, legal_mode=True) if name == "crf" else None

    def forward(self, logits: Tensor, mask: Tensor) -> LabelDistribution:
        """Build the distribution from logits ``(B, T, L)`` and the mask of words ``(B, T)``."""
        if self.crf is None:
            return SoftmaxDistribution(logits, mask)
        return self.crf(logits, mask)


def joint_probability(probabilities: Tensor, query: SpanQuery) -> Tensor:
    """Return the probability of spans whose words are labelled independently; ``(..., B, T, L)`` to ``(..., K)``.

    It is the product over a span's words of the sum over the labels that the word may have.
    """
    joint = probabilities.new_ones(*probabilities.shape[:-3], len(query.starts))
    for step in range(query.allowed.shape[1]):
        bound = slice(query.reaching(step))
        allowed = query.allowed[bound, step]
        words = probabilities[..., query.sentences[bound], query.starts[bound] + step, :]
        # A word that may have any label changes nothing, but its probabilities may not sum to exactly 1.
        joint[..., bound] *= (words * allowed).sum(dim=-1).masked_fill_(allowed.all(dim=1), 1.0)
    return joint
