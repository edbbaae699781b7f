"""Linear-chain CRF in the log semiring: slow, but exact for scores that are any distance apart.

In fp64, since sums over long sentences reach the hundreds, where fp32 is only exact to 3e-5. Padding changes nothing:
a step past the end of a sentence keeps its state, so gradients there are exactly 0.
"""

import torch
from torch import Tensor


def log_partition(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Return log Z of each sentence, shape ``(B,)``; arguments as in ``partition.log_partition``."""
    before = _scan_forward(emissions.double(), transitions.double(), start.double(), mask)
    return (before[:, -1] + end).logsumexp(dim=1).to(emissions.dtype)


def marginals(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Return each word's label probabilities, shape ``(B, T, L)``; arguments as in ``partition.marginals``."""
    scores, between = emissions.double(), transitions.double()
    joint = _scan_forward(scores, between, start.double(), mask) + _scan_backward(scores, between, end.double(), mask)
    return (joint.softmax(dim=2) * mask[:, :, None]).to(emissions.dtype)


def log_suffixes(emissions: Tensor, transitions: Tensor, end: Tensor, mask: Tensor) -> Tensor:
    """Return log-sums of the suffixes that begin with each word and label, shape ``(B, T, L)``, double."""
    return emissions.double() + _scan_backward(emissions.double(), transitions.double(), end.double(), mask)


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
