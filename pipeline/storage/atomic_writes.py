"""Files that survive a crash: what bears its final name is whole and on disk.

A file is first written in a staging folder, then takes its name in one step, either over what stood there
(``write_over``) or only if nothing did (``write_once``). A driver that finishes a run sweeps that folder, so a staged
file of another driver may vanish at any time.

A store takes a file whole or not at all, so one of S3 is written in that one step; ``write_once`` is then a write on
the condition that there is none.
"""

import errno
import os
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from concord.pipeline.errors import StoreError
from concord.pipeline.storage.output_paths import OutputPath, S3Path

CRASH_VARIABLE = "CONCORD_CRASH_AT"
CRASH_STEPS = ("plan", "write", "fsync", "rename", "commit", "swap", "sweep")

# Faults of the store and not of the program; EFBIG is what a file size limit gives.
_STORE_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE, errno.EROFS}
_SWEEPS_BORNE = 5
_reached: Counter[str] = Counter()

Result = TypeVar("Result")


def crash_point(step: str) -> None:
    """Say that a step has just been done; tests have the process killed here.

    ``CONCORD_CRASH_AT=commit`` kills it with SIGKILL when it reaches ``commit`` first, ``commit:3`` when it does so for
    the third time. Without the variable nothing happens. The steps, in the order of a run: ``plan`` (the plan
    stands), ``write`` (bytes given to a staged file), ``fsync`` (they are on disk), ``rename`` (a part has its final
    name), ``commit`` (a commit record stands), ``swap`` (the manifest stands), ``sweep`` (strays are gone).
    """
    wanted = os.environ.get(CRASH_VARIABLE)
    if not wanted:
        return
    name, _, count = wanted.partition(":")
    if name != step:
        return
    _reached[step] += 1
    if _reached[step] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def store_errors(place: OutputPath) -> Iterator[None]:
    """Turn faults of the store (no space, quota, input/output) into StoreError; other OSErrors pass.

    Raises:
        StoreError: naming the place and what to do.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _STORE_FAULTS:
            raise
        raise StoreError(
            f"{place}: {error.strerror}; nothing was committed by this write. "
            "Make room or mend the store, then run the same command again"
        ) from error


def stage_file(folder: Path, fill: Callable[[BinaryIO], None]) -> Path:
    """Write a new file of a random name, flushed to disk; on any failure it is removed.

    Args:
        folder: made if absent; on the file system of the final place.
        fill: writes the bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / f"{uuid.uuid4().hex}.staged"
    try:
        with staged.open("xb") as stream:
            fill(stream)
            stream.flush()
            crash_point("write")
            os.fsync(stream.fileno())
        crash_point("fsync")
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    return staged


def move_into_place(staged: Path, final: OutputPath) -> None:
    """Give a staged file or folder its final name, over whatever file or empty folder bore it; to S3 go files only."""
    if isinstance(final, S3Path):
        final.write(staged.read_bytes())
        staged.unlink()
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    staged.replace(final)
    sync_folder(final.parent)


@contextmanager
def stage_folder(final: Path) -> Iterator[Path]:
    """Give a new folder to fill; then it takes its final name, all its files on disk. On any failure it is removed.

    Args:
        final: absent, or an empty folder.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    staged = final.parent / f"{uuid.uuid4().hex}.staged"
    staged.mkdir()
    try:
        yield staged
        crash_point("write")
        for path in staged.iterdir():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        sync_folder(staged)
        crash_point("fsync")
        move_into_place(staged, final)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise


def write_atomically(final: OutputPath, content: bytes, *, staging: Path) -> None:
    """Write a small file in one step, over whatever bore its name."""
    if isinstance(final, S3Path):
        final.write(content)
        return

    def place(staged: Path) -> None:
        move_into_place(staged, final)

    _stage_and(place, content, staging)


def write_unsynced(final: OutputPath, content: bytes) -> None:
    """Write a small file in one step without flushing it: it outlives this process, not the machine."""
    if isinstance(final, S3Path):
        final.write(content)
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    staged = final.with_name(f"{uuid.uuid4().hex}.staged")
    staged.write_bytes(content)
    # A driver that finishes the run sweeps this folder, and then needs no such file.
    with suppress(FileNotFoundError):
        staged.replace(final)


def write_once(final: OutputPath, content: bytes, *, staging: Path) -> bool:
    """Write a small file in one step if nothing bears its name.

    Returns:
        False when something bore the name already.

    Raises:
        StoreError: where the file system has no hard links.
    """
    if isinstance(final, S3Path):
        return final.write_once(content)

    def place(staged: Path) -> bool:
        try:
            return _link(staged, final)
        finally:
            staged.unlink(missing_ok=True)

    return _stage_and(place, content, staging)


def _stage_and(place: Callable[[Path], Result], content: bytes, staging: Path) -> Result:
    """Stage bytes and place them; again, should another driver sweep the staging folder in between."""

    def fill(stream: BinaryIO) -> None:
        stream.write(content)

    for _ in range(_SWEEPS_BORNE):
        with suppress(FileNotFoundError):
            return place(stage_file(staging, fill))
    return place(stage_file(staging, fill))


def _link(staged: Path, final: Path) -> bool:
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(staged, final)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}:
            raise
        raise StoreError(f"{final}: the file system has no hard links, which commits need; choose another") from error
    sync_folder(final.parent)
    return True


def sync_folder(folder: OutputPath) -> None:
    """Flush a folder's entries to disk; S3 has done so before it answers."""
    if isinstance(folder, S3Path):
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
