"""Links in a file system: hard links to parts, and symbolic links that are replaced in one step.

A file system without links is refused with a StoreError.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from concord.pipeline.errors import StoreError
from concord.pipeline.storage.atomic_writes import sync_folder

_REFUSED = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_CURRENT_FOLDER = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE


def hard_link(existing: Path, new: Path) -> None:
    """Give a file a second name; FileExistsError if that name is taken."""
    try:
        os.link(existing, new)
    except OSError as error:
        raise _explained(error, new, "hard") from error


def link_target(link: Path) -> str | None:
    """Return what a symbolic link contains; None if there is no link of this name."""
    try:
        return str(link.readlink())
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.EINVAL, errno.ENOTDIR}:
            return None
        raise


def is_real_folder(path: Path) -> bool:
    """Tell whether a path is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def place_link(link: Path, target: str, *, staged: Path) -> None:
    """Make a symbolic link, replacing in one step what has its name: another link, a file, or a folder.

    Args:
        staged: a free name in the same file system. A folder that was replaced has this name afterwards.
    """
    staged.parent.mkdir(parents=True, exist_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        staged.symlink_to(target)
    except OSError as error:
        raise _explained(error, link, "symbolic") from error
    if is_real_folder(link):
        _exchange(staged, link)
    else:
        staged.replace(link)
    sync_folder(link.parent)


def remove_tree(path: Path) -> None:
    """Remove a file, a link, or a folder with everything in it; what is gone already is no error."""
    with suppress(FileNotFoundError):
        if not is_real_folder(path):
            path.unlink()
            return
        for entry in list(path.iterdir()):
            remove_tree(entry)
        path.rmdir()


def _exchange(first: Path, second: Path) -> None:
    """Exchange two names in one step; in three where the system offers no such step."""
    rename = _renameat2()
    if rename is not None:
        if rename(_CURRENT_FOLDER, os.fsencode(first), _CURRENT_FOLDER, os.fsencode(second), _EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(number, os.strerror(number), str(second))
    aside = first.with_name(f"{first.stem}-aside.staged")
    second.replace(aside)
    first.replace(second)
    aside.replace(first)


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
