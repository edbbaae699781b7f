"""Linear-chain CRF step by step, vectorised over sentences and labels: sums forward and backward, and Viterbi.

A step is one matrix product for all sentences that have not ended.
"""

import torch
from torch import Tensor

from concord.models.decoders.crf.factors import Factors, Messages, Packing

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
