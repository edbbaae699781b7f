"""Work on a device that the host does not wait for.

A GPU computes what it is told in order, while the host goes on. So what the host reads of it is copied back in the
background, and a piece of work that needs such a copy lets others start before it waits.
"""

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

import torch
from torch import Tensor

_WORD = 8
_END = object()

Result = TypeVar("Result")
Work = Generator[None, None, Result]
"""Work on a device, which stops wherever the host would have to wait for it."""


def send(device: torch.device, *values: Tensor) -> list[Tensor]:
    """Copy tensors of the CPU to a device, all in one copy; the same tensors if it is the CPU."""
    if device.type == "cpu":
        return list(values)
    parts = [value.contiguous().view(-1).view(torch.uint8) for value in values]
    # Each part begins where a number of eight bytes may.
    padded = [torch.nn.functional.pad(part, (0, -len(part) % _WORD)) for part in parts]
    pinned = torch.empty(sum(map(len, padded)), dtype=torch.uint8, pin_memory=True)
    sent = torch.cat(padded, out=pinned).to(device, non_blocking=True).split([len(part) for part in padded])
    return [
        found[: len(part)].view(value.dtype).view(value.shape)
        for found, part, value in zip(sent, parts, values, strict=True)
    ]


def fetch(values: Tensor) -> Callable[[], Tensor]:
    """Start to copy a tensor to the CPU; return a function that waits for the copy and returns it."""
    if values.device.type == "cpu":
        return lambda: values
    copied = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copied.copy_(values, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def wait() -> Tensor:
        done.synchronize()
        return copied

    return wait


def finished(work: Work[Result]) -> Result:
    """Do a piece of work to its end, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


def overlap(works: Iterable[Work[None]], device: torch.device) -> None:
    """Do pieces of work; on a GPU, start each before the host waits for those before it."""
    running: list[Work[None]] = []
    for work in works:
        if device.type == "cpu":
            finished(work)
            continue
        is_running = _goes_on(work)
        running = [other for other in running if _goes_on(other)]
        if is_running:
            running.append(work)
    while running:
        running = [work for work in running if _goes_on(work)]


def _goes_on(work: Work[None]) -> bool:
    """Do a piece of work up to its next stop; return whether that is not its end."""
    return next(work, _END) is not _END
