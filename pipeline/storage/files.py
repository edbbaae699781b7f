"""Input files by path or URL: their state, listings of folders, their bytes, their hash.

Object stores are read by ``storage.object_stores``; every other scheme through its fsspec driver. Nothing but the
connection is cached: a cached listing would hide a change. Reading behind a URL raises InputError when access is denied
and StoreError when the store fails. An output folder is addressed by the paths of ``storage.output_paths`` instead.
"""

import errno
import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from io import BufferedReader
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
from typing_extensions import override

from concord.models.errors import ConcordError
from concord.models.regular_files import check_regular, open_regular
from concord.pipeline.errors import InputError, StoreError
from concord.pipeline.storage.object_stores import StorePath, is_store
from concord.pipeline.storage.output_paths import OutputPath

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ONE_SLASH = re.compile(r"(s3|gs|az|abfss?|https?|file):/(?!/)", re.IGNORECASE)
_SECRETS = re.compile(r"(?<=//)[^/@\s]*@|\?[^\s'\")]*")
# In these schemes the part before an @ names a container.
_CONTAINER_SCHEMES = {"abfs", "abfss", "az", "adl"}


def is_url(where: str) -> bool:
    """Tell whether an input or output is a URL rather than a path."""
    return _URL.match(where) is not None


def check_path(where: str) -> None:
    """Check that a path can be one, and is not a URL with a slash too few, which would be a folder called ``s3:``.

    Raises:
        InputError: naming what is wrong.
    """
    if "\0" in where:
        raise InputError(f"{where!a}: expected a path, got a null character in it")
    if scheme := _ONE_SLASH.match(where):
        raise InputError(f"{where}: expected a path or a URL, which begins with {scheme[1]}://")


def check_url(url: str) -> None:
    """Check that a URL contains no secrets, because plans and outputs name their input.

    Raises:
        InputError: without the secret.
    """
    shown = without_secrets(url)
    if "::" in url:
        raise InputError(f"{shown}: expected a URL of one store, got a chain of them; unpack the files first")
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if user and (":" in user or parts.scheme not in _CONTAINER_SCHEMES):
        raise InputError(
            f"{shown}: expected a URL without user and password, because outputs contain it; "
            "pass credentials through the environment of the store's driver"
        )
    if not host and parts.scheme not in {"memory", "file"}:
        raise InputError(f"{shown}: expected a host or bucket after {parts.scheme}://")
    if "?" in url and (parts.scheme in {"http", "https"} or "=" in url.partition("?")[2]):
        raise InputError(
            f"{shown}: expected a URL without a query, because outputs contain it and it may be a credential; "
            "download the file first, or use the URL scheme of its store"
        )


def without_secrets(text: str) -> str:
    """Remove users, passwords and queries from the URLs in a text."""
    return _SECRETS.sub("", text)


READ_BYTES = 1 << 20

_ETAG_KEYS = ("ETag", "etag", "Content-MD5", "Digest")
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "Last-Modified", "created")
_REFUSED = {401, 403, 404, 405, 410}


class FileState(NamedTuple):
    """Shows by comparison whether a file has changed.

    Attributes:
        size: bytes.
        changed: time of the last change in nanoseconds, or an etag; None if a store provides neither.
    """

    size: int
    changed: int | str | None


def stat_url(url: str) -> FileState | None:
    """Return a file's state; None if there is no such file (a folder is none)."""
    with _store_errors(url), suppress(FileNotFoundError):
        return FileState(*_locate(url).stat()[:2])
    return None


def walk_url(url: str) -> Iterator[tuple[str, FileState]]:
    """Yield the URL and state of every file below a folder."""
    with _store_errors(url):
        for path, state in _locate(url).walk():
            yield str(path), FileState(*state[:2])


class _DriverFile:
    """A file or folder behind the fsspec driver of its store, with those methods of a StorePath that reading needs.

    Without range requests, ``read_range`` returns all of the file.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        scheme = url.partition("://")[0]
        try:
            # Some drivers take host and port from the URL.
            self._files, _ = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except ValueError:
            raise InputError(
                f"{scheme}://: no driver knows this scheme; give a path, s3://, gs://, az:// or https://"
            ) from None
        except ImportError as error:
            raise InputError(f"{scheme}://: {error}; add its driver to this environment, on every node") from None

    def stat(self) -> FileState:
        try:
            info = self._files.info(self._url)
        except FileNotFoundError as error:
            # The http driver raises this error whatever the cause.
            if isinstance(error.__cause__, Exception) and _status(error.__cause__) != 404:
                raise error.__cause__ from None
            raise
        if info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, "no file", self._url)
        return _state(info)

    def walk(self) -> Iterator[tuple[str, FileState]]:
        folder = self._url.rstrip("/")
        root = self._files._strip_protocol(folder).rstrip("/")
        for name, info in self._files.find(folder, detail=True).items():
            yield f"{folder}/{name.removeprefix(f'{root}/')}", _state(info)

    def read_range(self, start: int, end: int, *, etag: str) -> bytes:
        content: bytes = self._files.cat_file(self._url, start=start, end=end)
        return content


class _Ranges(io.RawIOBase):
    """A file read by range requests."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._file = _locate(url)
        self._state = file_state(url)
        self._position = 0
        self._content: bytes | None = None

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._state.size}[whence]
        self._position = origin + offset
        return self._position

    @override
    def readinto(self, buffer: Any) -> int:
        content = self._take(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    @override
    def readall(self) -> bytes:
        return self._take(self._state.size)

    def _take(self, length: int) -> bytes:
        start, end = self._position, min(self._position + length, self._state.size)
        if start >= end:
            return b""
        if self._content is None:
            with _store_errors(self._url):
                content = self._file.read_range(start, end, etag=str(self._state.changed))
            if len(content) == self._state.size:
                self._content = content
            elif len(content) != end - start:
                raise StoreError(
                    f"{self._url}: expected bytes {start} to {end}, got {len(content)} bytes; it may have changed "
                    "while it was being read: run the command again"
                )
        self._position = end
        return content if self._content is None else self._content[start:end]


def _locate(url: str) -> StorePath | _DriverFile:
    # Constructed for each call: fsspec caches the connections, and separates a forked process from its parent.
    return StorePath.parse(url) if is_store(url) else _DriverFile(url)


def _state(info: Mapping[str, Any]) -> FileState:
    if info.get("size") is None:
        raise InputError(f"{info['name']}: its server reports no size; download the file first")
    etag = next((str(info[key]) for key in _ETAG_KEYS if info.get(key)), None)
    times = (_nanoseconds(info[key]) for key in _TIME_KEYS if info.get(key))
    return FileState(info["size"], etag or next(times, None))


def _nanoseconds(time: object) -> int | None:
    """Parse a time in any of the forms that drivers report."""
    if isinstance(time, str):
        with suppress(ValueError):
            time = datetime.fromisoformat(time)
    if isinstance(time, str):
        with suppress(ValueError):
            time = parsedate_to_datetime(time)
    if isinstance(time, datetime):
        time = time.timestamp()
    return int(time * 1e9) if isinstance(time, int | float) else None


@contextmanager
def _store_errors(url: str) -> Iterator[None]:
    """Turn any error of a driver into an InputError or StoreError."""
    try:
        yield
    except ConcordError:
        raise
    except Exception as error:
        status = _status(error)
        message = (getattr(error, "strerror", None) or str(error)).partition("\n")[0]
        kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        reason = f"status {status}" if status else f"{kind}{without_secrets(message)}"
        # A driver that needs more than the URL raises a TypeError.
        if status in _REFUSED or isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | TypeError):
            raise InputError(f"{url}: cannot be read ({reason}); check that it exists and may be read") from error
        raise StoreError(
            f"{url}: reading failed ({reason}); check that its host and the network are up, then run the same command "
            "again"
        ) from error


def _status(error: Exception) -> int | None:
    """Return the status of a server's response; drivers differ in the name of the attribute."""
    values = (getattr(error, name, None) for name in ("status", "code", "status_code"))
    return next((value for value in values if isinstance(value, int)), None)


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
    return BufferedReader(_Ranges(path), read_bytes) if is_url(path) else open_regular(Path(path))


def open_for_arrow(path: str) -> Any:
    """Open a file for Arrow; raises what ``open_file`` raises."""
    return pa.PythonFile(open_file(path), mode="r") if is_url(path) else pa.OSFile(str(check_regular(Path(path))))


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
