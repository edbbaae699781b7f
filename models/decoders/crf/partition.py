"""Linear-chain CRF: log Z, likelihood and marginals, exact for any scores.

A scan or, on a GPU, a tree multiplies factors; if scores are too far apart for that, the slower scans of ``log_space``
are used. Padding is left out, so gradients there are exactly 0.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from concord.models.decoders.crf import log_space
from concord.models.decoders.crf.factors import Factors, Messages, Packing
from concord.models.decoders.crf.scan import scan_messages
from concord.models.decoders.crf.tree_reduction import tree_messages

# The most entries of all matrices on the lowest level of a tree (fp64: 1 GB).
_TREE_ENTRIES = 2**27


def log_partition(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Return log Z of each sentence, shape ``(B,)``, in nats; it can be differentiated any number of times.

    Args:
        emissions: shape ``(B, T, L)``; the results have its dtype.
        transitions: from label (row) to label (column), shape ``(L, L)``.
        start, end: shape ``(L,)``.
        mask: every sentence has a word.
    """
    factors = Factors.of(emissions, transitions, start, end, Packing.of(mask))
    if factors is None:
        return log_space.log_partition(emissions, transitions, start, end, mask)
    return _messages(factors).log_partition.to(emissions.dtype)


def log_likelihood(
    emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor, labels: Tensor
) -> Tensor:
    """Return the log-probability of label sequences ``(B, T)``, 0 where padded; shape ``(B,)``.

    Its gradient is explicit: how often the sequence uses a score, less how often that is expected. The scans need not
    be recorded, but it can be differentiated only once.
    """
    scores = (emissions, transitions, start, end)
    packing = Packing.of(mask)
    with torch.no_grad():
        factors = Factors.of(*scores, packing)
    if factors is None:
        return _sequence_scores(*scores, mask, labels) - log_space.log_partition(*scores, mask)
    found: Tensor = _LogLikelihood.apply(*scores, mask, labels, factors)  # type: ignore[no-untyped-call]
    return found


def log_prob_allowed(
    emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor, allowed: Tensor
) -> Tensor:
    """Return the log-probability that every word has an allowed label, shape ``(B,)``.

    It is log Z over the sequences of allowed labels less log Z; allowed labels have shape ``(B, T, L)``, bool.
    """
    packing = Packing.of(mask)
    factors = Factors.of(emissions, transitions, start, end, packing)
    if factors is None:
        possible = emissions.masked_fill(~(allowed | ~mask[:, :, None]), float("-inf"))
        constrained = log_space.log_partition(possible, transitions, start, end, mask)
        return constrained - log_space.log_partition(emissions, transitions, start, end, mask)
    constrained = _messages(replace(factors, words=factors.words * packing.pack(allowed))).log_partition
    return (constrained - _messages(factors).log_partition).to(emissions.dtype)


def marginals(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Return each word's label probabilities, shape ``(B, T, L)``, zeros where padded.

    They are the gradient of log Z and can be differentiated any number of times.
    """
    packing = Packing.of(mask)
    factors = Factors.of(emissions, transitions, start, end, packing)
    if factors is None:
        return log_space.marginals(emissions, transitions, start, end, mask)
    found = _messages(factors)
    joint = found.before * found.after
    return packing.pad(joint / joint.sum(dim=1, keepdim=True)).to(emissions.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class Posterior:
    """A CRF read as a Markov chain from its left end: each word's label depends on the label before it."""

    marginals: Tensor
    """Each word's label probabilities, shape ``(B, T, L)``, double; zeros where padded."""
    suffixes: Tensor
    """Log-sums over the suffixes that begin with a word and label, up to a constant per word; shape ``(B, T, L)``,
    double. Given a word's label, the distribution of the next is the softmax of the label's row of transitions plus the
    next word's log-sums."""


@torch.no_grad()
def posterior(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor) -> Posterior:
    """Read the sentences of a batch as Markov chains; arguments as in ``log_partition``."""
    packing = Packing.of(mask)
    factors = Factors.of(emissions, transitions, start, end, packing)
    if factors is None:
        return Posterior(
            marginals=log_space.marginals(emissions.double(), transitions, start, end, mask),
            suffixes=log_space.log_suffixes(emissions, transitions, end, mask),
        )
    found = _messages(factors)
    joint = found.before * found.after
    return Posterior(
        marginals=packing.pad(joint / joint.sum(dim=1, keepdim=True)),
        suffixes=packing.pad((factors.words * found.after).log()),
    )


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
