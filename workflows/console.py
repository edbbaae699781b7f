"""What all commands share: answers on stdout, messages on stderr, and error messages with exit codes."""

import errno
import io
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from concord.models.errors import ConcordError

if TYPE_CHECKING:
    from concord.pipeline.storage.output_paths import OutputPath

USAGE = 2
REFUSED = 4
NO_SPACE = 75
INTERRUPTED = 130
_WIDEST = 100_000
_NO_SPACE_ERRORS = {errno.ENOSPC, errno.EDQUOT}
# Caused by the path that the user gave, not by a bug.
_PATH_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


INLINE = {"inline": True}
"""Metadata of a dataclass's field whose own fields take its place in ``--json``; None has no fields."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The result of a command.

    Attributes:
        values: printed with ``--json``: a mapping, or an object whose fields are; made plain.
        text: printed otherwise.
    """

    values: Any
    text: str
    exit_code: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", plain(self.values))


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: dataclasses and configurations are mappings, paths are text.

    A dataclass with ``REPORTED`` has the attributes that this names, others have their fields.
    """
    from concord.pipeline.storage.object_stores import StorePath  # importing storage takes a while

    if isinstance(value, Path | StorePath):
        return str(value)
    if hasattr(value, "REPORTED"):
        return {name: getattr(value, name) for name in value.REPORTED}
    if is_dataclass(value):
        values: dict[str, Any] = {}
        for field in fields(value):
            part = plain(getattr(value, field.name))
            values |= (part or {}) if "inline" in field.metadata else {field.name: part}
        return values
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def emit(answer: Answer, *, as_json: bool) -> None:
    """Write an answer to stdout and exit with its exit code."""
    try:
        click.echo(json.dumps(answer.values, ensure_ascii=False) if as_json else answer.text, color=_color())
    except OSError as error:
        if error.errno in _NO_SPACE_ERRORS:
            error.filename = "stdout"
            # What is left in its buffer would fail once more when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
    click.get_current_context().exit(answer.exit_code)


def info(message: str) -> None:
    """Write a message to stderr."""
    click.echo(message, err=True, color=_color())


def shows_progress() -> bool:
    """Return whether a command may show how far it is: not with ``--json``, which is for programs."""
    context = click.get_current_context(silent=True)
    return context is None or not context.params.get("as_json")


def warn(message: str) -> None:
    """Write a warning to stderr."""
    info(f"Warning: {message}")


@contextmanager
def report_errors(*, as_json: bool) -> Iterator[None]:
    """Exit with a message and an exit code on an expected error; any other keeps its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        _fail("interrupted; run the same command again to continue (train with --resume)", INTERRUPTED, as_json)
    except click.exceptions.Exit:
        raise
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        _fail(_message(error), code, as_json)


def exit_code(error: Exception) -> int | None:
    """Return the exit code of an expected error; None for a bug, which is to show its traceback."""
    # Imported here: --help must not wait for it.
    from safetensors import SafetensorError

    if isinstance(error, ConcordError):
        return error.exit_code
    if isinstance(error, OSError) and error.errno in _NO_SPACE_ERRORS:
        return NO_SPACE
    # SafetensorError has no errno, only the number in its text.
    if isinstance(error, SafetensorError) and any(f"(os error {number})" in str(error) for number in _NO_SPACE_ERRORS):
        return NO_SPACE
    # Without a file name, the path did not come from the user.
    if isinstance(error, OSError) and error.errno in _PATH_ERRORS and error.filename is not None:
        return USAGE
    return None


def table(rows: Sequence[Sequence[object]], *, header: Sequence[str] = (), right: Collection[int] = ()) -> str:
    """Format rows as aligned columns; columns of numbers, and those in ``right``, are right-aligned."""
    # Imported here: --help must not wait for them.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows and not header:
        return ""
    grid = Table(box=None, show_header=bool(header), padding=(0, 2, 0, 0), pad_edge=False)
    for column in range(len(header or rows[0])):
        is_right = column in right or all(isinstance(row[column], int | float) for row in rows)
        name = Text(header[column]) if header else ""
        grid.add_column(name, justify="right" if is_right else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*(Text(_cell(value)) for value in row))
    # Lines are as long as they need to be: they are also read by programs.
    console = Console(file=io.StringIO(), width=_WIDEST, color_system=None)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def indented(text: str) -> str:
    """Indent every line by two spaces."""
    return "\n".join(f"  {line}" for line in text.splitlines())


def counted(number: int, noun: str) -> str:
    """Format a number with its noun, as in ``1 shard`` and ``1,200 shards``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def printable(text: str) -> str:
    """Escape line breaks and terminal control characters: ids and messages come from the input."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def short_path(path: "OutputPath") -> "OutputPath":
    """Return a path relative to the current folder if it lies below it, else unchanged."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        # Somebody has removed the folder.
        return path
    return path.relative_to(here) if isinstance(path, Path) and path.is_relative_to(here) else path


def short_source(uri: str) -> str:
    """Shorten the path of an input file as ``short_path`` does; a URL stays unchanged."""
    from concord.pipeline.storage.files import is_url

    return uri if is_url(uri) else str(short_path(Path(uri)))


def _message(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.errno in _NO_SPACE_ERRORS:
        advice = "free some space and try again"
    elif error.errno in {errno.EEXIST, errno.ENOTDIR}:
        advice = "expected a folder; choose another path"
    else:
        advice = "choose a path that can be read and written"
    return f"{error.filename or 'store'}: {error.strerror}; {advice}"


def _fail(message: str, code: int, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": message, "exit_code": code}, ensure_ascii=False))
    info(f"{click.style('Error:', fg='red', bold=True)} {message}")
    click.get_current_context().exit(code)


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if isinstance(value, float) else printable(str(value))


def _color() -> bool | None:
    return False if os.environ.get("NO_COLOR") else None
