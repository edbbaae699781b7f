"""Files behind URLs: looked at, listed, and read in ranges.

S3 is read through boto3, by which it is also written; every other scheme through its driver of fsspec. Nothing is
remembered of a store but the connection: a listing that was kept would hide a change.
"""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Protocol

import fsspec
from typing_extensions import override

from concord.pipeline.errors import ConcordError, InputError, StoreError
from concord.pipeline.storage.s3 import Bucket
from concord.pipeline.storage.urls import without_secrets

_S3_SCHEME = "s3://"
_ETAG_KEYS = ("ETag", "etag", "Content-MD5", "Digest")
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "Last-Modified", "created")
_REFUSED = {401, 403, 404, 405, 410}
_READ_BYTES = 1 << 20


class FileState(NamedTuple):
    """What shows that a file has changed.

    Attributes:
        size: bytes.
        changed: nanoseconds of the last change, or an etag; None where a store gives neither.
    """

    size: int
    changed: int | str | None


def stat_url(url: str) -> FileState | None:
    """Look at a file; None where none has this name, though a folder may.

    Raises:
        InputError: when it may not be looked at.
        StoreError: when its store cannot be reached.
    """
    with _told(url):
        store, path = _located(url)
        return store.look(path)


def walk_url(url: str) -> Iterator[tuple[str, FileState]]:
    """Give the URL and state of every file below a folder.

    Raises:
        InputError: when it may not be listed.
        StoreError: when its store cannot be reached.
    """
    with _told(url):
        store, path = _located(url)
        for below, state in store.walk(path.rstrip("/")):
            yield f"{url.rstrip('/')}/{below}", state


def open_url(url: str, *, read_bytes: int = _READ_BYTES) -> io.BufferedReader:
    """Open a file for reading.

    Args:
        read_bytes: bytes that are asked for at once, at least.

    Raises:
        InputError: when it is not there or may not be read, also from the stream.
        StoreError: when its store fails, or the file changes while it is being read, also from the stream.
    """
    return io.BufferedReader(_Ranges(url), read_bytes)


class RemoteStore(Protocol):
    def look(self, path: str) -> FileState | None:
        """Give a file's state; None where there is no file of the name."""

    def walk(self, path: str) -> Iterator[tuple[str, FileState]]:
        """Give the files below a folder, by their paths below it."""

    def read(self, path: str, start: int, end: int, *, state: FileState) -> bytes:
        """Give a range of a file; a store that knows no ranges gives it whole."""


class _S3:
    def look(self, path: str) -> FileState | None:
        name, key = self._split(path)
        if not key:
            return None
        try:
            found = Bucket(name).look(key)
        except FileNotFoundError:
            return None
        return FileState(found.size, found.etag)

    def walk(self, path: str) -> Iterator[tuple[str, FileState]]:
        name, key = self._split(path)
        prefix = f"{key}/" if key else ""
        for found in Bucket(name).list(prefix):
            yield found.key.removeprefix(prefix), FileState(found.size, found.etag)

    def read(self, path: str, start: int, end: int, *, state: FileState) -> bytes:
        name, key = self._split(path)
        return Bucket(name).read(key, start=start, end=end, etag=str(state.changed))

    @staticmethod
    def _split(path: str) -> tuple[str, str]:
        name, _, key = path.partition("/")
        return name, key


class _Driver:
    """A store behind its driver of fsspec."""

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0]
        try:
            # Some drivers take host and port from the URL.
            self._files, _ = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except ValueError:
            raise InputError(
                f"{scheme}://: no driver knows this scheme; give a path, s3://, https:// or gs://"
            ) from None
        except ImportError as error:
            raise InputError(f"{scheme}://: {error}; add its driver to this environment, on every node") from None

    def look(self, path: str) -> FileState | None:
        try:
            found = self._files.info(path)
        except FileNotFoundError as error:
            # The driver of http gives this error whatever the cause.
            if isinstance(error.__cause__, Exception) and _status(error.__cause__) != 404:
                raise error.__cause__ from None
            return None
        return _state(found) if found["type"] == "file" else None

    def walk(self, path: str) -> Iterator[tuple[str, FileState]]:
        root = self._files._strip_protocol(path).rstrip("/")
        for name, found in self._files.find(path, detail=True).items():
            yield name.removeprefix(f"{root}/"), _state(found)

    def read(self, path: str, start: int, end: int, *, state: FileState) -> bytes:
        content: bytes = self._files.cat_file(path, start=start, end=end)
        return content


class _Ranges(io.RawIOBase):
    """A file that is read by asking for ranges of it."""

    def __init__(self, url: str) -> None:
        super().__init__()
        state = stat_url(url)
        if state is None:
            raise InputError(f"{url}: expected a file, found none; check that it is there")
        self._url = url
        self._store, self._path = _located(url)
        self._state = state
        self._position = 0
        self._whole: bytes | None = None

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
        if self._whole is None:
            with _told(self._url):
                content = self._store.read(self._path, start, end, state=self._state)
            if len(content) == self._state.size:
                self._whole = content
            elif len(content) != end - start:
                raise StoreError(
                    f"{self._url}: expected bytes {start} to {end}, got {len(content)} bytes; it may have changed "
                    "while it was being read: run the command again"
                )
        self._position = end
        return content if self._whole is None else self._whole[start:end]


def _located(url: str) -> tuple[RemoteStore, str]:
    """Give the store of a URL and the path that it takes."""
    if url.startswith(_S3_SCHEME):
        return _S3(), url.removeprefix(_S3_SCHEME)
    # Made anew each time: fsspec keeps the connections, and knows a forked process from its parent.
    return _Driver(url), url


def _state(found: Mapping[str, Any]) -> FileState:
    if found.get("size") is None:
        raise InputError(f"{found['name']}: its server gives no size; fetch the file first")
    etag = next((str(found[key]) for key in _ETAG_KEYS if found.get(key)), None)
    times = (_nanoseconds(found[key]) for key in _TIME_KEYS if found.get(key))
    return FileState(found["size"], etag or next(times, None))


def _nanoseconds(time: object) -> int | None:
    """Read a time in whatever form a driver gives it."""
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
def _told(url: str) -> Iterator[None]:
    """Turn whatever a driver raises into our errors."""
    try:
        yield
    except ConcordError:
        raise
    except Exception as error:
        raise _fault(url, error) from error


def _fault(url: str, error: Exception) -> ConcordError:
    status = _status(error)
    told = (getattr(error, "strerror", None) or str(error)).partition("\n")[0]
    kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
    reason = f"status {status}" if status else f"{kind}{without_secrets(told)}"
    # A TypeError is what a driver raises that needs more than the URL tells.
    if status in _REFUSED or isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | TypeError):
        return InputError(f"{url}: cannot be read ({reason}); check that it is there and may be read")
    return StoreError(
        f"{url}: reading failed ({reason}); see that its host and the network are up, then run the same command again"
    )


def _status(error: Exception) -> int | None:
    """Give the status with which a server has answered; drivers name the attribute in several ways."""
    answers = (getattr(error, name, None) for name in ("status", "code", "status_code"))
    return next((answer for answer in answers if isinstance(answer, int)), None)
