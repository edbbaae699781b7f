"""Opening files that somebody else may have made: a FIFO or a device in place of one would block, or never end."""

import errno
import hashlib
import os
import stat
from io import BufferedReader
from pathlib import Path

from concord.models.errors import ModelError

LARGEST_JSON = 1 << 30
"""Bytes of a file of settings, plans or counts; what is larger is no such file."""
_LARGEST_FILE = 16 << 30
"""Bytes: what is larger is no tagger's, and would be hashed for minutes."""


def open_regular(path: Path, *, largest: int | None = None) -> BufferedReader:
    """Open a file for reading; OSError if it is not a regular file of at most so many bytes."""
    return os.fdopen(open_descriptor(path, os.O_RDONLY, largest=largest), "rb")


def open_descriptor(path: Path, flags: int, *, largest: int | None = None) -> int:
    """Open a file by the flags of ``os.open``; OSError as ``open_regular``."""
    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and (largest is None or status.st_size <= largest):
        return descriptor
    os.close(descriptor)
    fault = f"more than {largest:,} bytes" if stat.S_ISREG(status.st_mode) else "not a regular file"
    raise OSError(errno.EINVAL, fault, str(path))


def check_regular(path: Path) -> Path:
    """Return the path of a file that a library opens; OSError if it is not a regular file."""
    open_regular(path).close()
    return path


def read_regular(path: Path, *, largest: int = LARGEST_JSON) -> bytes:
    """Read a file; OSError if it is not a regular file or has more bytes than ``largest``."""
    with open_regular(path, largest=largest) as stream:
        return stream.read()


def file_digest(path: Path) -> bytes:
    """Return the sha256 of a file of a saved tagger; raise ModelError if it cannot be read."""
    try:
        with open_regular(path, largest=_LARGEST_FILE) as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
