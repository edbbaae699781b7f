"""Masks for variational dropout, one for all time steps of a sentence (Gal and Ghahramani, 2016)."""

import torch
from torch import Tensor


def draw_mask(shape: tuple[int, ...], rate: float, *, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw a mask, zero with the probability ``rate``, else 1 / (1 - rate), of the device and dtype of ``like``.

    It is drawn on the CPU, so that a seed yields the same masks on every device.
    """
    keep = torch.full(shape, 1.0 - rate)
    return (torch.bernoulli(keep, generator=generator) / (1.0 - rate)).to(like)
