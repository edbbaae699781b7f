"""Links in a file system: hard links to parts, and symbolic links that are replaced in one step.

A file system without links is refused with a StoreError.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from stat import S_ISREG

from concord.pipeline.errors import IntegrityError, StoreError
from concord.pipeline.storage.guarded import ABSENT, folder_of, is_folder

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
