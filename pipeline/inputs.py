"""Which files an input names: a file, a folder with all below it, or a pattern."""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from glob import glob, has_magic
from pathlib import Path
from typing import Literal, NoReturn

from pipeline.errors import InputError
from pipeline.readers.base import Format, format_of

logger = logging.getLogger(__name__)

_KNOWN_NAMES = ".txt, .jsonl or .ndjson (also with .gz or .zst), or .parquet"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """A file to read: its absolute path, and its path below the input folder with slashes."""

    path: str
    name: str
    format: Format


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What an input names.

    Attributes:
        files: sorted by name.
        ignored: paths in the input's folders whose names say nothing of a format.
    """

    files: tuple[InputFile, ...]
    ignored: tuple[str, ...]


def absolute(where: str) -> str:
    """Give the absolute path of an input or output.

    Raises:
        InputError: for a URL.
    """
    if _URL.match(where):
        raise InputError(f"{where}: expected a local path or pattern, got a URL; copy the files to a local folder")
    # Not resolve(): a link such as `latest` is to keep its own name.
    return os.path.abspath(Path(where).expanduser())  # noqa: PTH100


def find_inputs(where: str, *, output: str, format: Literal["auto"] | Format) -> Inputs:
    """Find the files of an input.

    A format other than auto holds for every file that is named, by its path or by a pattern; of a folder
    only files whose names say that format are taken. Hidden files and the output folder are passed over.

    Args:
        where, output: absolute.

    Raises:
        InputError: when there is nothing to read.
    """
    path = Path(where)
    if path.is_file():
        return _take([where], root=str(path.parent), where=where, stated=format, named=True)
    if path.is_dir():
        root, named, found = where, False, _walk(where)
    elif has_magic(where):
        root, named, found = _fixed_part(where), True, _match(where)
    else:
        raise InputError(f"{where}: expected a file, a folder or a pattern such as texts/*.jsonl, found nothing")
    return _take(_outside(output, found, root=root), root=root, where=where, stated=format, named=named)


def _walk(folder: str) -> Iterator[str]:
    """Give every file below a folder that is not hidden; a folder that links lead to twice counts once."""
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=_refuse):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (f"{place.rstrip('/')}/{name}" for name in names if not name.startswith("."))


def _refuse(error: OSError) -> NoReturn:
    raise InputError(f"{error.filename}: cannot be read ({error.strerror}); check that it may be read") from error


def _match(pattern: str) -> Iterator[str]:
    """Give the files that a pattern matches; a folder that it matches stands for the files below it."""
    # Not Path.glob: it also matches hidden files.
    for path in dict.fromkeys(glob(pattern, recursive=True)):  # noqa: PTH207
        if Path(path).is_dir():
            if "**" not in pattern:
                yield from _walk(path)
        else:
            yield path


def _fixed_part(pattern: str) -> str:
    parts = Path(pattern).parts
    magic = next(number for number, part in enumerate(parts) if has_magic(part))
    return str(Path(*parts[:magic]))


def _outside(output: str, found: Iterable[str], *, root: str) -> Iterator[str]:
    """Leave out what a run has written, so that a run never reads its own output."""
    folder = Path(os.path.realpath(output))

    @cache
    def is_output(place: Path) -> bool:
        return Path(os.path.realpath(place)).is_relative_to(folder)

    if is_output(Path(root)):
        raise InputError(f"{root}: expected an input outside of the output folder {output}; give another --output")
    return (path for path in found if not is_output(Path(path).parent))


def _take(found: Iterable[str], *, root: str, where: str, stated: Literal["auto"] | Format, named: bool) -> Inputs:
    files: list[InputFile] = []
    ignored: list[str] = []
    prefix = f"{root.rstrip('/')}/"
    for path in found:
        format = format_of(path)
        if stated != "auto":
            format = stated if named or format == stated else None
        if format is None:
            ignored.append(path)
        else:
            files.append(InputFile(path=path, name=path.removeprefix(prefix), format=format))
    expected = _KNOWN_NAMES if stated == "auto" else f"files of the format {stated}"
    if not files:
        came = _some(ignored) if ignored else "no file at all"
        raise InputError(f"{where}: expected {expected}, got {came}; for other names give a pattern and reader.format")
    if ignored:
        logger.warning("%s: passed over %s; expected %s", where, _some(ignored), expected)
    _check_names(files)
    files.sort(key=lambda file: file.name)
    return Inputs(files=tuple(files), ignored=tuple(sorted(ignored)))


def _some(paths: list[str]) -> str:
    shown = ", ".join(ascii(Path(path).name) for path in sorted(paths)[:3])
    return f"{len(paths)} other files ({shown}, ...)" if len(paths) > 3 else shown


def _check_names(files: Iterable[InputFile]) -> None:
    for file in files:
        try:
            file.path.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{file.path!a}: expected a file name in utf-8, which the output can hold; rename the file"
            ) from None
