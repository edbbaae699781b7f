"""Opening files that somebody else may have made: a FIFO or a device in place of one would block, or never end."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

LARGEST_JSON = 1 << 30
"""Bytes of a file of settings, plans or counts; what is larger is no such file."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; OSError if it is not a regular file."""
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


def open_descriptor(path: Path, flags: int) -> int:
    """Open a file by the flags of ``os.open``; OSError if it is not a regular file."""
    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def check_regular(path: Path) -> Path:
    """Return the path of a file that a library opens; OSError if it is not a regular file."""
    open_regular(path).close()
    return path


def read_regular(path: Path, *, largest: int = LARGEST_JSON) -> bytes:
    """Read a file; OSError if it is not a regular file or has more bytes than ``largest``."""
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > largest:
            raise OSError(errno.EINVAL, f"more than {largest:,} bytes", str(path))
        return stream.read()
