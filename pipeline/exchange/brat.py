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
from concord.pipeline.exchange.items import AnnotatedPassage, AnnotatedSpan, ExportItem, normalize_line_ends, visible
from concord.pipeline.output.collection import EntityRow
from concord.pipeline.storage.atomic_writes import stage_folder, store_errors

INDEX_NAME = "documents.jsonl"

_UNSAFE = re.compile(r"^\.|[^\w.-]")
# File systems allow 255 bytes; a code point has up to four.
_LONGEST_NAME = 50
_HASH_DIGITS = 16
_LINE_BREAK = re.compile(r"[^\S\n]*\n\s*")
_NOT_IN_TYPE = re.compile(r"[^\w-]")
_WHITE_SPACE = re.compile(r"\s")
_EVENT = re.compile(r"E\d+\t[^\s:]+:(?P<trigger>T\d+)(?:\s.*)?")
_ENTITY = re.compile(r"T\d+\t(?P<type>\S+) (?P<offsets>\d+ \d+(?:;\d+ \d+)*)(?:\t(?P<text>.*))?")


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
        if entity.confidence is not None:
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

    The fragments of an entity are one span if only white space is between them. Everything but entities is ignored,
    the words that trigger an event too.

    Raises:
        InputError: when the index is missing.
    """
    index = folder / INDEX_NAME
    if not index.is_file():
        raise InputError(f"{folder}: expected the {INDEX_NAME} that 'concord export' wrote with its files, found none")
    for number, line in numbered_lines(index):
        if not line.strip():
            continue
        where = f"{index}: line {number}"
        try:
            row = orjson.loads(line)
            name, doc_id, start = row["file"], row["doc_id"], row.get("start_char", 0)
            if not (isinstance(doc_id, str) and isinstance(start, int) and Path(name).name == name):
                raise TypeError(f"got {line[:80]!r}")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            reason = f"expected an object with doc_id and with the name of a file in the folder: {error}"
            yield AnnotatedPassage.unread(where, reason)
            continue
        path = folder / f"{name}.ann"
        try:
            text = (folder / f"{name}.txt").read_bytes().decode()
            lines = list(numbered_lines(path))
        except (OSError, UnicodeDecodeError, InputError) as error:
            yield AnnotatedPassage.unread(where, f"expected its text and its annotations: {error}", doc_id)
            continue
        triggers = {match["trigger"] for _, line in lines if (match := _EVENT.fullmatch(line))}
        entities = ((number, line) for number, line in lines if line.startswith("T"))
        spans = [
            _span(line, text, f"{path}: line {number}")
            for number, line in entities
            if line.partition("\t")[0] not in triggers
        ]
        yield AnnotatedPassage(where=str(path), doc_id=doc_id, spans=tuple(spans), start=start, text=text)


def _span(line: str, text: str, where: str) -> AnnotatedSpan:
    anywhere = AnnotatedSpan(0, len(text), "", where)
    entity = _ENTITY.fullmatch(line)
    if entity is None:
        return anywhere._replace(fault=f"expected an entity such as 'T1<tab>PER 0 4<tab>Anna', got {line[:80]!r}")
    offsets = [int(number) for number in re.split("[ ;]", entity["offsets"])]
    span = AnnotatedSpan(min(offsets), max(offsets), entity["type"], where)
    if offsets != sorted(offsets):
        return span._replace(fault=f"expected fragments in the order of the text, got {entity['offsets']}")
    gaps = [text[start:end] for start, end in zip(offsets[1:-1:2], offsets[2::2], strict=True)]
    if gap := next((gap for gap in gaps if gap.strip()), None):
        return span._replace(fault=f"no label can leave out {gap.strip()!r} between the fragments {entity['offsets']}")
    surface = "".join(text[start:end] for start, end in zip(offsets[::2], offsets[1::2], strict=True))
    if entity["text"] is not None and visible(entity["text"]) != visible(surface):
        return anywhere._replace(fault=f"its text is {entity['text']!r}, but {surface!r} is at {entity['offsets']}")
    return span
