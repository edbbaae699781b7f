"""Threads of torch: how many a process computes with, and how idle ones wait."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

THREADS_VARIABLE = "OMP_NUM_THREADS"
WAIT_POLICY = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that spin while they wait take the cores from other processes: on a busy machine a tagger of two threads lost
up to nine tenths of its speed to them."""
MOST_THREADS = 4
"""More are slower than they are worth for models of this size."""


def wait_passively() -> None:
    """Let idle OpenMP threads of this process sleep instead of spin, unless the environment says otherwise.

    Call it before anything imports torch, whose OpenMP runtime reads the variable once.
    """
    for name, value in WAIT_POLICY.items():
        os.environ.setdefault(name, value)


def threads_of_environment() -> int | None:
    """Return the threads that ``OMP_NUM_THREADS`` asks for; None if it is unset or no positive number."""
    # A list has one number for each level of nested parallelism.
    text = os.environ.get(THREADS_VARIABLE, "").partition(",")[0].strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


def default_threads() -> int:
    """Return the threads to compute with where nothing else is set: ``OMP_NUM_THREADS``, else all cores, at most 4."""
    return threads_of_environment() or min(MOST_THREADS, usable_cores())


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def torch_threads(count: int | None = None) -> Iterator[None]:
    """Compute with ``count`` threads, ``default_threads()`` if None; afterwards with as many as before."""
    # Importing torch takes seconds, and --help must not wait for it.
    import torch

    before, threads = torch.get_num_threads(), count or default_threads()
    # Setting the number replaces pools of threads, even by one of the same size.
    if threads != before:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
