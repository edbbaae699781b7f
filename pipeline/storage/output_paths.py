"""Paths of an output: in a folder, or below the URL of an object store.

A run reads, lists and removes its files here, and writes them by ``storage.atomic_writes``. A ``StorePath`` has those
methods of a Path that this needs, so that the rest of the code does not distinguish the two.
"""

import errno
import os
import shutil
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

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


def names_in(folder: OutputPath) -> list[str]:
    """Return the names in a folder; none if there is no such folder."""
    return [entry.name for entry in _entries(folder)] if isinstance(folder, Path) else list(list_folder(folder))


class Pointer(NamedTuple):
    """What a name leads to, and since when, in Unix time.

    In a folder it is a symbolic link, in a store an object that contains what a link would.
    """

    target: str
    changed: float


def read_pointer(path: OutputPath) -> Pointer | None:
    """Return what a name leads to; None if there is no such name."""
    try:
        if isinstance(path, StorePath):
            found = path.read()
            return Pointer(found.content.decode(errors="replace"), found.modified)
        return Pointer(str(path.readlink()), path.lstat().st_mtime)
    except OSError as error:
        if error.errno not in {*ABSENT, errno.EINVAL}:
            raise
        return None


def list_files(folder: OutputPath, pattern: str) -> dict[OutputPath, ObjectStatus]:
    """Return the files below a folder whose paths match, in order; none if there is no such folder."""
    if isinstance(folder, StorePath):
        return dict(folder.glob(pattern))
    states = {path: _state(path) for path in sorted(folder.glob(pattern))}
    return {path: _status(state) for path, state in states.items() if state is not None and S_ISREG(state.st_mode)}


def list_folder(folder: OutputPath) -> dict[str, ObjectStatus]:
    """Return the states of the files in a folder, by name; asking for each of them takes several times as long."""
    if isinstance(folder, StorePath):
        return {path.name: status for path, status in folder.walk() if path.parent == folder}
    return {entry.name: _status(state) for entry in _entries(folder) if (state := _state(entry)) is not None}


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        if error.errno not in ABSENT:
            raise
        return []


def _state(file: Path | os.DirEntry[str]) -> os.stat_result | None:
    """Return the state of a file, that of the one that a link leads to; None if there is none."""
    try:
        return file.stat()
    except OSError as error:
        if error.errno not in ABSENT:
            raise
        return None


def _status(state: os.stat_result) -> ObjectStatus:
    return ObjectStatus(state.st_size, f"{state.st_mtime_ns}-{state.st_ino}", state.st_mtime)


def arrow_source(part: OutputPath) -> Path | pa.BufferReader:
    """Return what Arrow reads a part from; one in a store is downloaded completely, because parts are small.

    Raises:
        OSError: when it is missing, or not a regular file.
    """
    return pa.BufferReader(part.read_bytes()) if isinstance(part, StorePath) else check_regular(part)
