"""Reader of gold corpora in columns: one word per line, sentences separated by blank lines.

The word ``-DOCSTART-`` starts a document; a sentence outside of any document is a document of its own.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from concord.pipeline.corpora.corpus_format import EMPTY, FaultReporter, GoldFormat, SentenceRows, split_columns
from concord.pipeline.corpora.label_places import LabelPlaces

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
