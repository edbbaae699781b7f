"""Linear-chain CRF by a sequential scan: forward, backward and Viterbi, vectorised over sentences and labels.

Everything is in the log semiring and in the dtype of the emissions. Padded words change nothing: a step past a
sentence's end keeps its state, so gradients there are exactly 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_FEW_LABELS = 64


def forward_scores(emissions: Tensor, transitions: Tensor, start: Tensor, mask: Tensor) -> Tensor:
    """Sum over all prefixes.

    Args:
        emissions: shape ``(B, T, L)``.
        transitions: from label (row) to label (column), shape ``(L, L)``.
        start: shape ``(L,)``.
        mask: true where a word stands, shape ``(B, T)``, bool; every sentence has a word.

    Returns:
        Log-sums of the prefixes that end in each word and label, shape ``(B, T, L)``.
    """
    advance = _summed(transitions)
    state = start + emissions[:, 0]
    states = [state]
    for step in range(1, emissions.shape[1]):
        advanced = advance(state) + emissions[:, step]
        state = torch.where(mask[:, step, None], advanced, state)
        states.append(state)
    return torch.stack(states, dim=1)


def backward_scores(emissions: Tensor, transitions: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Sum over all suffixes that follow each word and label; shapes as in ``forward_scores``."""
    advance = _summed(transitions.T)
    state = end.expand_as(emissions[:, 0])
    states = [state]
    for step in range(emissions.shape[1] - 1, 0, -1):
        advanced = advance(emissions[:, step] + state)
        state = torch.where(mask[:, step, None], advanced, state)
        states.append(state)
    return torch.stack(states[::-1], dim=1)


def _summed(transitions: Tensor) -> Callable[[Tensor], Tensor]:
    """Give the step of a scan: the log-sum over the left label of state ``(B, L)`` and transitions."""
    if len(transitions) <= _FEW_LABELS:
        return lambda state: (state[:, :, None] + transitions).logsumexp(dim=1)
    # A matrix product of the exponentials, shifted so that the largest is 1: it needs no (B, L, L) cells. What lies
    # 87 nats (fp32) below the largest is lost, as it would be in the sum.
    most = transitions.detach().max()
    factors = (transitions - most).exp()

    def step(state: Tensor) -> Tensor:
        top = state.detach().amax(dim=1, keepdim=True)
        total = (state - top).exp() @ factors
        return total.clamp(min=torch.finfo(total.dtype).tiny).log() + top + most

    return step


def log_partition(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Give log Z of each sentence, shape ``(B,)``."""
    return (forward_scores(emissions, transitions, start, mask)[:, -1] + end).logsumexp(dim=1)


def sequence_scores(
    emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor, labels: Tensor
) -> Tensor:
    """Give the unnormalised score of label sequences ``(B, T)``, shape ``(B,)``."""
    labels = labels.masked_fill(~mask, 0)
    at_words = emissions.gather(2, labels[:, :, None])[:, :, 0] * mask
    between = transitions[labels[:, :-1], labels[:, 1:]] * mask[:, 1:]
    last = labels.gather(1, mask.sum(dim=1, keepdim=True) - 1)[:, 0]
    return at_words.sum(dim=1) + between.sum(dim=1) + start[labels[:, 0]] + end[last]


def viterbi(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Give the best label sequence of each sentence, shape ``(B, T)``, int64; 0 where padded."""
    state = start + emissions[:, 0]
    states = [state]
    for step in range(1, emissions.shape[1]):
        best = (state[:, :, None] + transitions).amax(dim=1)
        state = torch.where(mask[:, step, None], best + emissions[:, step], state)
        states.append(state)
    current = (state + end).argmax(dim=1)
    path = [current]
    # Where a label was reached from is found on the way back, for the labels of the path alone.
    for step in range(emissions.shape[1] - 1, 0, -1):
        arrived_from = (states[step - 1] + transitions[:, current].T).argmax(dim=1)
        current = torch.where(mask[:, step], arrived_from, current)
        path.append(current)
    return torch.stack(path[::-1], dim=1) * mask
