"""Threads and memory of a process that computes with torch.

How many threads it has and how idle ones wait; how memory stays flat from shard to shard, and when there is none left.
"""

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from concord.pipeline.errors import ShortageError

THREADS_VARIABLE = "OMP_NUM_THREADS"
MOST_THREADS = 4
"""More are slower than they are worth for models of this size."""
# Torch runs convolutions, and LSTMs over batches of equal lengths, through oneDNN. Both cache something for each of
# the last 1,024 shapes (oneDNN compiled code: 300 MB; torch descriptions of convolutions: 22 MB), and texts rarely give
# the same shape twice. oneDNN keeps enough for the lengths of single sentences (models/layers/lstm.py). Each
# reads its variable when it is first used in a process.
_CACHED_SHAPES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "16"}
# Messages of RuntimeErrors that mean a lack of memory: of torch's CPU allocator, of CUDA's libraries, and one that
# Stanza raises in its own words.
_SHORTAGE_MESSAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "_STATUS_ALLOC_FAILED",
    "CUDA out of memory",
    "CUDA error: out of memory",
)
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def wait_passively() -> None:
    """Let idle OpenMP threads of this process sleep instead of spin, unless the environment says otherwise.

    Call it before anything imports torch, whose OpenMP runtime reads the variable once. Threads that spin take the
    cores from other processes: on a busy machine a tagger of two threads lost up to nine tenths of its speed to them.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


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


def bound_caches() -> None:
    """Bound the caches that grow with every batch shape, unless the environment does; call it before torch computes."""
    for name, shapes in _CACHED_SHAPES.items():
        os.environ.setdefault(name, shapes)


def free_memory() -> None:
    """Release all memory that can be released: what tracebacks held, and what CUDA keeps in reserve."""
    gc.collect()
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim_heap()


def trim_heap() -> None:
    """Return freed memory to the system, where the C library keeps it (glibc).

    Without this the heap grows by some 30 MB in 1,000 documents, since what a shard leaves behind fragments it.
    """
    if _trim is not None:
        _trim(0)


@contextmanager
def existing_objects_frozen() -> Iterator[None]:
    """Leave the objects that exist now, such as modules and models, out of garbage collection.

    A full collection visits all of them, and the words of a shard cause several: with them 4 % of a run.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def shortage_errors() -> Iterator[None]:
    """Turn MemoryError, torch's OutOfMemoryError and errors of its allocators into a ShortageError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        import torch

        is_said = any(message in str(error) for message in _SHORTAGE_MESSAGES)
        if not is_said and not isinstance(error, MemoryError | torch.OutOfMemoryError):
            raise
        raise ShortageError(f"{type(error).__name__}: {error}") from error


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes; 0 where /proc does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
