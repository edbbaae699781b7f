"""Reading files by path or URL: their state, their bytes, their hash.

This is what planning and readers call; URLs are passed on to ``storage.remote_files``. An output folder is addressed by
the paths of ``storage.output_paths`` instead.
"""

import errno
import hashlib
from io import BufferedReader
from pathlib import Path
from stat import S_ISREG
from typing import Any

import pyarrow as pa

from concord.models.regular_files import check_regular, open_regular
from concord.pipeline.errors import InputError, StoreError
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.storage.remote_files import READ_BYTES, FileState, open_url, stat_url
from concord.pipeline.storage.store_path import StorePath
from concord.pipeline.storage.urls import is_url

# A file that is hashed is read to its end: larger requests mean fewer round trips.
_HASHED_BYTES = 8 << 20
_NO_FILE = {errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.ENAMETOOLONG}


def file_state(path: str) -> FileState:
    """Return a file's size and time of change.

    Raises:
        InputError: when there is no such file, it is not a regular file, or it may not be opened.
        StoreError: when its store fails.
    """
    if is_url(path):
        state = stat_url(path)
        if state is None:
            raise InputError(f"{path}: expected a file, found none; check that it exists")
        return state
    try:
        status = Path(path).stat()
        if not S_ISREG(status.st_mode):
            raise InputError(f"{path}: expected a file, got a folder, pipe, socket or device; remove it from the input")
        check_regular(Path(path))
    except OSError as error:
        raise read_error(path, error) from error
    return FileState(status.st_size, status.st_mtime_ns)


def open_file(path: str, *, read_bytes: int = READ_BYTES) -> BufferedReader:
    """Open a file for buffered reading; for a URL, requests have at least ``read_bytes``.

    Raises:
        OSError, InputError, StoreError: when it cannot be opened; for a URL, reading raises the latter two as well.
    """
    return open_url(path, read_bytes=read_bytes) if is_url(path) else open_regular(Path(path))


def open_for_arrow(path: str) -> Any:
    """Open a file for Arrow; raises what ``open_file`` raises."""
    return pa.PythonFile(open_url(path), mode="r") if is_url(path) else pa.OSFile(str(check_regular(Path(path))))


def file_sha256(file: str | OutputPath) -> str:
    """Return the SHA-256, in hex, of the bytes at a path, at a URL, or at a path in an output folder.

    Raises:
        InputError, StoreError: when it cannot be read.
    """
    try:
        if isinstance(file, StorePath):
            return hashlib.sha256(file.read_bytes()).hexdigest()
        with open_file(str(file), read_bytes=_HASHED_BYTES) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise read_error(str(file), error) from error


def read_error(path: str, error: OSError) -> InputError | StoreError:
    """Return the error that explains why a file cannot be read."""
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError) or error.errno in _NO_FILE:
        return InputError(f"{path}: cannot be read ({error.strerror}); check that it exists and may be read")
    return StoreError(f"{path}: reading failed ({error}); run the same command again")
