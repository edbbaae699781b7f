"""Texts from stdin: kept in the output folder, so that a run over them can be planned again like any other."""

import shutil
import sys
from pathlib import Path
from typing import BinaryIO

from concord.pipeline.errors import InputError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.planning.inputs import absolute_output
from concord.pipeline.readers.read_file import reader_for
from concord.pipeline.storage.atomic_writes import move_into_place, stage_file, store_errors

NAME = "stdin"


def read_text() -> str:
    """Read one text in UTF-8; a byte order mark is dropped.

    Raises:
        InputError: when stdin is closed, or in another encoding.
    """
    try:
        return _stream().read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"stdin: expected text in utf-8, got {error}; convert it, as with iconv") from None


def keep(*, output: str, format: str) -> str:
    """Copy stdin to ``_run`` below the output and return the copy's path or URL; it replaces that of an earlier run.

    Args:
        format: of the reader; ``auto`` is one text.

    Raises:
        InputError: when stdin is closed, there is no such format, or the output cannot be used.
        StoreError: when there is no space.
    """
    stream = _stream()
    name = "text" if format == "auto" else format
    folder = OutputFolder(absolute_output(output))
    _check_empty_or_collection(folder)
    kept = folder.run / f"{NAME}{reader_for(name).suffixes[0]}"
    with store_errors(kept):
        move_into_place(stage_file(folder.staging, lambda staged: shutil.copyfileobj(stream, staged)), kept)
    return str(kept)


def _check_empty_or_collection(folder: OutputFolder) -> None:
    """Refuse a folder of other files, which a copy of stdin would turn into the output of a run."""
    if isinstance(folder.output, Path) and not (folder.output / "_run").exists():
        other = next(folder.output.glob("*"), None)
        if other is not None:
            raise InputError(
                f"{folder.output}: expected a new folder or a collection, got one that contains {other.name}; choose "
                "another --output"
            )


def _stream() -> BinaryIO:
    if sys.stdin is None:
        raise InputError("stdin: expected a text, got a closed stream")
    return sys.stdin.buffer
