"""Keep the memory of a worker flat from shard to shard, and recognise when there is none left."""

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from concord.pipeline.errors import ShortageError

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
    except MemoryError as error:
        raise ShortageError(f"{type(error).__name__}: {error}") from error
    except RuntimeError as error:
        import torch

        if isinstance(error, torch.OutOfMemoryError):
            raise ShortageError(f"{type(error).__name__}: {error}") from error
        if not any(message in str(error) for message in _SHORTAGE_MESSAGES):
            raise
        raise ShortageError(str(error)) from error


def resident_bytes(process: str = "self") -> int | None:
    """Return the resident memory of a process, given by its id, in bytes; None where /proc does not tell."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
