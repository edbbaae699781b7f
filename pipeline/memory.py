"""Keeps the memory of a worker flat while it passes shard after shard."""

import ctypes
import os

# Torch hands convolutions, and LSTMs over batches of equal lengths, to oneDNN. Both keep something for each of the
# last 1,024 shapes seen (oneDNN its code: 300 MB; torch its descriptions of convolutions: 22 MB), and hardly a shape
# of a text comes twice. Each reads its variable when it is first used in a process.
_CACHED_SHAPES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def bound_caches() -> None:
    """Bound the caches that grow with every new shape of a batch, unless the environment sets them; call it first."""
    for name, shapes in _CACHED_SHAPES.items():
        os.environ.setdefault(name, shapes)


def return_freed() -> None:
    """Give memory that was freed back to the system, where the C library is one that keeps it (glibc).

    Left alone the heap grows by some 30 MB in 1,000 documents, since what a shard leaves behind splits its holes.
    """
    if _trim is not None:
        _trim(0)
