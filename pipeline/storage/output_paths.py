"""Paths of an output: in a folder, or below the URL of an object store.

A run reads, lists and removes its files here, and writes them by ``storage.atomic_writes``. A ``StorePath`` has those
methods of a Path that this needs, so that the rest of the code does not distinguish the two.
"""

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from concord.models.regular_files import check_regular, read_regular
from concord.pipeline.errors import IntegrityError
from concord.pipeline.storage.object_stores import ObjectStatus, StorePath, is_store

OutputPath = Path | StorePath

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""The errors of a path that leads to nothing."""


def output_path(where: str) -> OutputPath:
    """Parse a path or the URL of an object store."""
    return StorePath.parse(where) if is_store(where) else Path(where)


def read_bytes(path: OutputPath) -> bytes:
    """Read a small file of an output; FileNotFoundError if there is none, IntegrityError if it cannot be read."""
    if isinstance(path, StorePath):
        return path.read_bytes()
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read ({error.strerror}); check the folder") from error


def remove(path: OutputPath) -> None:
    """Remove a file of an output, or a folder with everything in it; links are removed themselves."""
    if isinstance(path, StorePath):
        path.unlink(missing_ok=True)
        return
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except RecursionError:
        raise IntegrityError(f"{path}: its folders are nested deeper than those of a collection; remove it") from None
    except OSError as error:
        if error.errno not in ABSENT:
            raise


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder; none if there is no such folder."""
    try:
        return [path.name for path in folder.iterdir()]
    except OSError as error:
        if error.errno in ABSENT:
            return []
        raise


def list_files(folder: OutputPath, pattern: str) -> Sequence[OutputPath]:
    """Return the files below a folder whose paths match, sorted; none if there is no such folder."""
    if isinstance(folder, StorePath):
        return sorted(folder.glob(pattern))
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def list_folder(folder: OutputPath) -> dict[str, ObjectStatus]:
    """Return the states of the files in a folder, by name; asking for each of them takes several times as long."""
    if isinstance(folder, StorePath):
        return {path.name: status for path, status in folder.walk() if path.parent == folder}
    found = {}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                status = entry.stat()
                found[entry.name] = ObjectStatus(status.st_size, f"{status.st_mtime_ns}-{status.st_ino}")
    return found


class Listing:
    """Sizes of many files of an output.

    In a folder each file is looked up on demand. In a store all are listed on first use, since one request per file
    would take minutes; files written after that are not seen. A missing file raises FileNotFoundError.
    """

    def __init__(self, output: OutputPath) -> None:
        self._output = output

    def size(self, path: OutputPath) -> int:
        """Return a file's size in bytes."""
        return self._object(path).st_size if isinstance(path, StorePath) else path.stat().st_size

    def _object(self, path: StorePath) -> ObjectStatus:
        if path not in self._objects:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(path))
        return self._objects[path]

    @cached_property
    def _objects(self) -> dict[StorePath, ObjectStatus]:
        return dict(self._output.walk()) if isinstance(self._output, StorePath) else {}


def arrow_source(part: OutputPath) -> Path | pa.BufferReader:
    """Return what Arrow reads a part from; one in a store is downloaded completely, because parts are small.

    Raises:
        OSError: when it is missing, or not a regular file.
    """
    return pa.BufferReader(part.read_bytes()) if isinstance(part, StorePath) else check_regular(part)
