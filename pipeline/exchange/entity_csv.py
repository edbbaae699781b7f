"""Export of the entities as a CSV file, for spreadsheets and concordances: one row each, with its sentence."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from concord.pipeline.documents import part_finder
from concord.pipeline.exchange.items import ExportItem, round_float
from concord.pipeline.output.collection import join_words
from concord.pipeline.storage.atomic_writes import write_compressed

_COLUMNS = (
    *("doc_id", "source_uri", "sent_id", "start_char", "end_char", "part", "label", "name", "canonical", "value"),
    *("confidence", "uncertainty", "source", "context"),
)
# Spreadsheets guess the encoding unless a file says so.
_BYTE_ORDER_MARK = "\ufeff"
# What spreadsheets evaluate (https://owasp.org/www-community/attacks/CSV_Injection).
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


class _Row:
    """A file whose write returns the text, as ``csv.writer`` then does."""

    def write(self, text: str) -> str:
        return text


def write_entity_csv(path: Path, items: Iterable[ExportItem]) -> None:
    """Atomically write the entities, replacing any existing file; ``.gz`` and ``.zst`` are compressed.

    Items need no text.
    """
    write_compressed(path, format_csv(_COLUMNS, _rows(items)))


def format_csv(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Yield a table as CSV, line by line; what a spreadsheet would take for a formula begins with an apostrophe."""
    # Its line ends are \r\n, so that Python of every version quotes a cell with either.
    format_row = csv.writer(_Row()).writerow
    yield _BYTE_ORDER_MARK
    for row in chain([columns], rows):
        yield format_row(map(_cell, row))


def _rows(items: Iterable[ExportItem]) -> Iterator[Iterable[Any]]:
    for item in items:
        row = item.document.row
        sentences = {sentence.row.sent_id: sentence for sentence in item.document.sentences}
        part_at = part_finder(row.parts)
        for entity in item.document.entities:
            numbers = (value and round_float(value) for value in (entity.confidence, entity.uncertainty))
            context = " ".join(join_words(sentences[entity.sent_id].tokens).split())
            place = (row.doc_id, row.source_uri, entity.sent_id, entity.start_char, entity.end_char)
            part = part_at(entity.start_char)
            described = "" if part is None else str(part)
            yield (
                *place,
                described,
                entity.label,
                entity.name,
                entity.canonical,
                entity.value,
                *numbers,
                entity.source,
                context,
            )


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value
