"""Gold corpora in columns, one word per line: readers of CoNLL, CoNLL-2012 (OntoNotes 5) and CoNLL-U.

Sentences are separated by blank lines, and a sentence outside of any document is a document of its own.

- CoNLL: the word ``-DOCSTART-`` starts a document.
- CoNLL-2012: word, part of speech and entity, such as ``(PERSON*`` and ``*)``, are in columns 4, 5 and 11;
  ``#begin document`` starts a document or a part of one, and Treebank escapes such as ``-LRB-`` are decoded.
- CoNLL-U: ``# newdoc`` starts a document. Entity labels are in MISC as ``NER=B-PER``; a word without one is ``O``, and
  the label of ``NER=?`` is unknown. Token labels are in UPOS, XPOS or MISC, and every word must have one. Ranges of
  multi-word tokens and empty nodes are ignored, since syntactic words carry the labels; a label that only they have is
  a fault.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from concord.models.labels import OUTSIDE, Span, encode_spans
from concord.pipeline.corpora.corpus_format import (
    EMPTY,
    NO_ENTITY,
    TAG_COLUMNS,
    FaultReporter,
    GoldFormat,
    LabelPlaces,
    SentenceRows,
    numbered_lines,
    split_columns,
)

DOCUMENT_START = "-DOCSTART-"
BEGIN_DOCUMENT = "#begin document"
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_PIECE = re.compile(r"\((?P<opens>[^()*|]+)|(?P<closes>[^()*|]*)\)")
_NO_BRACKET = {"*", "-", EMPTY}
_WORD, _TAG, _ENTITY = 3, 4, 10

COLUMNS = 10
"""Of CoNLL-U."""
ENTITY_KEY = "NER"
# Comments at the head of a file with the trees of a parser: the parser's signature, and the SHA-256 of the source file.
PARSER_KEY = "concord.parser"
SOURCE_KEY = "concord.source"


def read_conll(lines: Iterable[tuple[int, str]], form: GoldFormat, report: FaultReporter) -> Iterator[SentenceRows]:
    """Yield the rows of each sentence; columns are separated by tabs, or by spaces in a line without tabs."""
    rows, places = SentenceRows(), LabelPlaces(str(form.label_column or "the last column"), form)
    for number, line in chain(lines, [(0, "")]):
        columns = split_columns(line)
        if columns and DOCUMENT_START not in (columns[0], _column(columns, form.word_column)):
            _add_conll_row(rows, columns, number, form, places, report)
            continue
        if rows.has_rows:
            yield rows
            rows = SentenceRows()
        if columns:
            # The columns that CoNLL-2003 has after it, -X- -X- O, are not a name.
            rows.document = columns[1] if len(columns) == 2 and columns[1] != "O" else ""
    places.report(report)


def _add_conll_row(
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
        if cell not in _NO_BRACKET and _PIECE.sub("", cell).strip("*|"):
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


def read_conllu(lines: Iterable[tuple[int, str]], form: GoldFormat, report: FaultReporter) -> Iterator[SentenceRows]:
    """Yield the rows of each sentence."""
    rows, places = SentenceRows(), LabelPlaces(str(form.label_column or ENTITY_KEY), form)
    for number, line in chain(lines, [(0, "")]):
        if not line.strip():
            if rows.has_rows:
                _check_ranges(rows, report)
                yield rows
                rows = SentenceRows()
        elif line.startswith("#"):
            key, equals, value = line[1:].partition("=")
            if key.split()[:1] == ["newdoc"]:
                rows.document = value.strip()
            elif equals:
                rows.metadata[key.strip().removeprefix("meta::")] = value.strip()
        else:
            _add_conllu_row(rows, line, number, form, places, report)
    places.report(report)


def read_header(path: Path) -> dict[str, str]:
    """Read the comments on the origin of a corpus' trees, by key; empty if no parser made them.

    Raises:
        InputError: when the file cannot be read.
    """
    header = {}
    for _, line in numbered_lines(path):
        key, _, value = line.removeprefix("#").partition("=")
        if not line.startswith("#") or key.strip() not in (PARSER_KEY, SOURCE_KEY):
            break
        header[key.strip()] = value.strip()
    return header


def misc_values(misc: str) -> dict[str, str]:
    """Return the values of a column MISC by their keys; what has no key has an empty one."""
    pairs = (item.partition("=") for item in misc.split("|"))
    return {key.strip() if equals else "": value.strip() if equals else key for key, equals, value in pairs}


def conllu_row(
    number: int | str,
    form: str,
    *,
    lemma: str | None = None,
    upos: str | None = None,
    xpos: str | None = None,
    feats: str | None = None,
    head: int | None = None,
    deprel: str | None = None,
    misc: str | None = None,
) -> str:
    """Return a line of ten columns; None and empty values are written as ``_``."""
    columns = (lemma, upos, xpos, feats, None if head is None else str(head), deprel, None, misc)
    return "\t".join((str(number), form, *(column or EMPTY for column in columns)))


def _add_conllu_row(
    rows: SentenceRows, line: str, number: int, form: GoldFormat, places: LabelPlaces, report: FaultReporter
) -> None:
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        message = f"expected {COLUMNS} columns separated by tabs, got {len(columns)}"
    elif "-" in columns[0] or "." in columns[0]:
        label = _conllu_label(columns, number, form, places)
        if form.read_scheme.has_entities and label not in NO_ENTITY:
            rows.wordless[columns[0]] = number, label
        return
    elif columns[0] != str(len(rows.words) + 1) and not rows.broken:
        message = f"expected word {len(rows.words) + 1} of the sentence, got {columns[0]!r}"
    elif not columns[1]:
        message = "expected a word form, got an empty column"
    else:
        rows.words.append(columns[1])
        rows.labels.append(_conllu_label(columns, number, form, places))
        rows.tags.append(columns[3])
        rows.heads.append(columns[6])
        rows.relations.append(columns[7])
        rows.numbers.append(number)
        return
    rows.broken = True
    report(number, message)


def _conllu_label(columns: Sequence[str], number: int, form: GoldFormat, places: LabelPlaces) -> str:
    """Return the label of a word, and add it to the places of labels."""
    values = misc_values(columns[9]) | {"upos": columns[3], "xpos": columns[4]}
    label = values.pop(str(form.label_column or ENTITY_KEY), OUTSIDE if form.read_scheme.has_entities else "")
    places.add(number, label, values.items())
    return "" if label == EMPTY and form.label_column in TAG_COLUMNS else label


def _check_ranges(rows: SentenceRows, report: FaultReporter) -> None:
    """Report the labels of ranges and empty nodes, which no word has."""
    for name, (number, label) in rows.wordless.items():
        first, dash, _ = name.partition("-")
        if not (first.isdecimal() and label in rows.labels[int(first) - 1 : int(first)]):
            kind = "range" if dash else "empty node"
            remedy = "write it at a word, and I- at any words of the entity after it"
            report(number, f"the {kind} {name} has the label {label}, which would be lost: {remedy}")
