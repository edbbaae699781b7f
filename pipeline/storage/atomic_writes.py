"""Writing files that survive a crash: a file under its final name is complete and on disk.

Which to call: ``write_atomically`` to replace a small file, ``write_once`` to create one that another process may be
creating too, ``write_unsynced`` for notes that need not survive the machine, ``stage_file`` and ``move_into_place`` for
large files, ``stage_folder`` for a folder, ``write_compressed`` for text whose suffix may ask for compression.

A file is first written to a staging folder and then renamed. A run that is finished empties that folder. A store takes
an object completely or not at all, so there each write is a single request of bytes in memory, and nothing is staged;
``write_once`` makes it conditional on there being no such object.
"""

import errno
import os
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, Literal, cast, get_args

import pyarrow as pa

from concord.pipeline.errors import IntegrityError, StoreError
from concord.pipeline.storage.object_stores import StorePath
from concord.pipeline.storage.output_paths import OutputPath, remove

CRASH_VARIABLE = "CONCORD_CRASH_AT"
RunStep = Literal["plan", "write", "fsync", "rename", "commit", "names", "publish", "swap", "sweep"]
CrashStep = RunStep | Literal["link"]
CRASH_STEPS: tuple[RunStep, ...] = get_args(RunStep)
_ALL_STEPS = {*CRASH_STEPS, "link"}
CODECS = {".gz": "gzip", ".zst": "zstd"}
"""The compressions of text files, by suffix."""

# Faults of the store, not of the program; EFBIG is the error of a file size limit.
_STORE_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE, errno.EROFS}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_reached: Counter[str] = Counter()


@contextmanager
def store_errors(path: OutputPath, *, state: str | None = None) -> Iterator[None]:
    """Turn OSErrors caused by the store (no space, quota, input/output) into StoreError; others pass through.

    Args:
        state: what holds now, in words, where no path is the user's mistake: there every OSError is the store's.
    """
    try:
        yield
    except OSError as error:
        if state is None and error.errno not in _STORE_ERRNOS:
            raise
        place = path if state is None else error.filename or path
        raise StoreError(
            f"{place}: {error.strerror or error}; {state or 'nothing was committed by this write'}. "
            "Free some space or repair the store, then run the same command again"
        ) from error


def write_atomically(final: OutputPath, content: bytes, *, staging: Path | None = None) -> None:
    """Atomically write a small file, replacing any existing one.

    Args:
        staging: on the file system of the final path; by default its own folder. A store needs none.
    """
    if isinstance(final, StorePath):
        final.write(content)
    else:
        move_into_place(stage_file(staging or final.parent, lambda stream: stream.write(content)), final)


def write_once(final: OutputPath, content: bytes, *, staging: Path | None = None) -> bool:
    """Atomically create a small file unless it exists already; return whether it was created.

    Args:
        staging: as in ``write_atomically``.

    Raises:
        StoreError: when the file system has no hard links.
    """
    if isinstance(final, StorePath):
        return final.write_if(content, None) is not None
    staged = stage_file(staging or final.parent, lambda stream: stream.write(content))
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        hard_link(staged, final)
        sync(final.parent)
    except FileExistsError:
        return False
    finally:
        staged.unlink(missing_ok=True)
    return True


def write_unsynced(final: OutputPath, content: bytes) -> None:
    """Atomically write a small file without flushing it to disk: it survives this process, but not the machine."""
    if isinstance(final, StorePath):
        final.write(content)
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    staged = final.with_name(f"{uuid.uuid4().hex}.staged")
    staged.write_bytes(content)
    staged.replace(final)


def write_compressed(path: Path, pieces: Iterable[str]) -> None:
    """Atomically write a text file, replacing any existing one; the suffixes ``.gz`` and ``.zst`` compress it.

    Args:
        pieces: the text in order; never held in memory as a whole.

    Raises:
        StoreError: when there is no space.
    """

    def fill(stream: BinaryIO) -> None:
        codec = CODECS.get(path.suffix.lower())
        with pa.CompressedOutputStream(pa.PythonFile(stream, mode="w"), codec) if codec else stream as text:
            for piece in pieces:
                text.write(piece.encode())

    with store_errors(path):
        move_into_place(stage_file(path.parent, fill), path)


def stage_file(folder: Path, fill: Callable[[BinaryIO], object]) -> Path:
    """Write a new file with a random name and flush it to disk; on any failure it is removed.

    Args:
        folder: created if missing; on the file system of the final path.
        fill: writes to the file, and may close it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / f"{uuid.uuid4().hex}.staged"
    try:
        with staged.open("xb") as stream:
            fill(stream)
        crash_point("write")
        sync(staged)
        crash_point("fsync")
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    return staged


def move_into_place(staged: Path, final: Path) -> None:
    """Rename a staged file or folder, replacing an existing file or empty folder."""
    final.parent.mkdir(parents=True, exist_ok=True)
    staged.replace(final)
    sync(final.parent)


@contextmanager
def stage_folder(final: Path) -> Iterator[Path]:
    """Yield a new folder to fill, flush its files to disk and rename it; on any failure it is removed.

    Args:
        final: missing, or an empty folder.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    staged = final.parent / f"{uuid.uuid4().hex}.staged"
    staged.mkdir()
    try:
        yield staged
        crash_point("write")
        for path in (*staged.iterdir(), staged):
            sync(path)
        crash_point("fsync")
        move_into_place(staged, final)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def crash_point(step: CrashStep) -> None:
    """Mark that a step has just been done; tests kill the process here.

    With ``CONCORD_CRASH_AT=commit`` the process is killed by SIGKILL when it first reaches ``commit``, with
    ``commit:3`` when it does so for the third time. Without the variable nothing happens. The steps, in the order of a
    run: ``plan`` (the plan is written), ``write`` (a staged file's bytes are written), ``fsync`` (they are on disk),
    ``rename`` (a part has its final name), ``commit`` (a commit record exists), ``names`` (the table of names is
    written), ``publish`` (a generation is complete), ``swap`` (it is the current one), ``sweep`` (orphans are removed);
    in a new folder also ``link`` (a name leads to the current generation).

    Raises:
        ValueError: when the variable names no step.
    """
    name, _, count = os.environ.get(CRASH_VARIABLE, "").partition(":")
    if name and name not in _ALL_STEPS:
        raise ValueError(f"{CRASH_VARIABLE}: expected one of {', '.join(sorted(_ALL_STEPS))}, got {name!r}")
    if name != step:
        return
    _reached[step] += 1
    if _reached[step] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)


def hard_link(existing: Path, new: Path) -> None:
    """Give a file a second name; FileExistsError if that name is taken, IntegrityError for what is no file."""
    if not S_ISREG(existing.lstat().st_mode):
        raise IntegrityError(f"{existing}: expected a file, got a link or a device; remove it, and run again")
    try:
        os.link(existing, new, follow_symlinks=False)
    except OSError as error:
        raise _explain(error, new, "hard") from error


def write_pointer(path: OutputPath, target: str, *, staged: OutputPath) -> None:
    """Atomically let a name lead to another one, replacing any existing link or file; a folder is removed just before.

    Args:
        staged: a free name in the same file system.

    Raises:
        StoreError: when the file system has no symbolic links, or another process has replaced an object meanwhile.
    """
    if isinstance(path, StorePath):
        # Under a condition, since a run that was wrongly taken for dead may come back at any time.
        path.write_if(target.encode(), path.read().version if path.exists() else None)
        if path.read_bytes() != target.encode():
            raise StoreError(f"{path}: another run has replaced it; run the same command again")
        return
    staged = cast("Path", staged)
    for folder in (staged.parent, path.parent):
        folder.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        # A copy of a collection by a tool that follows links.
        path.replace(staged)
        remove(staged)
    try:
        staged.symlink_to(target)
    except OSError as error:
        raise _explain(error, path, "symbolic") from error
    move_into_place(staged, path)


def _explain(error: OSError, path: Path, kind: str) -> OSError | StoreError:
    if error.errno not in _NO_LINKS:
        return error
    # Linux refuses second names for files of another user that may not be written.
    owner = ", or run as the user whose parts these are" if (kind, error.errno) == ("hard", errno.EPERM) else ""
    return StoreError(
        f"{path}: {kind} links cannot be made here ({error.strerror}), which a collection needs: choose an output on "
        f"another file system{owner}"
    )
