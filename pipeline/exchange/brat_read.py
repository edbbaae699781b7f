"""Read brat standoff (https://brat.nlplab.org/standoff.html), the inverse of the export to it.

The folder must have the ``documents.jsonl`` of the export, which says whose text a file has. The fragments of an entity
are one span. Everything but entities is ignored.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import orjson

from concord.pipeline.corpora.corpus_format import numbered_lines
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.brat import INDEX_NAME
from concord.pipeline.exchange.passage import AnnotatedPassage, AnnotatedSpan

_ENTITY = re.compile(r"T\d+\t(?P<type>\S+) (?P<offsets>\d+ \d+(?:;\d+ \d+)*)(?:\t.*)?")


def read_brat(folder: Path) -> Iterator[AnnotatedPassage]:
    """Yield the passages of a folder that was exported, in the order of its index.

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
        found = _ENTITY.fullmatch(line)
        if found is None:
            raise InputError(
                f"{path}: line {number}: expected an entity such as 'T1<tab>PER 0 4<tab>Anna', got {line[:80]!r}"
            )
        offsets = [int(number) for number in re.split("[ ;]", found["offsets"])]
        yield AnnotatedSpan(min(offsets), max(offsets), found["type"])
