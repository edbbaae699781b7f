"""The conditional random field decoder (Lafferty et al., 2001; as on top of a BiLSTM in Lample et al., 2016)."""

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from typing_extensions import override

from concord.models.decoders.crf.partition import (
    Posterior,
    log_likelihood,
    log_partition,
    log_prob_allowed,
    marginals,
    posterior,
)
from concord.models.decoders.crf.scan import viterbi
from concord.models.decoders.distribution import LabelDistribution, SpanQuery
from concord.models.labels.schemes import LabelScheme

# Far below any score that training reaches, yet sums of it stay finite in fp32.
_FORBIDDEN = -1e4


class LinearChain(nn.Module):
    """Transition scores between labels, with start and end vectors in place of extra labels; all start as 0."""

    __call__: Callable[..., "CrfDistribution"]

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(labels, labels))
        self.start = nn.Parameter(torch.zeros(labels))
        self.end = nn.Parameter(torch.zeros(labels))

    def forward(self, emissions: Tensor, mask: Tensor) -> "CrfDistribution":
        """Build the distribution from emissions of shape ``(B, T, L)``, converted to fp32 unless fp64."""
        emissions = emissions if emissions.dtype == torch.float64 else emissions.float()
        return CrfDistribution(self, emissions, mask)

    def mode_scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return transitions, start and end scores for the search of the mode."""
        return self.transitions, self.start, self.end


class Crf(LinearChain):
    """A linear chain over the labels of a scheme, whose mode may be restricted to well-formed sequences."""

    illegal: Tensor
    illegal_start: Tensor
    illegal_end: Tensor

    def __init__(self, labels: Sequence[str], scheme: LabelScheme, *, legal_mode: bool) -> None:
        """Build the chain; ``legal_mode`` makes the mode the best well-formed label sequence, not the best of all.

        Training and marginals always cover all sequences.
        """
        super().__init__(len(labels))
        self._legal_mode = legal_mode
        starts = [not scheme.allows(None, right) for right in labels]
        ends = [not scheme.allows(left, None) for left in labels]
        self.register_buffer("illegal", ~torch.tensor(scheme.transitions(labels)), persistent=False)
        self.register_buffer("illegal_start", torch.tensor(starts), persistent=False)
        self.register_buffer("illegal_end", torch.tensor(ends), persistent=False)

    @override
    def mode_scores(self) -> tuple[Tensor, Tensor, Tensor]:
        if not self._legal_mode:
            return super().mode_scores()
        return (
            self.transitions.masked_fill(self.illegal, _FORBIDDEN),
            self.start.masked_fill(self.illegal_start, _FORBIDDEN),
            self.end.masked_fill(self.illegal_end, _FORBIDDEN),
        )


class CrfDistribution(LabelDistribution):
    """The label sequences of a batch under a CRF."""

    def __init__(self, crf: LinearChain, emissions: Tensor, mask: Tensor) -> None:
        self._crf = crf
        self._scores = emissions, crf.transitions, crf.start, crf.end
        self._mask = mask

    def log_partition(self) -> Tensor:
        """Return log Z of each sentence, shape ``(B,)``."""
        return log_partition(*self._scores, self._mask)

    @override
    def log_prob(self, labels: Tensor) -> Tensor:
        return log_likelihood(*self._scores, self._mask, (labels * self._mask).clamp(min=0))

    @override
    def log_prob_allowed(self, allowed: Tensor) -> Tensor:
        return log_prob_allowed(*self._scores, self._mask, allowed)

    @override
    def mode(self) -> Tensor:
        return viterbi(self._scores[0], *self._crf.mode_scores(), self._mask)

    @override
    def marginals(self) -> Tensor:
        if torch.is_grad_enabled():
            return marginals(*self._scores, self._mask)
        return self._chain.marginals.to(self._scores[0].dtype)

    @override
    def span_probability(self, query: SpanQuery) -> Tensor:
        """Return ``Z`` of the allowed label sequences over ``Z`` of all of them, ill-formed ones included.

        The words before and after a span are accounted for by the marginals of its first word and by the sums of
        suffixes, so the constrained forward pass visits only the words of the span.
        """
        emissions, transitions, _, _ = self._scores
        state = self._chain.marginals[query.sentences, query.starts] * query.allowed[:, 0]
        for step in range(1, query.allowed.shape[1]):
            longer = slice(query.reaching(step))
            suffixes = self._chain.suffixes[query.sentences[longer], query.starts[longer] + step]
            follows = (transitions.double() + suffixes[:, None, :]).softmax(dim=2)
            arrived = (state[longer, :, None] * follows).sum(dim=1) * query.allowed[longer, step]
            state = torch.cat((arrived, state[len(arrived) :]))
        return state.sum(dim=1).to(emissions.dtype)

    @cached_property
    def _chain(self) -> Posterior:
        return posterior(*self._scores, self._mask)
