"""The sums of a linear-chain CRF over the label sequences before and after each word, from factors without padding.

Sums over label sequences are products of factors: exponentials of scores less their maximum, in fp64. The code that
multiplies them rescales states before they can leave the range of fp64.

A scan goes step by step, one matrix product for all sentences that have not ended. A tree takes as many rounds as the
logarithm of the longest sentence. Going up, neighbouring steps are multiplied until one matrix per sentence is left;
going down, vectors carry to each step the sums over all steps before and after it (a parallel prefix sum; Blelloch,
1990). Wang et al. (2021, section 3.4) use such a tree on GPUs. It multiplies matrices where a scan multiplies vectors,
hence many times the arithmetic. As in the paper, a round is one batch of the pairs of all sentences, which are found
beforehand: no padding is multiplied.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from concord.models.data.batch import by_step, send

# The entries of a state stay within this many nats. The product of two states, one of a forward and one of a backward
# scan, must stay within the 708 nats of fp64.
_RANGE = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """The order of the N words of a batch: by step, and within a step by length of their sentence, longest first."""

    sizes: list[int]
    """Number of sentences with a word at each step, never rising."""
    rows: Tensor
    """Row of each word among all ``B * T`` cells, shape ``(N,)``, int64."""
    sentences: Tensor
    """Sentence of each word, shape ``(N,)``, int64."""
    followed: Tensor
    """The words that are not the last of their sentence, ordered as the words that follow them, shape ``(N - B,)``,
    int64."""
    last: Tensor
    """The last word of each sentence, shape ``(B,)``, int64, not in the order of the sentences."""
    shape: tuple[int, int]
    """B and T."""

    @classmethod
    def of(cls, mask: Tensor) -> "Packing":
        """Order the words of a mask, shape ``(B, T)``, bool, true for words; every sentence has a word."""
        # On the CPU, since the host must know how many words there are at each step.
        lengths, width = mask.sum(dim=1).cpu(), mask.shape[1]
        (cells, _), sizes = by_step(lengths, width)
        owners = cells // width
        continues = cells % width + 1 < lengths[owners]
        rows, sentences, followed, last = send(
            mask.device, cells, owners, continues.nonzero()[:, 0], (~continues).nonzero()[:, 0]
        )
        return cls(
            sizes=sizes,
            rows=rows,
            sentences=sentences,
            followed=followed,
            last=last,
            shape=(mask.shape[0], mask.shape[1]),
        )

    def pack(self, values: Tensor) -> Tensor:
        """Remove the padding of a batch, shape ``(B, T, L)`` to ``(N, L)``."""
        return values.flatten(0, 1).index_select(0, self.rows)

    def pad(self, values: Tensor) -> Tensor:
        """Restore a padded batch, with zeros where padded."""
        padded = values.new_zeros((self.shape[0] * self.shape[1], *values.shape[1:]))
        return padded.index_copy(0, self.rows, values).reshape(*self.shape, *values.shape[1:])


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """A batch's scores as factors of at most 1, in fp64: exponentials of scores less shifts."""

    packing: Packing
    words: Tensor
    """Shape ``(N, L)``, packed."""
    transitions: Tensor
    """From label (row) to label (column), shape ``(L, L)``."""
    start: Tensor
    end: Tensor
    """Shape ``(L,)``."""
    shift: Tensor
    """Sum of a sentence's shifts in nats, shape ``(B,)``."""
    interval: int
    """Number of steps after which a state must be rescaled."""

    @classmethod
    def of(
        cls, emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, packing: Packing
    ) -> "Factors | None":
        """Compute the factors; None if scores are too far apart for a state to survive a single step.

        A step can spread the entries of a state by no more than the spread of the scores; their maximum falls by no
        more than that, and rises by no more than the logarithm of the number of labels.
        """
        labels = len(start)
        words = packing.pack(emissions).double()
        chain = torch.cat((transitions.flatten(), start, end)).double()
        lowest, highest = words.detach().aminmax(dim=1, keepdim=True)
        least, most = chain.detach().aminmax()
        nats = float((highest - lowest).max() + most - least) + math.log(labels)
        if not nats <= _RANGE / 2:
            return None
        chain = (chain - most).exp()
        sums = torch.zeros(packing.shape[0], dtype=torch.float64, device=words.device)
        return cls(
            packing=packing,
            words=(words - highest).exp(),
            transitions=chain[: labels * labels].view(labels, labels),
            start=chain[labels * labels : -labels],
            end=chain[-labels:],
            # A sentence has one transition fewer than words, plus a start and an end.
            shift=sums.index_add(0, packing.sentences, highest[:, 0] + most) + most,
            interval=int(_RANGE / max(nats, 1.0)) - 1,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Messages:
    """Sums over the labels before and after each word; each row is scaled by a factor of its own."""

    before: Tensor
    """Over the prefixes that end in a word and label, shape ``(N, L)``."""
    after: Tensor
    """Over the suffixes that follow a word and label, shape ``(N, L)``."""
    suffixes: Tensor
    """Over the suffixes that begin with a word and label, for words after the first, shape ``(N - B, L)``; ``suffixes @
    transitions.T`` is ``after`` of the words before them."""
    log_partition: Tensor
    """Log Z in nats, shape ``(B,)``."""


# The most sums of a Viterbi step that are computed at once on a CPU (fp32: 4 MB), so that they stay in its cache; with
# 400 labels a step of 32 sentences then takes a third of the time.
_VITERBI_SUMS = 2**20


def scan_messages(factors: Factors) -> Messages:
    """Scan forward and backward, step by step."""
    before, log_scale = _scan_forward(factors)
    after, suffixes = _scan_backward(factors)
    return Messages(before=before, after=after, suffixes=suffixes, log_partition=log_scale + factors.shift)


def _scan_forward(factors: Factors) -> tuple[Tensor, Tensor]:
    """Return ``before`` and the logarithm of each sentence's sum, shape ``(B,)``, in nats."""
    packing, transitions = factors.packing, factors.transitions
    words = factors.words.split(packing.sizes)
    state = words[0] * factors.start
    states, scales = [state], torch.zeros_like(state[:, 0])
    for step, factor in enumerate(words[1:], start=1):
        if packing.sizes[step] < packing.sizes[step - 1]:
            state = state[: packing.sizes[step]]
        state = torch.mm(state, transitions) * factor
        if step % factors.interval == 0:
            # A constant, which is added to the logarithm below.
            scale = state.detach().amax(dim=1, keepdim=True)
            state = state / scale
            scales[: packing.sizes[step]] += scale[:, 0].log()
        states.append(state)
    before = torch.cat(states)
    sums = torch.mv(before[packing.last], factors.end).log()
    found = torch.zeros_like(scales).index_add(0, packing.sentences[packing.last], sums)
    return before, found.index_add(0, packing.sentences[: len(scales)], scales)


def _scan_backward(factors: Factors) -> tuple[Tensor, Tensor]:
    """Return ``after`` and ``suffixes``."""
    sizes, transposed = factors.packing.sizes, factors.transitions.T.contiguous()
    words = factors.words.split(sizes)
    state = factors.end.expand(sizes[-1], -1)
    after, suffixes = [state], []
    for step in range(len(words) - 1, 0, -1):
        state = words[step] * state
        if step % factors.interval == 0:
            state = state / state.detach().amax(dim=1, keepdim=True)
        suffixes.append(state)
        state = torch.mm(state, transposed)
        if sizes[step] < sizes[step - 1]:
            state = torch.cat((state, factors.end.expand(sizes[step - 1] - sizes[step], -1)))
        after.append(state)
    suffixes.append(words[0][:0])
    return torch.cat(after[::-1]), torch.cat(suffixes[::-1])


@torch.no_grad()
def viterbi(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Return the best label sequence of each sentence, shape ``(B, T)``, int64; 0 where padded.

    The forward scan keeps only the best scores. Instead of storing which label each came from, the way back recomputes
    the same sums for the labels on the path alone and takes the largest.
    """
    packing = Packing.of(mask)
    words = packing.pack(emissions).split(packing.sizes)
    rows = len(words[0]) if emissions.is_cuda else max(1, min(len(words[0]), _VITERBI_SUMS // transitions.numel()))
    # Allocated once: fresh memory for each step would cost a page fault for every 4 kB.
    memory = words[0].new_empty(rows * transitions.numel())
    leaving = transitions.unsqueeze(1)
    state = words[0] + start
    states = [state]
    for size, factor in zip(packing.sizes[1:], words[1:], strict=True):
        if size < len(state):
            state = state[:size]
        if size <= rows:
            state = _best_arrivals(state, leaving, memory).add_(factor)
        else:
            blocks = [_best_arrivals(block, leaving, memory) for block in state.split(rows)]
            state = torch.cat(blocks).add_(factor)
        states.append(state)
    arriving = transitions.T.contiguous()
    # Last labels of all sentences, the shortest first; at each step back some sentences join.
    joining = (torch.cat(states)[packing.last] + end).argmax(dim=1)
    joined = packing.sizes[-1]
    current = joining[-joined:]
    path = [current]
    for size, state in zip(packing.sizes[-2::-1], states[-2::-1], strict=True):
        here = state if size == joined else state[:joined]
        current = (here + arriving.index_select(0, current)).argmax(dim=1)
        if size > joined:
            current = torch.cat((current, joining[-size:-joined]))
            joined = size
        path.append(current)
    return packing.pad(torch.cat(path[::-1]))


def _best_arrivals(state: Tensor, leaving: Tensor, memory: Tensor) -> Tensor:
    """Return the best of a state's scores plus transitions, ``(L, 1, L)``, for each next label, shape ``(n, L)``."""
    # Previous labels come first: the maximum over them is fast if the other dimensions are contiguous.
    sums = memory[: len(leaving) * state.numel()].view(len(leaving), -1, len(leaving))
    return torch.add(state.T.unsqueeze(2), leaving, out=sums).amax(dim=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    """Which of a round's matrices are multiplied; the next round has the P products, then the matrices left over."""

    left: Tensor
    right: Tensor
    """The two factors of each product, shape ``(P,)``, int64."""
    single: Tensor
    """The last matrix of each sentence with an odd number, which has no partner, int64."""
    owners: Tensor
    """Ranks by length of the sentences of the next round's matrices, int64."""
    order: Tensor
    """Sorts the left factors, the right factors and the single matrices as in this round, int64."""


def tree_messages(factors: Factors) -> Messages:
    """Multiply one matrix for each word but the first of a sentence, ordered as these words in the packing."""
    packing, transitions = factors.packing, factors.transitions
    sentences = packing.shape[0]
    first, following = factors.words[:sentences] * factors.start, factors.words[sentences:]
    rounds, owners = _plan(packing.sizes, following.device)
    pairs, roots, log_scale = _go_up(transitions, following, rounds, sentences)
    whole = first.index_copy(0, owners, (first[owners][:, None] @ roots)[:, 0])
    log_partition = torch.mv(whole, factors.end).log() + log_scale
    incoming, outgoing = first[owners], factors.end.expand(len(owners), -1)
    for found, (left, right) in zip(reversed(rounds), reversed(pairs), strict=True):
        incoming, outgoing = _go_down(found, left, right, incoming, outgoing)
    suffixes = following * outgoing
    ends = factors.end.expand_as(factors.words)
    return Messages(
        before=torch.cat((first, _scaled(incoming @ transitions) * following)),
        after=ends.index_copy(0, packing.followed, suffixes @ transitions.T),
        suffixes=suffixes,
        log_partition=torch.empty_like(log_partition).index_copy(0, packing.sentences[:sentences], log_partition)
        + factors.shift,
    )


def _plan(sizes: Sequence[int], device: torch.device) -> tuple[list[_Round], Tensor]:
    """Return the rounds, and the ranks of the sentences of the matrices that are left."""
    # By NumPy: on such small arrays its calls take a fifth of the time.
    places, owners = (np.arange(sizes[0]) < np.array(sizes[1:])[:, None]).nonzero()
    rounds = []
    while places.any():
        rows = np.full((sizes[0], places.max() // 2 * 2 + 2), -1)
        rows[owners, places] = np.arange(len(owners))
        lefts, rights = rows[:, ::2], rows[:, 1::2]
        paired, alone = rights >= 0, (lefts >= 0) & (rights < 0)
        left, right, single = lefts[paired], rights[paired], lefts[alone]
        owners, places = (np.concatenate(both) for both in zip(paired.nonzero(), alone.nonzero(), strict=True))
        order = np.concatenate((left, right, single)).argsort()
        numbers = [torch.from_numpy(found).to(device) for found in (left, right, single, owners, order)]
        rounds.append(_Round(**dict(zip(("left", "right", "single", "owners", "order"), numbers, strict=True))))
    return rounds, torch.from_numpy(owners).to(device)


def _go_up(
    transitions: Tensor, following: Tensor, rounds: Sequence[_Round], sentences: int
) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """Return the factors of each round, the last matrices, and the logarithm of all scales by rank, shape ``(B,)``."""
    matrices: Tensor | None = None

    def take(rows: Tensor) -> Tensor:
        # The lowest matrices are computed where they are needed, in the order of their round.
        return transitions * following[rows][:, None] if matrices is None else matrices.index_select(0, rows)

    pairs, log_scale = [], following.new_zeros(sentences)
    for found in rounds:
        left, right, single = take(found.left), take(found.right), take(found.single)
        products = left @ right
        scale = products.detach().amax(dim=(1, 2), keepdim=True)
        log_scale = log_scale.index_add(0, found.owners[: len(products)], scale.log().flatten())
        matrices = torch.cat((products / scale, single))
        pairs.append((left, right))
    return pairs, transitions * following[:, None] if matrices is None else matrices, log_scale


def _go_down(found: _Round, left: Tensor, right: Tensor, incoming: Tensor, outgoing: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the incoming and outgoing vectors of a round's matrices from those of the next round's."""
    entering, leaving = incoming[: len(left)], outgoing[: len(left)]
    entered = _scaled((entering[:, None] @ left)[:, 0])
    left_by = _scaled((right @ leaving[:, :, None])[:, :, 0])
    incoming = torch.cat((entering, entered, incoming[len(left) :]))
    outgoing = torch.cat((left_by, leaving, outgoing[len(left) :]))
    return incoming.index_select(0, found.order), outgoing.index_select(0, found.order)


def _scaled(vectors: Tensor) -> Tensor:
    return vectors / vectors.detach().amax(dim=1, keepdim=True)
