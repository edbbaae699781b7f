"""Linear-chain CRF by a sequential scan: forward, backward and Viterbi, vectorised over sentences and labels.

Everything is in the log semiring and in the dtype of the emissions. Padded words change nothing: a step past a
sentence's end keeps its state, so gradients there are exactly 0.
"""

import torch
from torch import Tensor


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
    state = start + emissions[:, 0]
    states = [state]
    for step in range(1, emissions.shape[1]):
        advanced = (state[:, :, None] + transitions).logsumexp(dim=1) + emissions[:, step]
        state = torch.where(mask[:, step, None], advanced, state)
        states.append(state)
    return torch.stack(states, dim=1)


def backward_scores(emissions: Tensor, transitions: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Sum over all suffixes that follow each word and label; shapes as in ``forward_scores``."""
    state = end.expand_as(emissions[:, 0])
    states = [state]
    for step in range(emissions.shape[1] - 1, 0, -1):
        advanced = (transitions + (emissions[:, step] + state)[:, None, :]).logsumexp(dim=2)
        state = torch.where(mask[:, step, None], advanced, state)
        states.append(state)
    return torch.stack(states[::-1], dim=1)


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
    sentences, length, labels = emissions.shape
    state = start + emissions[:, 0]
    stay = torch.arange(labels, device=emissions.device).expand(sentences, labels)
    pointers = []
    for step in range(1, length):
        best, arrived_from = (state[:, :, None] + transitions).max(dim=1)
        inside = mask[:, step, None]
        state = torch.where(inside, best + emissions[:, step], state)
        pointers.append(torch.where(inside, arrived_from, stay))
    current = (state + end).argmax(dim=1)
    path = [current]
    for pointer in reversed(pointers):
        current = pointer.gather(1, current[:, None])[:, 0]
        path.append(current)
    return torch.stack(path[::-1], dim=1) * mask
