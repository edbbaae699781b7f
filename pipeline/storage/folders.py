"""Folders in which no link is followed, the links of a collection, and locks between the processes of one machine.

A collection may be made by somebody else, and a link in it lead anywhere. What writes, links or removes opens the
folder of a path here and names the file below its descriptor. From the collection's folder down, each folder is opened
by its own name and never through a link; the links above it are the user's. The links that belong to a collection are
names in such folders: they are read and replaced, not followed. A file system without links is refused with a
StoreError.
"""

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from stat import S_ISREG

from concord.models.regular_files import open_descriptor
from concord.pipeline.errors import IntegrityError, StoreError

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""The errors of a path that leads to nothing."""
_DEEPEST = 50
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_without_links: set[str] = set()


def follow_no_links_below(folder: Path) -> None:
    """Follow no link below a folder from now on, in this process."""
    _without_links.add(f"{folder}/")


@contextmanager
def folder_of(path: Path, *, make: bool = False) -> Iterator[int]:
    """Open the folder that a path is in and yield its descriptor.

    Args:
        make: create the folder, and those above it, where they are missing.

    Raises:
        IntegrityError: when a link, or something else that is no folder, is in place of a folder below one of those.
    """
    # Called many times for each shard: text is taken apart much faster than paths.
    above, slash, _ = str(path).rpartition("/")
    folder = f"{above}/" if slash else "./"
    opened = min((root for root in _without_links if folder.startswith(root)), key=len, default=folder)
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


_REFUSED = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_EXCHANGE = 2  # RENAME_EXCHANGE


def hard_link(existing: Path, new: Path) -> None:
    """Give a file a second name; FileExistsError if that name is taken, IntegrityError for what is no file."""
    try:
        with folder_of(existing) as source, folder_of(new) as target:
            if not S_ISREG(os.stat(existing.name, dir_fd=source, follow_symlinks=False).st_mode):
                raise IntegrityError(f"{existing}: expected a file, got a link or a device; remove it, and run again")
            os.link(existing.name, new.name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        raise _explained(error, new, "hard") from error


def link_target(link: Path) -> str | None:
    """Return what a symbolic link contains; None if there is no link of this name."""
    try:
        return str(link.readlink())
    except OSError as error:
        if error.errno in ABSENT | {errno.EINVAL}:
            return None
        raise


def place_link(link: Path, target: str, *, staged: Path) -> None:
    """Make a symbolic link, replacing in one step what has its name: another link, a file, or a folder.

    Args:
        staged: a free name in the same file system. A folder that was replaced has this name afterwards.
    """
    with folder_of(staged, make=True) as source, folder_of(link, make=True) as folder:
        try:
            os.symlink(target, staged.name, dir_fd=source)
        except OSError as error:
            raise _explained(error, link, "symbolic") from error
        if is_folder(link.name, folder):
            _exchange((source, staged.name), (folder, link.name))
        else:
            os.replace(staged.name, link.name, src_dir_fd=source, dst_dir_fd=folder)
        os.fsync(folder)


def _exchange(first: tuple[int, str], second: tuple[int, str]) -> None:
    """Exchange two names in opened folders in one step; in three where the system offers no such step."""
    rename = _renameat2()
    if rename is not None:
        if rename(first[0], os.fsencode(first[1]), second[0], os.fsencode(second[1]), _EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(number, os.strerror(number), second[1])
    aside = (first[0], f"{first[1].removesuffix('.staged')}-aside.staged")
    for (source, old), (folder, new) in ((second, aside), (first, second), (aside, first)):
        os.replace(old, new, src_dir_fd=source, dst_dir_fd=folder)


@cache
def _renameat2() -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    return function


def _explained(error: OSError, path: Path, kind: str) -> OSError | StoreError:
    if error.errno not in _REFUSED:
        return error
    # Linux refuses second names for files of another user that may not be written.
    owner = ", or run as the user whose parts these are" if (kind, error.errno) == ("hard", errno.EPERM) else ""
    return StoreError(
        f"{path}: {kind} links cannot be made here ({error.strerror}), which generations need: choose an output on "
        f"another file system{owner}"
    )


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file, created if absent and never removed; a process that ends in any way releases its lock.

    Yields:
        whether this process holds the lock; False only without ``wait``, while another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
