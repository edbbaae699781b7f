"""The log of corrections: ``corrections.jsonl`` in the folder of a collection, which only ever grows.

One line is one correction. Writers take turns by a lock on the file; what one appends is on disk before the next reads
or writes. A process that is killed can leave a line that is cut short at the end, or some lines of a step (what was
appended by one call). Readers ignore them, and the next writer ends them with a mark, so that they stay ignored.
"""

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import orjson
from pydantic import ValidationError

from concord.models.config import first_fault
from concord.models.errors import ConfigError
from concord.models.regular_files import LARGEST_JSON, open_descriptor
from concord.pipeline.corrections.correction import Correction
from concord.pipeline.errors import InputError
from concord.pipeline.storage.atomic_writes import crash_point, store_errors, sync_folder
from concord.pipeline.storage.output_paths import OutputPath

logger = logging.getLogger(__name__)

LOG_NAME = "corrections.jsonl"
_CUT = b" (cut short)"
"""Ends a line that a killed process left. No correction ends like this, because it ends with a brace."""
_MORE = b',"more":true}'
"""Ends each line of a step but its last."""


def log_path(output: OutputPath) -> Path:
    """Return the path of a collection's log; ConfigError for a collection in an object store, which cannot append."""
    if not isinstance(output, Path):
        raise ConfigError(
            f"{output}: expected a collection in a folder, got one in an object store, to which no line can be "
            "appended; copy the collection to a folder to correct it"
        )
    return output / LOG_NAME


def read_log_of(output: OutputPath) -> list[Correction]:
    """Read the corrections of a collection; there are none in an object store."""
    return read_log(log_path(output)) if isinstance(output, Path) else []


def read_log(path: Path) -> list[Correction]:
    """Read all corrections, undone ones and ``undo`` included, in the order in which they were made.

    Without the file there are none. A step that a killed writer left unfinished is ignored with a warning.

    Raises:
        InputError: for any other line that is no correction, or whose id was taken; the message says which. When the
            log is a link, or no file.
    """
    try:
        with os.fdopen(_open(path, os.O_RDONLY), "rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
            content = stream.read()
    except FileNotFoundError:
        return []
    return _parse_log(content, path)


def _open(path: Path, flags: int) -> int:
    """Open the log, not through a link: it would lead to a file that is no part of the collection."""
    try:
        return open_descriptor(path, flags | os.O_NOFOLLOW, largest=LARGEST_JSON)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO}:
            reason = "a link" if error.errno == errno.ELOOP else error.strerror
            raise InputError(f"{path}: expected a file of corrections ({reason}); remove it") from error
        raise


def _parse_log(content: bytes, path: Path) -> list[Correction]:
    lines = content.split(b"\n")
    corrections: dict[str, Correction] = {}
    unfinished = 0
    for number, line in enumerate(lines, 1):
        is_last = number == len(lines)
        if not line.strip() and not (is_last and unfinished):
            continue
        if line.endswith(_CUT) or (is_last and (line.endswith(_MORE) or not _is_object(line))):
            text = "%s: line %d: cut short by a writer that was killed; ignored, with %d lines of its step before it"
            logger.warning(text, path, number, unfinished)
            for _ in range(unfinished):
                corrections.popitem()
            unfinished = 0
            continue
        correction = _parse(line, where=f"{path}: line {number}")
        if correction.id in corrections:
            raise InputError(f"{path}: line {number}: expected an id of its own, got {correction.id!r} once more")
        if correction.undoes is not None and correction.undoes not in corrections:
            raise InputError(
                f"{path}: line {number}: undoes {correction.undoes!r}, which no earlier line has as its id"
            )
        corrections[correction.id] = correction
        unfinished = unfinished + 1 if line.endswith(_MORE) else 0
    return list(corrections.values())


def append_to_log(path: Path, corrections: Sequence[Correction]) -> None:
    """Append corrections, all in one write, and flush them to disk; several processes may do so at once.

    Raises:
        StoreError: when there is no space; then none of them is in the log.
    """
    if corrections:
        with _locked(path) as descriptor:
            _append(descriptor, corrections)


def extend_log(path: Path, decide: Callable[[list[Correction]], Sequence[Correction]]) -> list[Correction]:
    """Append what a function makes of the log as it is; no other process writes in between. Return the new lines.

    Raises:
        InputError: when a line of the log is no correction.
        StoreError: when there is no space; then none of the lines is in the log.
    """
    with _locked(path) as descriptor:
        corrections = list(decide(_parse_log(_content(descriptor), path)))
        if corrections:
            _append(descriptor, corrections)
    return corrections


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open the log for appending, made if it is missing, while no other process reads or writes."""
    with store_errors(path):
        descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_size == 0:
                # Made just now, or by a writer that was killed before its entry in the folder was on disk.
                sync_folder(path.parent)
            yield descriptor
        finally:
            os.close(descriptor)


def _content(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as stream:
        stream.seek(0)
        return stream.read()


def _append(descriptor: int, corrections: Sequence[Correction]) -> None:
    """Write corrections at the end of the file and flush them; on failure none of them stays."""
    lines = [orjson.dumps(correction.model_dump(mode="json", exclude_defaults=True)) for correction in corrections]
    lines[:-1] = [line.removesuffix(b"}") + _MORE for line in lines[:-1]]
    size = os.fstat(descriptor).st_size
    rest = memoryview(b"".join([_line_end(descriptor), *(line + b"\n" for line in lines)]))
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
            crash_point("write")
        os.fsync(descriptor)
    except OSError:
        # These bytes were never reported as written. Where even this fails, the next writer marks them.
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def _line_end(descriptor: int) -> bytes:
    """Return what ends the last line: nothing if it is ended, and a mark if it or its step was cut short."""
    content = _content(descriptor)
    is_ended = not content or content.endswith(b"\n")
    line = content.removesuffix(b"\n").rpartition(b"\n")[2]
    if line.endswith(_MORE) or not (is_ended or _is_object(line)):
        return _CUT + b"\n"
    return b"" if is_ended else b"\n"


def _is_object(line: bytes) -> bool:
    """Return whether a line is complete: no part of a JSON object is one."""
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _parse(line: bytes, *, where: str) -> Correction:
    try:
        return _validated(line)
    except ValidationError as error:
        raise InputError(
            f"{where}: expected a correction, got another line ({first_fault(error)}); fix or remove the line"
        ) from None


@lru_cache(maxsize=20_000)
def _validated(line: bytes) -> Correction:
    """Return the correction of a line; the log only grows, and each correction in the browser reads it again."""
    return Correction.model_validate_json(line.removesuffix(_MORE) + b"}" if line.endswith(_MORE) else line)
