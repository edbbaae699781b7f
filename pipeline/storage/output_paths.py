"""Paths of an output: a folder, or below an S3 URL.

A run reads, lists and removes its files here, and writes them by ``storage.atomic_writes``. An ``StorePath`` has those
methods of a Path that this needs, so that the rest of the code does not distinguish the two.
"""

import atexit
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import pyarrow as pa

from concord.pipeline.errors import InputError, StoreError
from concord.pipeline.storage.s3 import Bucket, S3Object

SCHEME = "s3://"


class ObjectStatus(NamedTuple):
    """The part of os.stat_result that an StorePath provides; bytes."""

    st_size: int


@dataclass(frozen=True, order=True, slots=True)
class StorePath:
    """An object in S3, or a prefix of objects.

    Its methods are those of Path and raise the same errors, but StoreError when the store fails and InputError when
    there is no such bucket.

    Attributes:
        key: without leading or trailing slash.
    """

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    def __truediv__(self, below: str | os.PathLike[str]) -> "StorePath":
        return StorePath(self.bucket, f"{self.key}/{os.fspath(below)}".strip("/"))

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
        return StorePath(self.bucket, self.key.rpartition("/")[0])

    def absolute(self) -> "StorePath":
        """Return the path itself: an StorePath is always absolute."""
        return self

    def stat(self) -> ObjectStatus:
        """Request the object's size."""
        with _store_errors():
            return ObjectStatus(Bucket(self.bucket).head(self.key).size)

    def exists(self) -> bool:
        """Tell whether there is an object with this key."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def read_bytes(self) -> bytes:
        """Read the object."""
        with _store_errors():
            return Bucket(self.bucket).read(self.key)

    def glob(self, pattern: str) -> Iterator["StorePath"]:
        """Yield the objects whose keys below this one match; ``*`` matches one component of a key."""
        depth = pattern.count("/")
        prefix = f"{self.key}/" if self.key else ""
        with _bucket_errors(self.bucket):
            for found in Bucket(self.bucket).list(prefix):
                below = found.key.removeprefix(prefix)
                if below.count("/") == depth and PurePosixPath(below).match(pattern):
                    yield StorePath(self.bucket, found.key)

    def unlink(self, *, missing_ok: Literal[True]) -> None:
        """Remove the object if it exists; a store does not report which."""
        with _store_errors():
            Bucket(self.bucket).delete(self.key)

    def write(self, content: bytes) -> None:
        """Write the object, replacing any existing one."""
        with _bucket_errors(self.bucket):
            Bucket(self.bucket).put(self.key, content)

    def write_once(self, content: bytes) -> bool:
        """Create the object unless it exists; return whether it was created."""
        with _bucket_errors(self.bucket):
            return Bucket(self.bucket).put_new(self.key, content)


OutputPath = Path | StorePath


def output_path(where: str) -> OutputPath:
    """Parse a path or an S3 URL."""
    if not where.startswith(SCHEME):
        return Path(where)
    bucket, _, key = where.removeprefix(SCHEME).partition("/")
    return StorePath(bucket, key.strip("/"))


def list_files(folder: OutputPath, pattern: str) -> Sequence[OutputPath]:
    """Return the files below a folder whose paths match, sorted; none if there is no such folder."""
    if isinstance(folder, StorePath):
        return sorted(folder.glob(pattern))
    return sorted(path for path in folder.glob(pattern) if path.is_file())


class Listing:
    """Sizes of many files of an output.

    In a folder each file is looked up on demand. In S3 all are listed on first use, since one request per file would
    take minutes; files written after that are not seen. A missing file raises FileNotFoundError.
    """

    def __init__(self, output: OutputPath) -> None:
        self._output = output

    def size(self, path: OutputPath) -> int:
        """Return a file's size in bytes."""
        return self._object(path).size if isinstance(path, StorePath) else path.stat().st_size

    def version(self, path: OutputPath) -> str | None:
        """Return the etag of an object, which changes whenever its bytes do; None for a file in a folder."""
        return self._object(path).etag if isinstance(path, StorePath) else None

    def _object(self, path: StorePath) -> S3Object:
        found = self._objects.get(path.key)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(path))
        return found

    @cached_property
    def _objects(self) -> dict[str, S3Object]:
        if not isinstance(self._output, StorePath):
            return {}
        bucket, prefix = self._output.bucket, f"{self._output.key}/".lstrip("/")
        with _bucket_errors(bucket):
            return {found.key: found for found in Bucket(bucket).list(prefix)}


def arrow_source(part: OutputPath) -> Path | pa.BufferReader:
    """Return what Arrow reads a part from; one in S3 is downloaded completely, because parts are small."""
    return pa.BufferReader(part.read_bytes()) if isinstance(part, StorePath) else part


def staging_folder(output: OutputPath) -> Path:
    """Return the folder for an output's unfinished files: inside it, or for S3 a temporary one of this process."""
    return _temporary_folder(os.getpid()) if isinstance(output, StorePath) else output / "_run" / "staging"


@cache
def _temporary_folder(process: int) -> Path:
    folder = tempfile.mkdtemp(prefix=f"concord-{process}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn errors of the store into StoreError; missing objects and denied access pass through."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise StoreError(
            f"{error.filename}: {error.strerror}; check that its host and the network are up, then run the same "
            "command again"
        ) from error


@contextmanager
def _bucket_errors(bucket: str) -> Iterator[None]:
    """Turn errors of a request that names no existing object, so that only the bucket can be missing."""
    try:
        with _store_errors():
            yield
    except FileNotFoundError as error:
        raise InputError(f"{SCHEME}{bucket}: no such bucket; create it, or choose another output") from error
