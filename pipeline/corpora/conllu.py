"""CoNLL-U: reader of gold corpora, and the lines of a file.

Entity labels are in MISC as ``NER=B-PER``; a word without one is ``O``, and the label of ``NER=?`` is not known. Token
labels are in UPOS, XPOS or MISC, and every word must have one.

``# newdoc`` starts a document; a sentence before the first one is a document of its own. Ranges of multi-word tokens
and empty nodes are ignored, since syntactic words carry the labels; a label that only they have is a fault.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from concord.models.labels import OUTSIDE
from concord.pipeline.corpora.corpus_format import (
    EMPTY,
    NO_ENTITY,
    TAG_COLUMNS,
    FaultReporter,
    GoldFormat,
    LabelPlaces,
    SentenceRows,
    numbered_lines,
)

COLUMNS = 10
ENTITY_KEY = "NER"
# Comments at the head of a file with the trees of a parser: the parser's signature, and the SHA-256 of the source file.
PARSER_KEY = "concord.parser"
SOURCE_KEY = "concord.source"


def read_sentences(lines: Iterable[tuple[int, str]], form: GoldFormat, report: FaultReporter) -> Iterator[SentenceRows]:
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
            _add_row(rows, line, number, form, places, report)
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


def _add_row(
    rows: SentenceRows, line: str, number: int, form: GoldFormat, places: LabelPlaces, report: FaultReporter
) -> None:
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        message = f"expected {COLUMNS} columns separated by tabs, got {len(columns)}"
    elif "-" in columns[0] or "." in columns[0]:
        label = _label(columns, number, form, places)
        if form.read_scheme.has_entities and label not in NO_ENTITY:
            rows.wordless[columns[0]] = number, label
        return
    elif columns[0] != str(len(rows.words) + 1) and not rows.broken:
        message = f"expected word {len(rows.words) + 1} of the sentence, got {columns[0]!r}"
    elif not columns[1]:
        message = "expected a word form, got an empty column"
    else:
        rows.words.append(columns[1])
        rows.labels.append(_label(columns, number, form, places))
        rows.tags.append(columns[3])
        rows.heads.append(columns[6])
        rows.relations.append(columns[7])
        rows.numbers.append(number)
        return
    rows.broken = True
    report(number, message)


def _label(columns: Sequence[str], number: int, form: GoldFormat, places: LabelPlaces) -> str:
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
