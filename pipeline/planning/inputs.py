"""The files of an input: found on disk or behind a URL, hashed, and looked at for the field of the text.

An input is one file, all files below a folder, or those that match a pattern.
"""

import logging
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from glob import glob, has_magic
from itertools import chain, islice, takewhile
from pathlib import Path, PurePath
from typing import NamedTuple
from urllib.parse import urlsplit

import orjson
from fsspec.utils import glob_translate
from pydantic import TypeAdapter, ValidationError

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.readers.base import MISSING_TEXT, TEXT_NOT_STRING, StreamReader
from concord.pipeline.readers.read_file import format_of, read_records, reader_for, readers
from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.files import FileState, file_sha256, file_state, is_url, stat_url, walk_url
from concord.pipeline.storage.output_paths import OutputPath, read_bytes

logger = logging.getLogger(__name__)

_PLANS = "_run/plans"
_UNLISTED = {"http", "https"}
_KNOWN_NAMES = (
    ".txt, .jsonl, .ndjson, .csv, .tsv, .rtf, .xml (TEI, ALTO, PAGE), .html with the extra html (each also with .gz or "
    ".zst), .parquet, .arrow, or with the extra archives .pdf, .docx, .odt, .epub, .eml, .mbox, .warc"
)
_OF_DATASETS = {"dataset_info.json", "dataset_dict.json", "state.json"}
"""Files of the ``datasets`` library beside its data, which are skipped without a warning."""
_CACHE_OF_DATASETS = re.compile(r"cache-[0-9a-f]{16}\S*\.arrow")
"""Its cached results, which hold other versions of the same rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """A file of the input.

    Attributes:
        path: absolute, or a URL.
        name: its path below the input folder, with slashes.
        state: when it was found.
        fault: why it cannot be opened, or a folder cannot be listed.
    """

    path: str
    name: str
    format: str
    state: FileState
    fault: str | None = None


class Inputs(NamedTuple):
    """The files of an input, sorted by name, and the number of files whose names have no known suffix."""

    files: Sequence[InputFile]
    ignored: int


def find_inputs(where: str, *, output: str, format: str) -> Inputs:
    """Find the files of an input.

    A format other than auto applies to every file named by its path or by a pattern; of a folder only the files with a
    suffix of that format are taken. Hidden files, annotated collections, which are folders with ``_run/plans``, and
    what the ``datasets`` library keeps beside the data of a dataset are skipped.

    Args:
        where, output: absolute.

    Raises:
        InputError: when there is nothing to read, when the input is an annotated collection, or when a new output would
            be inside the input.
        StoreError: when the store of a URL cannot be reached.
    """
    if format != "auto":
        reader_for(format)
    places = _find_behind_url(where) if is_url(where) else _find_on_disk(where)
    states = _unannotated(where, output, places)
    files: list[InputFile] = []
    ignored: list[str] = []
    prefix = f"{places.root.rstrip('/')}/"
    for path, state in states.items():
        # Of a folder that cannot be listed, the path ends in a slash.
        folder, _, name = path.rpartition("/")
        if path != where and _CACHE_OF_DATASETS.fullmatch(name):
            continue
        file_format = format_of(path) if name else "text"
        if format != "auto":
            file_format = format if places.named or file_format == format or not name else None
        if file_format is None and name in _OF_DATASETS:
            continue
        if file_format is None:
            ignored.append(path)
        else:
            # A name that is not UTF-8 fits into no plan and no table.
            shown = os.fsencode(path if name else folder).decode(errors="backslashreplace")
            place = shown.removeprefix(prefix)
            state, fault = _look_at(path) if state is None else (state, None)
            files.append(InputFile(path=shown, name=place, format=file_format, state=state, fault=fault))
    expected = _KNOWN_NAMES if format == "auto" else f"files of the format {format}"
    if not files:
        got = _some(ignored) if ignored else "no file at all"
        raise InputError(f"{where}: expected {expected}, got {got}; for other names set a pattern and reader.format")
    if ignored:
        logger.warning("%s: skipped %s; expected %s", where, _some(ignored), expected)
    return Inputs(sorted(files, key=lambda file: file.name), len(ignored))


def check_unchanged(where: str, files: Iterable[InputFile]) -> None:
    """Raise InputError for a file that has changed since it was found.

    Args:
        where: the input of which they are.
    """
    # One more listing covers all files; looking at each would cost a request a file.
    states = _find_behind_url(where).states if is_url(where) else None
    for file in files:
        state = file_state(file.path) if states is None and file.fault is None else (states or {}).get(file.path)
        if file.fault is None and state != file.state:
            raise InputError(f"{file.path}: changed while it was being planned; run again when it is complete")


class _Found(NamedTuple):
    """Files and their states, below the folder ``root``; ``named`` if by their own path or a pattern.

    Attributes:
        holds_run: whether a folder, given by its path or URL, holds the plans of an annotated collection.
    """

    root: str
    named: bool
    states: Mapping[str, FileState | None]
    holds_run: Callable[[str], bool]


def _find_on_disk(where: str) -> _Found:
    path = Path(where)
    if path.is_file():
        return _Found(str(path.parent), named=True, states={where: None}, holds_run=_holds_run)
    if path.is_dir():
        return _Found(where, named=False, states=dict.fromkeys(_walk(where)), holds_run=_holds_run)
    if has_magic(where):
        return _Found(_fixed_part(where), named=True, states=dict.fromkeys(_match(where)), holds_run=_holds_run)
    if os.path.lexists(where):
        file_state(where)
    raise InputError(f"{where}: expected a file, a folder or a pattern such as texts/*.jsonl, found nothing")


def _find_behind_url(where: str) -> _Found:
    state = stat_url(where)
    if state is not None:
        return _Found(where.rpartition("/")[0], named=True, states={where: state}, holds_run=lambda _folder: False)
    if urlsplit(where).scheme in _UNLISTED:
        raise InputError(f"{where}: expected a file, found none; a web server cannot be listed, so name one file")
    root = _fixed_part(where)
    visible = dict(_visible(root))
    collections = {url.partition(f"/{_PLANS}/")[0] for url in visible if f"/{_PLANS}/" in url}
    if not has_magic(where):
        return _Found(root, named=False, states=visible, holds_run=collections.__contains__)
    matches = re.compile(glob_translate(where)).match
    # As for paths, a folder that matches means the files below it.
    states = {
        url: state
        for url, state in visible.items()
        if matches(url) or any(matches(folder) for folder in _folders(url, root=root) if "**" not in where)
    }
    return _Found(root, named=True, states=states, holds_run=collections.__contains__)


def _unannotated(where: str, output: str, places: _Found) -> Mapping[str, FileState | None]:
    """Return the files that no run has written, so that none reads its own output or that of another.

    A file that is named by its path is always read.

    Raises:
        InputError: when the input is an annotated collection or a part of one, or when a new output would be inside it,
            hold it, or be inside another collection.
    """
    is_file = where in places.states
    is_new = not (places.holds_run(output) if is_url(output) else (Path(output) / _PLANS).is_dir())
    # What was read from stdin is in _run.
    is_around = _is_below(where if is_file else places.root, output) and not (
        is_file and _is_below(where, f"{output}/_run")
    )
    if is_new and (is_around or (not places.named and _is_below(output, where))):
        raise InputError(f"output: expected a folder neither in the input {where} nor around it, got {output}")
    if is_new and not is_url(output) and _holds_run(str(Path(output).parent)):
        raise InputError(f"output: expected a folder outside of other annotated collections, got {output}")
    if is_file:
        return places.states

    @cache
    def collection_of(folder: str) -> str | None:
        """Return the outermost annotated collection that a folder belongs to."""
        above = folder.rpartition("/")[0]
        outer = collection_of(above) if len(above) >= len(places.root) else None
        return outer or (folder if places.holds_run(folder) else None)

    if collection_of(places.root) is not None:
        raise InputError(
            f"{places.root}: expected texts, got an annotated collection or a part of one; name the input that it was "
            "made from, which 'concord status' shows"
        )
    # The output is skipped like any other collection.
    folders = {path: collection_of(path.rpartition("/")[0] or "/") for path in places.states}
    skipped = {folder for folder in folders.values() if folder is not None}
    if skipped - {output}:
        logger.warning("%s: skipped annotated collections: %s", where, _some(sorted(skipped - {output})))
    return {path: state for path, state in places.states.items() if folders[path] is None}


def _is_below(where: str, folder: str) -> bool:
    """Tell whether a path or URL is a folder or lies below it, with links resolved."""
    if is_url(where) or is_url(folder):
        return f"{where}/".startswith(f"{folder}/")
    return Path(os.path.realpath(where)).is_relative_to(os.path.realpath(folder))


def _holds_run(folder: str) -> bool:
    """Tell whether a folder on disk is an annotated collection or, with links resolved, a folder of one."""
    real = Path(os.path.realpath(folder))
    plans = (above / _PLANS for above in (real, *real.parents))
    return any(map(os.path.isdir, plans))  # no error, unlike Path.is_dir, where there are no rights


def _visible(root: str) -> Iterator[tuple[str, FileState]]:
    """Yield the files below a URL that are not hidden; a key with a slash at its end only marks a folder."""
    for url, state in walk_url(root):
        below = url.removeprefix(f"{root}/")
        if not below.endswith("/") and not any(part.startswith(".") for part in below.split("/")):
            yield url, state


def _folders(url: str, *, root: str) -> Iterator[str]:
    while (url := url.rpartition("/")[0]) and len(url) > len(root):
        yield url


def _fixed_part(pattern: str) -> str:
    """Return the folder above the first part with a wildcard."""
    return "/".join(takewhile(lambda part: not has_magic(part), pattern.split("/"))) or "/"


def _walk(folder: str) -> Iterator[str]:
    """Yield the files below a folder that are not hidden, each once, even in a folder that several links lead to.

    A folder that cannot be listed is yielded with a slash at its end, and so is what may have been one: a link that
    leads nowhere and has no suffix.
    """
    seen: set[str] = set()
    unlisted: list[str] = []
    for place, folders, names in os.walk(
        folder, followlinks=True, onerror=lambda error: unlisted.append(error.filename)
    ):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (f"{place.rstrip('/')}/{name}" for name in names if not name.startswith(".")):
            yield path if PurePath(path).suffix or os.path.exists(path) else f"{path}/"  # noqa: PTH110
    yield from (f"{place}/" for place in unlisted)


def _look_at(path: str) -> tuple[FileState, str | None]:
    """Return the state of a file, and why it cannot be opened or, with a slash at its end, a folder be listed."""
    try:
        if path.endswith("/"):
            os.scandir(path).close()
        state = file_state(path)
        path.encode()
    except OSError as error:
        fault = f"this folder cannot be listed ({error.strerror}); check that it exists and may be read, or remove it"
    except InputError as error:
        fault = str(error).removeprefix(f"{path}: ")
    except UnicodeEncodeError:
        fault = "expected a file name in UTF-8; rename the file"
    else:
        return state, None
    return FileState(0, None), fault


def _match(pattern: str) -> Iterator[str]:
    """Yield the files that a pattern matches; a folder that it matches means the files below it."""
    # Not Path.glob: it also matches hidden files.
    for path in dict.fromkeys(glob(pattern, recursive=True)):  # noqa: PTH207
        if not Path(path).is_dir():
            yield path
        elif "**" not in pattern:
            yield from _walk(path)


def _some(paths: list[str]) -> str:
    shown = ", ".join(ascii(Path(path).name) for path in sorted(paths)[:3])
    return f"{len(paths)} other files ({shown}, ...)" if len(paths) > 3 else shown


# A file changed more recently than this may change again without a visible change of its time.
_SETTLED_SECONDS = 2.0
_MANY_BYTES = 1 << 30

_Entry = tuple[int, int | str | None, str]
"""Size, change and SHA-256 of a file."""
_ENTRIES = TypeAdapter(dict[str, _Entry])


def hash_files(states: Mapping[str, FileState]) -> list[str]:
    """Return the SHA-256 in hex of files, in order; many bytes are hashed in threads, which use all cores.

    Raises:
        InputError, StoreError: when one cannot be read.
    """
    if sum(state.size for state in states.values()) < _MANY_BYTES:
        return list(map(file_sha256, states))
    with ThreadPoolExecutor() as pool:
        return list(pool.map(file_sha256, states))


class FileHashes:
    """Hashes files, except those whose size and time (or etag) are the same as when they were last hashed.

    The cache is a file of its own that may be lost at any time: it saves work and decides nothing else.
    """

    def __init__(self, cache: OutputPath, *, use_cache: bool = True) -> None:
        """Read the cache that earlier runs wrote, if any; without ``use_cache`` every file is hashed again."""
        self._cache = cache
        self._settled = time.time_ns() - int(_SETTLED_SECONDS * 1e9)
        self._known: dict[str, _Entry] = {}
        with suppress(FileNotFoundError, ValidationError):
            self._known = _ENTRIES.validate_json(read_bytes(cache)) if use_cache else {}
        self._entries = self._known

    def hash(self, files: Iterable[InputFile]) -> dict[str, str]:
        """Return the SHA-256, in hex, of files, by path; empty for one that cannot be opened."""
        states = {file.path: None if file.fault else file.state for file in files}
        unknown = {path: state for path, state in states.items() if state and self._entries.get(path, ())[:2] != state}
        known = {path: entry[2] for path, entry in self._entries.items()}
        known |= zip(unknown, hash_files(unknown), strict=True)
        digests = {path: known[path] if state else "" for path, state in states.items()}
        self._entries = {path: (*state, digests[path]) for path, state in states.items() if state}
        return digests

    def save(self, *, staging: Path | None) -> None:
        """Write the cache for the next run, of the files that were hashed last."""
        entries = {
            path: entry
            for path, entry in self._entries.items()
            if isinstance(entry[1], str) or (entry[1] is not None and entry[1] < self._settled)
        }
        if entries != self._known:
            with store_errors(self._cache):
                write_atomically(self._cache, orjson.dumps(entries), staging=staging)


FIRST_RECORDS = 100
"""How many records of each format are looked at, spread over its files; the first one with a text suffices."""


def check_text_field(files: Sequence[InputFile], config: ReaderConfig) -> None:
    """Check for each format that one of its first records has a text.

    Raises:
        InputError: when none has, naming the fields of the first one.
    """
    by_format: defaultdict[str, list[InputFile]] = defaultdict(list)
    for file in files:
        if file.fault is None and isinstance(readers().get(file.format), StreamReader):
            by_format[file.format].append(file)
    for format, group in by_format.items():
        most = max(1, FIRST_RECORDS // len(group))
        files_of_records = (
            read_records(file.path, format=format, name=file.name, config=config, limit=most) for file in group
        )
        faults: list[DeadLetter] = []
        for _, record in islice(chain.from_iterable(files_of_records), FIRST_RECORDS):
            if isinstance(record, Document):
                break
            if record.error in (MISSING_TEXT, TEXT_NOT_STRING):
                faults.append(record)
        else:
            if faults:
                raise InputError(
                    f"reader.text_field: none of the first records of the {format} files has a text in the field "
                    f"{config.text_field!r}; {faults[0].message}"
                )
