"""Keeps the memory of a worker flat while it passes shard after shard, and tells when there is none left."""

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from concord.pipeline.errors import ShortageError

# Torch hands convolutions, and LSTMs over batches of equal lengths, to oneDNN. Both keep something for each of the
# last 1,024 shapes seen (oneDNN its code: 300 MB; torch its descriptions of convolutions: 22 MB), and hardly a shape
# of a text comes twice. Each reads its variable when it is first used in a process.
_CACHED_SHAPES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}
# Faults of torch that are a lack of memory and no OutOfMemoryError: of its CPU allocator, of CUDA's libraries, and one
# that Stanza has put into words of its own.
_SHORTAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "_STATUS_ALLOC_FAILED",
    "CUDA out of memory",
    "CUDA error: out of memory",
)
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def bound_caches() -> None:
    """Bound the caches that grow with every new shape of a batch, unless the environment sets them; call it first."""
    for name, shapes in _CACHED_SHAPES.items():
        os.environ.setdefault(name, shapes)


def free_all() -> None:
    """Give back all that can be had after a lack of memory: what tracebacks held, and what CUDA keeps in reserve."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return_freed()


def return_freed() -> None:
    """Give memory that was freed back to the system, where the C library is one that keeps it (glibc).

    Left alone the heap grows by some 30 MB in 1,000 documents, since what a shard leaves behind splits its holes.
    """
    if _trim is not None:
        _trim(0)


@contextmanager
def shortages() -> Iterator[None]:
    """Turn whatever says that memory has run out into one error.

    Raises:
        ShortageError: in the place of MemoryError, torch's OutOfMemoryError and faults of its allocators.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ShortageError(f"{type(error).__name__}: {error}") from error
    except RuntimeError as error:
        if not any(shortage in str(error) for shortage in _SHORTAGES):
            raise
        raise ShortageError(str(error)) from error


def resident_bytes(process: str = "self") -> int | None:
    """Give the memory that a process, named by its number, holds (RSS); None where the system does not tell."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
