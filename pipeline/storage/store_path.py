"""Paths in object stores: ``s3://bucket/key``, ``gs://bucket/key`` and ``az://container/key``."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, TypeVar

from concord.pipeline.errors import InputError, StoreError
from concord.pipeline.storage.object_stores import SCHEMES, connect, explain

_ATTEMPTS = 3
_ATTEMPT_SECONDS = 10.0

Result = TypeVar("Result")


def is_store(url: str) -> bool:
    """Tell whether a URL is of an object store, which can be written to."""
    return url.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


class ObjectStatus(NamedTuple):
    """An object's size in bytes, and its etag, which changes whenever its content does."""

    st_size: int
    etag: str


@dataclass(frozen=True, order=True, slots=True)
class StorePath:
    """An object in a store, or a prefix of objects.

    Its methods are those of Path; each is a request, and nothing is cached. They raise FileNotFoundError when there is
    no such object, StoreError when the store fails, and InputError when it refuses or has no such bucket.

    Attributes:
        bucket: a container, in Azure.
        key: without leading or trailing slash.
    """

    scheme: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, url: str) -> "StorePath":
        """Parse the URL of an object store."""
        scheme, _, place = url.partition("://")
        bucket, _, key = place.partition("/")
        return cls(scheme, bucket, key.strip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    def __truediv__(self, below: str | os.PathLike[str]) -> "StorePath":
        return StorePath(self.scheme, self.bucket, f"{self.key}/{os.fspath(below)}".strip("/"))

    @property
    def name(self) -> str:
        """The last part of the key."""
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.key).stem

    @property
    def parent(self) -> "StorePath":
        """The prefix directly above the object."""
        return StorePath(self.scheme, self.bucket, self.key.rpartition("/")[0])

    def absolute(self) -> "StorePath":
        """Return the path itself: a StorePath is always absolute."""
        return self

    def stat(self) -> ObjectStatus:
        """Request the object's size and etag."""
        return self._request("reading", lambda store: _status(store.head(self.key)))

    def exists(self) -> bool:
        """Tell whether there is an object with this key."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def read_bytes(self) -> bytes:
        """Read the object."""
        return self._request("reading", lambda store: bytes(store.get(self.key).bytes()))

    def read_range(self, start: int, end: int, *, etag: str) -> bytes:
        """Read a non-empty half-open range of the object's bytes; StoreError if its etag is another."""
        options = {"range": (start, end), "if_match": etag}
        return self._request("reading", lambda store: bytes(store.get(self.key, options=options).bytes()))

    def walk(self) -> Iterator[tuple["StorePath", ObjectStatus]]:
        """Yield every object below this prefix and its state, ordered by key."""
        objects = self._request("listing", lambda store: store.list(self.key or None).collect(), of_bucket=True)
        entries = [(StorePath(self.scheme, self.bucket, item["path"]), _status(item)) for item in objects]
        for (path, state), following in zip_longest(entries, entries[1:]):
            # obstore drops the slash at the end of an object that only marks a folder.
            marks_folder = path == self or (following and following[0].key.startswith(f"{path.key}/"))
            if state.st_size or not marks_folder:
                yield path, state

    def glob(self, pattern: str) -> Iterator["StorePath"]:
        """Yield the objects whose keys below this one match; ``*`` matches one component of a key."""
        depth = pattern.count("/")
        prefix = f"{self.key}/" if self.key else ""
        for path, _ in self.walk():
            below = path.key.removeprefix(prefix)
            if below.count("/") == depth and PurePosixPath(below).match(pattern):
                yield path

    def unlink(self, *, missing_ok: Literal[True]) -> None:
        """Remove the object if it exists; S3 does not report which."""
        with suppress(FileNotFoundError):
            self._request("removing", lambda store: store.delete(self.key))

    def write(self, content: bytes) -> None:
        """Write the object in one request, replacing any existing one; S3 verifies its SHA-256."""
        self._request("writing", lambda store: store.put(self.key, content, use_multipart=False), of_bucket=True)

    def write_once(self, content: bytes) -> bool:
        """Create the object unless it exists; return whether it was created, which is true for one writer at most.

        False may also mean that this very writer created it: the store's response was lost and the request was sent
        again.
        """
        for _ in range(_ATTEMPTS):
            try:
                self._request("writing", lambda store: store.put(self.key, content, mode="create"), of_bucket=True)
            except FileExistsError:
                # S3 gives the same answer to requests that meet, and then neither may have created it.
                if self.exists():
                    return False
            else:
                return True
        raise StoreError(f"{self}: writing failed (other writers interfered); run the same command again")

    def _request(self, action: str, send: Callable[[Any], Result], *, of_bucket: bool = False) -> Result:
        """Send a request, and again if that may help: obstore does so itself, but not for a response that is cut off.

        Args:
            action: what it is for, as messages say it.
            of_bucket: whether only the bucket can be missing.
        """
        store = connect(self.scheme, self.bucket)
        from obstore.exceptions import BaseError

        end = time.monotonic() + _ATTEMPT_SECONDS
        left = _ATTEMPTS
        while True:
            left -= 1
            try:
                return send(store)
            except (BaseError, FileNotFoundError, ValueError) as error:
                fault = explain(error, str(self), action)
            if of_bucket and isinstance(fault, FileNotFoundError):
                fault = InputError(f"{self.scheme}://{self.bucket}: no such bucket; check that it exists, or create it")
            if not isinstance(fault, StoreError) or not left or time.monotonic() > end:
                raise fault


def _status(item: Any) -> ObjectStatus:
    # Azure quotes an etag in the response for an object, but not in a listing.
    return ObjectStatus(item["size"], '"{}"'.format((item["e_tag"] or "").strip('"')))
