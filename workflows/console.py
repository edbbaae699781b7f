"""What every command shares: the answer on stdout, progress and warnings on stderr, errors that say what to do."""

import errno
import json
import logging
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from concord.pipeline.storage.urls import is_url

if TYPE_CHECKING:
    from concord.pipeline.storage.paths import OutputPath

USAGE = 2
NO_SPACE = 75
_NO_SPACE_FAULTS = {errno.ENOSPC, errno.EDQUOT}
# What a place given by the user may be, and a program that is right still meets.
_PLACE_FAULTS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command found out.

    Attributes:
        values: for ``--json``; plain values only.
        text: for people.
    """

    values: Mapping[str, Any]
    text: str
    exit_code: int = 0


def set_environment() -> None:
    """Turn usage statistics and needless network calls off; what the user has set stays."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def give(answer: Answer, *, as_json: bool) -> None:
    """Write an answer to stdout and leave with its exit code."""
    click.echo(json.dumps(answer.values, ensure_ascii=False) if as_json else answer.text, color=_color())
    click.get_current_context().exit(answer.exit_code)


def note(message: str) -> None:
    """Write a line to stderr."""
    click.echo(message, err=True, color=_color())


@contextmanager
def explained_errors(*, as_json: bool) -> Iterator[None]:
    """Turn our own errors into a message and an exit code; anything else is a fault of ours and keeps its trace."""
    try:
        yield
    except KeyboardInterrupt:
        _fail("interrupted; whole files stay, the same command works again (train with --resume)", INTERRUPTED, as_json)
    except click.exceptions.Exit:
        raise
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        _fail(_message(error), code, as_json)


def exit_code(error: Exception) -> int | None:
    """Give the exit code of an error that is to be explained; None for one that is to be traced."""
    # Imported here: the help text must not wait for them.
    from safetensors import SafetensorError

    from concord.models.config import ConfigError
    from concord.pipeline.errors import ConcordError

    if isinstance(error, ConcordError):
        return error.exit_code
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, OSError) and error.errno in _NO_SPACE_FAULTS:
        return NO_SPACE
    # The number of the fault is in the text only.
    if isinstance(error, SafetensorError) and any(f"(os error {number})" in str(error) for number in _NO_SPACE_FAULTS):
        return NO_SPACE
    # Without a name it is none that the user has given.
    if isinstance(error, OSError) and error.errno in _PLACE_FAULTS and error.filename is not None:
        return USAGE
    return None


def table(rows: Sequence[Sequence[object]], *, header: Sequence[str] = (), right: Collection[int] = ()) -> str:
    """Lay rows out in columns; those that hold numbers only, and those named by ``right``, are right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    if header:
        cells.insert(0, list(header))
    if not cells:
        return ""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    at_right = [
        column in right or all(isinstance(row[column], int | float) for row in rows) for column in range(len(widths))
    ]
    lines = [
        "  ".join(
            text.rjust(width) if aligned else text.ljust(width)
            for text, width, aligned in zip(row, widths, at_right, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def indented(text: str, by: int = 2) -> str:
    """Move every line to the right."""
    return "\n".join(" " * by + line for line in text.splitlines())


def counted(number: int, noun: str) -> str:
    """Write a number with its noun, as in ``1 shard`` and ``1,200 shards``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def near(path: "OutputPath") -> "OutputPath":
    """Give a path as short as it can be typed here; a URL as it is."""
    here = Path.cwd()
    return path.relative_to(here) if isinstance(path, Path) and path.is_relative_to(here) else path


def near_source(uri: str) -> str:
    """Give the place of an input file as short as it can be typed here."""
    return uri if is_url(uri) else str(near(Path(uri)))


def _message(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    advice = (
        "make room and try again" if error.errno in _NO_SPACE_FAULTS else "give a place that can be read and written"
    )
    return f"{error.filename or 'store'}: {error.strerror}; {advice}"


def _fail(message: str, code: int, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": message, "exit_code": code}, ensure_ascii=False))
    note(f"{click.style('Error:', fg='red', bold=True)} {message}")
    click.get_current_context().exit(code)


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if isinstance(value, float) else printable(str(value))


def printable(text: str) -> str:
    """Write out what would steer a terminal or break a line: ids and messages come from the input."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def _color() -> bool | None:
    return False if os.environ.get("NO_COLOR") else None
