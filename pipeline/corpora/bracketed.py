"""Reader of the CoNLL-2012 shared task, the format of OntoNotes 5, which marks entities by brackets in a column.

Word, part of speech and entity, such as ``(PERSON*`` and ``*)``, are in columns 4, 5 and 11; there are no dependency
trees. ``#begin document`` starts a document, or a part of one. Treebank escapes such as ``-LRB-`` are decoded.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from concord.models.labels import OUTSIDE, Span, encode_spans
from concord.pipeline.corpora.corpus_format import EMPTY, FaultReporter, GoldFormat, SentenceRows, split_columns

BEGIN_DOCUMENT = "#begin document"
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_PIECE = re.compile(r"\((?P<opens>[^()*|]+)|(?P<closes>[^()*|]*)\)")
_NO_ENTITY = {"*", "-", EMPTY}


WORD, TAG, ENTITY = 3, 4, 10


def read_sentences(lines: Iterable[tuple[int, str]], form: GoldFormat, report: FaultReporter) -> Iterator[SentenceRows]:
    """Yield the rows of each sentence, labelled in BIO2."""
    rows, cells = SentenceRows(), list[str]()
    for number, line in chain(lines, [(0, "")]):
        columns = [] if line.startswith("#") else split_columns(line)
        if columns:
            _add_row(rows, cells, columns, number, report)
            continue
        if rows.has_rows:
            rows.labels = ["" if tag in {EMPTY, "-"} else tag for tag in rows.tags]
            if form.label_column is None:
                rows.labels = list(_to_labels(cells, rows, report))
            yield rows
            rows, cells = SentenceRows(), []
        if line.startswith(BEGIN_DOCUMENT):
            rows.document = line.removeprefix(BEGIN_DOCUMENT).strip()


def _add_row(rows: SentenceRows, cells: list[str], columns: Sequence[str], number: int, report: FaultReporter) -> None:
    if len(columns) <= ENTITY or not columns[WORD]:
        report(number, f"expected a word in column {WORD + 1} and {ENTITY + 1} columns or more, got {len(columns)}")
        rows.broken = True
        return
    word = columns[WORD]
    rows.words.append(_BRACKETS.get(word, word))
    rows.tags.append(columns[TAG])
    cells.append(columns[ENTITY])
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
