"""Export to brat standoff (https://brat.nlplab.org/standoff.html), and import of its entities.

The folder is for brat's data directory. Each document is a ``.txt`` file with its text and an ``.ann`` file with its
entities, their confidence as notes. The files are named after the document's id; unsafe characters are replaced and a
hash is appended. ``documents.jsonl`` maps files to documents, also for the import; ``annotation.conf`` lists the entity
types.
"""

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

import orjson

from concord.pipeline.corpora.corpus_format import numbered_lines
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.items import AnnotatedPassage, AnnotatedSpan, ExportItem, normalize_line_ends
from concord.pipeline.output.document_rows import EntityRow
from concord.pipeline.storage.atomic_writes import stage_folder, store_errors

INDEX_NAME = "documents.jsonl"

_UNSAFE = re.compile(r"^\.|[^\w.-]")
# File systems allow 255 bytes; a code point has up to four.
_LONGEST_NAME = 50
_HASH_DIGITS = 16
_LINE_BREAK = re.compile(r"[^\S\n]*\n\s*")
_NOT_IN_TYPE = re.compile(r"[^\w-]")
_WHITE_SPACE = re.compile(r"\s")
_ENTITY = re.compile(r"T\d+\t(?P<type>\S+) (?P<offsets>\d+ \d+(?:;\d+ \d+)*)(?:\t.*)?")


def write_brat(folder: Path, items: Iterable[ExportItem], *, labels: Iterable[str]) -> None:
    """Write a new folder, which appears under its name once it is complete.

    Offsets count code points. Line ends become line feeds, without changing offsets; see ``normalize_line_ends``. An
    entity that spans several lines has a fragment on each.

    Args:
        folder: must not exist, or be empty.
        labels: entity types that annotators can choose.
    """
    with store_errors(folder), stage_folder(folder) as staged, (staged / INDEX_NAME).open("xb") as index:
        for item in items:
            name = _file_name(item.name)
            text = normalize_line_ends(item.text)
            _write_new(staged / f"{name}.txt", text)
            _write_new(staged / f"{name}.ann", "".join(f"{line}\n" for line in _annotations(item, text)))
            index.write(orjson.dumps({"file": name, **item.metadata}, option=orjson.OPT_APPEND_NEWLINE))
        # brat requires all four sections.
        types = sorted({type_name(label) for label in labels})
        sections = ["[entities]", *types, "[relations]", "[events]", "[attributes]"]
        _write_new(staged / "annotation.conf", "".join(f"{line}\n" for line in sections))


def _write_new(path: Path, text: str) -> None:
    with path.open("xb") as stream:
        stream.write(text.encode())


def _file_name(name: str) -> str:
    safe = _UNSAFE.sub("_", name)[:_LONGEST_NAME]
    return name if name and safe == name else f"{safe}~{sha256(name.encode()).hexdigest()[:_HASH_DIGITS]}"


def _annotations(item: ExportItem, text: str) -> Iterator[str]:
    for number, entity in enumerate(item.document.entities, start=1):
        fragments = list(_fragments(entity, text))
        offsets = ";".join(f"{start} {end}" for start, end in fragments)
        # As long as the fragments together; white space such as a tab would end the column or the line.
        shown = _WHITE_SPACE.sub(" ", " ".join(text[start:end] for start, end in fragments))
        yield f"T{number}\t{type_name(entity.label)} {offsets}\t{shown}"
        yield f"#{number}\tAnnotatorNotes T{number}\tconfidence {entity.confidence:.3f}"


def _fragments(entity: EntityRow, text: str) -> Iterator[tuple[int, int]]:
    """Yield the offsets of an entity's part on each line."""
    start = entity.start_char
    for gap in _LINE_BREAK.finditer(text, entity.start_char, entity.end_char):
        yield start, gap.start()
        start = gap.end()
    yield start, entity.end_char


def type_name(label: str) -> str:
    """Return an entity type as brat allows it, with other characters as underscores."""
    return _NOT_IN_TYPE.sub("_", label)


def read_brat(folder: Path) -> Iterator[AnnotatedPassage]:
    """Yield the passages of a folder that was exported, in the order of its index.

    The fragments of an entity are one span; everything but entities is ignored.

    Raises:
        InputError: when a file is missing or a line has another form; the message says which.
    """
    index = folder / INDEX_NAME
    if not index.is_file():
        raise InputError(f"{folder}: expected the {INDEX_NAME} that 'concord export' wrote with its files, found none")
    for number, line in numbered_lines(index):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
            name, doc_id, start = row["file"], row["doc_id"], row.get("start_char", 0)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{index}: line {number}: expected an object with file and doc_id: {error}") from None
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"{index}: line {number}: expected the name of a file in the folder, got {name!r}")
        text, path = folder / f"{name}.txt", folder / f"{name}.ann"
        try:
            content = text.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{text}: expected the text of document {doc_id!r}: {error}") from None
        spans = tuple(_spans(path))
        yield AnnotatedPassage(where=str(path), doc_id=doc_id, spans=spans, start=start, text=content)


def _spans(path: Path) -> Iterator[AnnotatedSpan]:
    for number, line in numbered_lines(path):
        if not line.startswith("T"):
            continue
        entity = _ENTITY.fullmatch(line)
        if entity is None:
            raise InputError(
                f"{path}: line {number}: expected an entity such as 'T1<tab>PER 0 4<tab>Anna', got {line[:80]!r}"
            )
        offsets = [int(number) for number in re.split("[ ;]", entity["offsets"])]
        yield AnnotatedSpan(min(offsets), max(offsets), entity["type"])
