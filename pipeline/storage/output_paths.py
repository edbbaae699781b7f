"""Where an annotated collection lies: in a folder, or below a URL of S3.

What a run does with its files is little: read, list and remove them, and ``storage.atomic_writes`` writes them. For
that an ``S3Path`` has the methods of a Path, so that nothing else need tell the two apart.
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
    """What is asked of a file's status; bytes."""

    st_size: int


@dataclass(frozen=True, order=True, slots=True)
class S3Path:
    """An object of S3, or all that lie below its key.

    Its methods are those of Path and raise what they raise, but StoreError where the store fails and InputError where
    there is no such bucket.

    Attributes:
        key: without a slash at either end.
    """

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    def __truediv__(self, below: str | os.PathLike[str]) -> "S3Path":
        return S3Path(self.bucket, f"{self.key}/{os.fspath(below)}".strip("/"))

    @property
    def name(self) -> str:
        """The last part of the key."""
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.key).stem

    @property
    def parent(self) -> "S3Path":
        """What the object lies directly below."""
        return S3Path(self.bucket, self.key.rpartition("/")[0])

    def absolute(self) -> "S3Path":
        """Give the place itself."""
        return self

    def stat(self) -> ObjectStatus:
        """Ask for the object's size."""
        with _store_errors():
            return ObjectStatus(Bucket(self.bucket).look(self.key).size)

    def exists(self) -> bool:
        """Say whether there is an object of this key."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def read_bytes(self) -> bytes:
        """Read the object."""
        with _store_errors():
            return Bucket(self.bucket).read_whole(self.key)

    def glob(self, pattern: str) -> Iterator["S3Path"]:
        """Give the objects whose keys below this one match; ``*`` stands for one part of a key."""
        depth = pattern.count("/")
        prefix = f"{self.key}/" if self.key else ""
        with _bucket_errors(self.bucket):
            for found in Bucket(self.bucket).list(prefix):
                below = found.key.removeprefix(prefix)
                if below.count("/") == depth and PurePosixPath(below).match(pattern):
                    yield S3Path(self.bucket, found.key)

    def unlink(self, *, missing_ok: Literal[True]) -> None:
        """Remove the object, if there is one: a store does not tell."""
        with _store_errors():
            Bucket(self.bucket).delete(self.key)

    def write(self, content: bytes) -> None:
        """Write the object whole, over whatever bore its key."""
        with _bucket_errors(self.bucket):
            Bucket(self.bucket).put(self.key, content)

    def write_once(self, content: bytes) -> bool:
        """Write the object whole, unless something bears its key; say whether it was written."""
        with _bucket_errors(self.bucket):
            return Bucket(self.bucket).put_new(self.key, content)


OutputPath = Path | S3Path


def output_path(where: str) -> OutputPath:
    """Give the place of an output."""
    if not where.startswith(SCHEME):
        return Path(where)
    bucket, _, key = where.removeprefix(SCHEME).partition("/")
    return S3Path(bucket, key.strip("/"))


def list_files(folder: OutputPath, pattern: str) -> Sequence[OutputPath]:
    """Give the files below a folder whose paths match, sorted; none where there is no such folder."""
    if isinstance(folder, S3Path):
        return sorted(folder.glob(pattern))
    return sorted(path for path in folder.glob(pattern) if path.is_file())


class Listing:
    """Sizes of many files of a collection, asked for one after the other.

    Of a folder each is looked up when it is asked for. Of S3 all are listed at the first question, since a request a
    file would cost minutes; what is written after that is not seen.
    """

    def __init__(self, output: OutputPath) -> None:
        self._output = output

    def size(self, path: OutputPath) -> int:
        """Give a file's size in bytes.

        Raises:
            FileNotFoundError: when there is none.
            StoreError: when the store fails.
        """
        return self._object(path).size if isinstance(path, S3Path) else path.stat().st_size

    def version(self, path: OutputPath) -> str | None:
        """Give what stays as long as a file's bytes do: the etag of S3, None for a file of a folder.

        Raises:
            FileNotFoundError: when S3 has no such object.
            StoreError: when the store fails.
        """
        return self._object(path).etag if isinstance(path, S3Path) else None

    def _object(self, path: S3Path) -> S3Object:
        found = self._objects.get(path.key)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(path))
        return found

    @cached_property
    def _objects(self) -> dict[str, S3Object]:
        output = self._output
        if not isinstance(output, S3Path):
            return {}
        with _bucket_errors(output.bucket):
            return {found.key: found for found in Bucket(output.bucket).list(f"{output.key}/".lstrip("/"))}


def arrow_source(part: OutputPath) -> Path | pa.BufferReader:
    """Give what Arrow reads a part from; one of S3 is fetched whole, as a shard's part is small.

    Raises:
        FileNotFoundError: when it is missing in S3.
        StoreError: when the store fails.
    """
    return pa.BufferReader(part.read_bytes()) if isinstance(part, S3Path) else part


def staging_folder(output: OutputPath) -> Path:
    """Give the folder for a collection's unfinished files: below it, or for S3 one of this process's own."""
    return _own_folder(os.getpid()) if isinstance(output, S3Path) else output / "_run" / "staging"


@cache
def _own_folder(process: int) -> Path:
    folder = tempfile.mkdtemp(prefix=f"concord-{process}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn faults of the store into StoreError; that something is missing or denied passes."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise StoreError(
            f"{error.filename}: {error.strerror}; see that its host and the network are up, then run the same command "
            "again"
        ) from error


@contextmanager
def _bucket_errors(bucket: str) -> Iterator[None]:
    """Turn the faults of a request that needs no object, so that only the bucket may be missing."""
    try:
        with _store_errors():
            yield
    except FileNotFoundError as error:
        raise InputError(f"{SCHEME}{bucket}: no such bucket; make it, or give another output") from error
