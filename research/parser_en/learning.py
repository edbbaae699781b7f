"""What the trainings of teacher, student and tokenizer share: batches, a step, and the best trees."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from concord.pipeline.parsing.spanning_tree import best_trees

ItemT = TypeVar("ItemT")


def batches(items: Sequence[ItemT], length: Callable[[ItemT], int], *, words: int) -> list[list[ItemT]]:
    """Return items in batches of one length and of at most so many words.

    Where lengths vary, the gradient of a packed LSTM takes time that grows with their square.
    """
    found: list[list[ItemT]] = []
    for item in sorted(items, key=length):
        size = length(item)
        if not found or size != length(found[-1][0]) or (1 + len(found[-1])) * size > words:
            found.append([])
        found[-1].append(item)
    return found


def descend(
    loss: Tensor,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LambdaLR,
    *,
    clip_norm: float,
) -> float:
    """Make one step of an optimizer and its learning rate, and return the loss."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([each for group in optimizer.param_groups for each in group["params"]], clip_norm)
    optimizer.step()
    schedule.step()
    return float(loss.item())


def best_heads(arcs: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the heads of the best trees by scores of shape ``(B, T, 1 + T)``, 0 for the root; shape ``(B, T)``.

    Scores of -inf are those of padding and of words as their own heads.
    """
    scores = functional.pad(arcs.nan_to_num(neginf=0.0), (0, 0, 1, 0)).numpy()
    return torch.from_numpy(best_trees(scores, [1 + length for length in lengths]))[:, 1:]
