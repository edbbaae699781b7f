"""The conditional random field decoder (Lafferty et al., 2001; as on top of a BiLSTM in Lample et al., 2016).

Log Z, likelihood and marginals are exact for any scores. A scan or, on a GPU, a tree multiplies factors; if scores are
too far apart for that, slower scans in the log semiring are used: in fp64, since sums over long sentences reach the
hundreds, where fp32 is only exact to 3e-5. Padding changes nothing, so gradients there are exactly 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

from concord.models.decoders.crf_messages import Factors, Messages, Packing, scan_messages, tree_messages, viterbi
from concord.models.decoders.distribution import LabelDistribution, SoftmaxDistribution, SpanQuery
from concord.models.labels import LabelScheme

DecoderName = Literal["softmax", "crf"]


def log_space_partition(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Return log Z of each sentence, shape ``(B,)``, in nats.

    Args:
        emissions: shape ``(B, T, L)``; the results have its dtype.
        transitions: from label (row) to label (column), shape ``(L, L)``.
        start, end: shape ``(L,)``.
        mask: every sentence has a word.
    """
    before = _scan_forward(emissions.double(), transitions.double(), start.double(), mask)
    return (before[:, -1] + end).logsumexp(dim=1).to(emissions.dtype)


def log_space_marginals(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Return each word's label probabilities, shape ``(B, T, L)``; arguments as above."""
    scores, between = emissions.double(), transitions.double()
    joint = _scan_forward(scores, between, start.double(), mask) + _scan_backward(scores, between, end.double(), mask)
    return (joint.softmax(dim=2) * mask[:, :, None]).to(emissions.dtype)


def _scan_forward(emissions: Tensor, transitions: Tensor, start: Tensor, mask: Tensor) -> Tensor:
    """Return log-sums of the prefixes that end in each word and label, shape ``(B, T, L)``."""
    state = start + emissions[:, 0]
    states = [state]
    for step in range(1, emissions.shape[1]):
        advanced = (state[:, :, None] + transitions).logsumexp(dim=1) + emissions[:, step]
        state = torch.where(mask[:, step, None], advanced, state)
        states.append(state)
    return torch.stack(states, dim=1)


def _scan_backward(emissions: Tensor, transitions: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Return log-sums of the suffixes that follow each word and label, shape ``(B, T, L)``."""
    state = end.expand_as(emissions[:, 0])
    states = [state]
    for step in range(emissions.shape[1] - 1, 0, -1):
        advanced = (transitions + (emissions[:, step] + state)[:, None, :]).logsumexp(dim=2)
        state = torch.where(mask[:, step, None], advanced, state)
        states.append(state)
    return torch.stack(states[::-1], dim=1)


# The most entries of all matrices on the lowest level of a tree (fp64: 1 GB).
_TREE_ENTRIES = 2**27


@dataclass(frozen=True, kw_only=True, slots=True)
class Posterior:
    """A CRF read as a Markov chain from its left end: each word's label depends on the label before it."""

    marginals: Tensor
    """Each word's label probabilities, shape ``(B, T, L)``, double; zeros where padded."""
    suffixes: Tensor
    """Log-sums over the suffixes that begin with a word and label, up to a constant per word; shape ``(B, T, L)``,
    double. Given a word's label, the distribution of the next is the softmax of the label's row of transitions plus the
    next word's log-sums."""


def _messages(factors: Factors) -> Messages:
    """Multiply factors by scan or by tree.

    On a CPU by scan: for 32 sentences of 40 words the tree takes 4 times as long with 9 labels and 50 times with 73
    (benchmarks/results/crf_tree_cpu_202611.json). On a GPU, where launching a step costs more than its
    arithmetic, by tree if its matrices fit; this has not been measured.
    """
    entries = len(factors.words) * factors.transitions.numel()
    return tree_messages(factors) if factors.words.is_cuda and entries <= _TREE_ENTRIES else scan_messages(factors)


class _LogLikelihood(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        emissions: Tensor,
        transitions: Tensor,
        start: Tensor,
        end: Tensor,
        mask: Tensor,
        labels: Tensor,
        factors: Factors,
    ) -> Tensor:
        found = _messages(factors)
        ctx.packing = factors.packing
        ctx.dtypes = [scores.dtype for scores in (emissions, transitions, start, end)]
        ctx.save_for_backward(found.before, found.after, found.suffixes, factors.transitions, labels)
        gold = _sequence_scores(emissions, transitions, start, end, mask, labels)
        return (gold - found.log_partition).to(emissions.dtype)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        before, after, suffixes, transitions, labels = ctx.saved_tensors
        packing: Packing = ctx.packing
        weight = gradients[0].double()[packing.sentences]
        gold = labels.flatten()[packing.rows]
        words = before * after
        share = -weight / words.sum(dim=1)
        words *= share[:, None]
        words.scatter_add_(1, gold[:, None], weight[:, None])
        pairs = (before * share[:, None])[packing.followed].T @ suffixes * transitions
        firsts = packing.shape[0]
        used = gold[packing.followed] * len(transitions) + gold[firsts:]
        pairs.view(-1).index_add_(0, used, weight[firsts:])
        found = (packing.pad(words.to(ctx.dtypes[0])), pairs, words[:firsts].sum(dim=0), words[packing.last].sum(dim=0))
        return (*(gradient.to(dtype) for gradient, dtype in zip(found, ctx.dtypes, strict=True)), None, None, None)


def _sequence_scores(
    emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor, labels: Tensor
) -> Tensor:
    """Return the sum of the scores that label sequences use, shape ``(B,)``; the labels are 0 where padded."""
    at_words = emissions.gather(2, labels[:, :, None])[:, :, 0] * mask
    between = transitions[labels[:, :-1], labels[:, 1:]] * mask[:, 1:]
    last = labels.gather(1, mask.sum(dim=1, keepdim=True) - 1)[:, 0]
    return at_words.sum(dim=1) + between.sum(dim=1) + start[labels[:, 0]] + end[last]


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
    """The label sequences of a batch under a CRF; all but ``log_prob`` can be differentiated any number of times."""

    def __init__(self, crf: LinearChain, emissions: Tensor, mask: Tensor) -> None:
        self._crf = crf
        self._scores = emissions, crf.transitions, crf.start, crf.end
        self._mask = mask

    def log_partition(self) -> Tensor:
        """Return log Z of each sentence, shape ``(B,)``, in nats."""
        factors = self._factors()
        if factors is None:
            return log_space_partition(*self._scores, self._mask)
        return _messages(factors).log_partition.to(self._scores[0].dtype)

    @override
    def log_prob(self, labels: Tensor) -> Tensor:
        """Return the log-probability of label sequences.

        Its gradient is explicit: how often the sequence uses a score, less how often that is expected. The scans need
        not be recorded, but it can be differentiated only once.
        """
        known = (labels * self._mask).clamp(min=0)
        with torch.no_grad():
            factors = self._factors()
        if factors is None:
            used = _sequence_scores(*self._scores, self._mask, known)
            return used - log_space_partition(*self._scores, self._mask)
        found: Tensor = _LogLikelihood.apply(*self._scores, self._mask, known, factors)  # type: ignore[no-untyped-call]
        return found

    @override
    def log_prob_allowed(self, allowed: Tensor) -> Tensor:
        """Return log Z over the sequences of allowed labels less log Z."""
        emissions, transitions, start, end = self._scores
        factors = self._factors()
        if factors is None:
            possible = emissions.masked_fill(~(allowed | ~self._mask[:, :, None]), float("-inf"))
            return log_space_partition(possible, transitions, start, end, self._mask) - self.log_partition()
        constrained = replace(factors, words=factors.words * factors.packing.pack(allowed))
        return (_messages(constrained).log_partition - _messages(factors).log_partition).to(emissions.dtype)

    @override
    def mode(self) -> Tensor:
        return viterbi(self._scores[0], *self._crf.mode_scores(), self._mask)

    @override
    def marginals(self) -> Tensor:
        """Return the gradient of log Z."""
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
        factors = self._factors()
        if factors is None:
            emissions, transitions, start, end = (scores.double() for scores in self._scores)
            return Posterior(
                marginals=log_space_marginals(emissions, transitions, start, end, self._mask),
                suffixes=emissions + _scan_backward(emissions, transitions, end, self._mask),
            )
        found, packing = _messages(factors), factors.packing
        joint = found.before * found.after
        return Posterior(
            marginals=packing.pad(joint / joint.sum(dim=1, keepdim=True)),
            suffixes=packing.pad((factors.words * found.after).log()),
        )

    def _factors(self) -> Factors | None:
        return Factors.of(*self._scores, Packing.of(self._mask))


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
