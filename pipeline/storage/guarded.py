"""Folders in which no link is followed: a collection may be made by somebody else, and a link in it lead anywhere.

What writes, links or removes opens the folder of a path here and names the file below its descriptor. From the guarded
folder down, each folder is opened by its own name and never through a link; the links above it are the user's. The
links that belong to a collection are names in such folders: they are read and replaced, not followed.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from concord.pipeline.errors import IntegrityError

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""The errors of a path that leads to nothing."""
_DEEPEST = 50
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_guarded: set[str] = set()


def guard(folder: Path) -> None:
    """Follow no link below a folder from now on, in this process."""
    _guarded.add(f"{folder}/")


@contextmanager
def folder_of(path: Path, *, make: bool = False) -> Iterator[int]:
    """Open the folder that a path is in and yield its descriptor.

    Args:
        make: create the folder, and those above it, where they are missing.

    Raises:
        IntegrityError: when a link, or something else that is no folder, is in place of a guarded one.
    """
    # Called many times for each shard: text is taken apart much faster than paths.
    above, slash, _ = str(path).rpartition("/")
    folder = f"{above}/" if slash else "./"
    opened = min((guarded for guarded in _guarded if folder.startswith(guarded)), key=len, default=folder)
    try:
        descriptor = os.open(opened, _FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        if not make:
            raise
        Path(opened).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(opened, _FOLDER)
    try:
        for name in folder[len(opened) : -1].split("/") if opened != folder else ():
            below = _open_below(descriptor, name, opened, make=make)
            os.close(descriptor)
            descriptor, opened = below, f"{opened}{name}/"
        yield descriptor
    except OSError as error:
        if isinstance(error.filename, str):
            error.filename = f"{opened}{error.filename}"
        raise
    finally:
        os.close(descriptor)


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder; none if there is no such folder."""
    try:
        with folder_of(folder / "*") as opened, os.scandir(opened) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:
        return []


def statuses_in(folder: Path) -> dict[str, os.stat_result]:
    """Return the states of the files in a folder, by name; none if there is no such folder."""
    found = {}
    with suppress(FileNotFoundError), folder_of(folder / "*") as opened, os.scandir(opened) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                found[entry.name] = entry.stat()
    return found


def remove_file(path: Path) -> None:
    """Remove a file or a link, if there is one."""
    with suppress(FileNotFoundError, NotADirectoryError), folder_of(path) as folder:
        os.unlink(path.name, dir_fd=folder)


def remove_tree(path: Path) -> None:
    """Remove a file, a link, or a folder with everything in it; what is gone already is no error."""
    with suppress(FileNotFoundError), folder_of(path) as folder:
        _remove(path.name, folder, path)


def is_folder(name: str, within: int) -> bool:
    """Tell whether a name in an opened folder is a folder itself, not a link to one."""
    with suppress(FileNotFoundError):
        return stat.S_ISDIR(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode)
    return False


def _remove(name: str, within: int, path: Path, *, depth: int = 0) -> None:
    if not is_folder(name, within):
        os.unlink(name, dir_fd=within)
        return
    if depth == _DEEPEST:
        raise IntegrityError(f"{path}: is nested more than {_DEEPEST} folders deep, as no collection is; remove it")
    # By descriptors, since another driver may give the folder another name meanwhile.
    inside = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=within)
    try:
        with os.scandir(inside) as entries:
            names = [entry.name for entry in entries]
        for entry in names:
            with suppress(FileNotFoundError):
                _remove(entry, inside, path, depth=depth + 1)
    finally:
        os.close(inside)
    os.rmdir(name, dir_fd=within)


def _open_below(folder: int, name: str, within: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as error:
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        raise IntegrityError(
            f"{within}{name}: expected a folder of the collection, got a link or a file; nothing is written or removed "
            "through it: remove it, and run the same command again"
        ) from None
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    return _open_below(folder, name, within, make=False)
