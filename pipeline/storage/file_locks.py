"""Locks between the processes of one machine."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from concord.models.regular_files import open_descriptor


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file, created if absent and never removed; a process that ends in any way releases its lock.

    Yields:
        whether this process holds the lock; False only without ``wait``, while another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
