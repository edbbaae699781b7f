"""Readers of gold corpora in columns, one word per line: CoNLL, and CoNLL-2012, the format of OntoNotes 5.

Sentences are separated by blank lines. In CoNLL files the word ``-DOCSTART-`` starts a document; a sentence outside of
any document is a document of its own. In CoNLL-2012 word, part of speech and entity, such as ``(PERSON*`` and ``*)``,
are in columns 4, 5 and 11; ``#begin document`` starts a document, or a part of one, and Treebank escapes such as
``-LRB-`` are decoded.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from concord.models.labels import OUTSIDE, Span, encode_spans
from concord.pipeline.corpora.corpus_format import (
    EMPTY,
    FaultReporter,
    GoldFormat,
    LabelPlaces,
    SentenceRows,
    split_columns,
)

DOCUMENT_START = "-DOCSTART-"


def read_sentences(lines: Iterable[tuple[int, str]], form: GoldFormat, report: FaultReporter) -> Iterator[SentenceRows]:
    """Yield the rows of each sentence; columns are separated by tabs, or by spaces in a line without tabs."""
    rows, places = SentenceRows(), LabelPlaces(str(form.label_column or "the last column"), form)
    for number, line in chain(lines, [(0, "")]):
        columns = split_columns(line)
        if columns and DOCUMENT_START not in (columns[0], _column(columns, form.word_column)):
            _add_row(rows, columns, number, form, places, report)
            continue
        if rows.has_rows:
            yield rows
            rows = SentenceRows()
        if columns:
            # The columns that CoNLL-2003 has after it, -X- -X- O, are not a name.
            rows.document = columns[1] if len(columns) == 2 and columns[1] != "O" else ""
    places.report(report)


def _add_row(
    rows: SentenceRows, columns: list[str], number: int, form: GoldFormat, places: LabelPlaces, report: FaultReporter
) -> None:
    word = _column(columns, form.word_column)
    label = _column(columns, form.label_column) if isinstance(form.label_column, int) else columns[-1]
    tag = EMPTY if form.tag_column is None else _column(columns, form.tag_column)
    if len(columns) < 2 or not word or not label or not tag:
        line = "\t".join(columns)
        report(number, f"expected {_expected(form)}, separated by tabs or spaces, got {line!r}")
        rows.broken = True
        return
    read = {form.word_column, form.label_column or len(columns)}
    others = ((str(place), value) for place, value in enumerate(columns, 1) if place not in read)
    places.add(number, label, others)
    rows.words.append(word)
    rows.labels.append(label)
    rows.tags.append(tag)
    rows.numbers.append(number)


def _expected(form: GoldFormat) -> str:
    label = "a label" if form.label_column is None else f"a label in column {form.label_column}"
    tag = "" if form.tag_column is None else f", a part of speech in column {form.tag_column}"
    return f"a word in column {form.word_column}{tag} and {label}"


def _column(columns: list[str], number: int) -> str | None:
    return columns[number - 1] if number <= len(columns) else None


BEGIN_DOCUMENT = "#begin document"
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_PIECE = re.compile(r"\((?P<opens>[^()*|]+)|(?P<closes>[^()*|]*)\)")
_NO_ENTITY = {"*", "-", EMPTY}


_WORD, _TAG, _ENTITY = 3, 4, 10


def read_conll2012(lines: Iterable[tuple[int, str]], form: GoldFormat, report: FaultReporter) -> Iterator[SentenceRows]:
    """Yield the rows of each sentence, labelled in BIO2."""
    rows, cells = SentenceRows(), list[str]()
    for number, line in chain(lines, [(0, "")]):
        columns = [] if line.startswith("#") else split_columns(line)
        if columns:
            _add_bracketed_row(rows, cells, columns, number, report)
            continue
        if rows.has_rows:
            rows.labels = ["" if tag in {EMPTY, "-"} else tag for tag in rows.tags]
            if form.label_column is None:
                rows.labels = list(_to_labels(cells, rows, report))
            yield rows
            rows, cells = SentenceRows(), []
        if line.startswith(BEGIN_DOCUMENT):
            rows.document = line.removeprefix(BEGIN_DOCUMENT).strip()


def _add_bracketed_row(
    rows: SentenceRows, cells: list[str], columns: Sequence[str], number: int, report: FaultReporter
) -> None:
    if len(columns) <= _ENTITY or not columns[_WORD]:
        report(number, f"expected a word in column {_WORD + 1} and {_ENTITY + 1} columns or more, got {len(columns)}")
        rows.broken = True
        return
    word = columns[_WORD]
    rows.words.append(_BRACKETS.get(word, word))
    rows.tags.append(columns[_TAG])
    cells.append(columns[_ENTITY])
    rows.numbers.append(number)


def _to_labels(cells: Sequence[str], rows: SentenceRows, report: FaultReporter) -> tuple[str, ...]:
    """Convert a column of brackets to BIO2; a sentence with unbalanced brackets is marked as broken."""

    def reject(number: int, message: str) -> None:
        rows.broken = True
        report(number, message)

    spans: list[Span] = []
    opened: tuple[int, str] | None = None
    for position, (cell, number) in enumerate(zip(cells, rows.numbers, strict=True)):
        if cell not in _NO_ENTITY and _PIECE.sub("", cell).strip("*|"):
            reject(number, f"expected an entity such as (PERSON*, *) or (PERSON), got {cell!r}")
        for piece in _PIECE.finditer(cell):
            if piece["opens"] is not None:
                if opened is not None:
                    reject(number, f"{cell!r} opens an entity within another, the {opened[1]} of word {opened[0] + 1}")
                elif spans and spans[-1].end > position:
                    reject(number, f"{cell!r} opens an entity at the last word of another")
                opened = position, piece["opens"]
            elif opened is None:
                reject(number, f"{cell!r} closes an entity that this sentence has not opened")
            elif piece["closes"] not in ("", opened[1]):
                reject(number, f"{cell!r} closes another entity than the one that is open, of type {opened[1]}")
            else:
                spans.append(Span(opened[0], position + 1, opened[1]))
                opened = None
    if opened is not None:
        reject(rows.numbers[opened[0]], f"the {opened[1]} that starts here is not closed in its sentence")
    return (OUTSIDE,) * len(cells) if rows.broken else encode_spans(spans, len(cells), "BIO")
