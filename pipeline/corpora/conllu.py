"""CoNLL-U: reader of gold corpora, and the lines of a file.

Entity labels are in MISC as ``NER=B-PER``; a word without one is ``O``, and the label of ``NER=?`` is not known. Token
labels are in UPOS, XPOS or MISC, and every word must have one.

``# newdoc`` starts a document; a sentence before the first one is a document of its own. Ranges of multi-word tokens
and empty nodes are ignored: syntactic words carry the labels.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from concord.pipeline.corpora.corpus_format import EMPTY, FaultReporter, GoldFormat, SentenceRows, numbered_lines

COLUMNS = 10
ENTITY_KEY = "NER"
# Comments at the head of a file with the trees of a parser: the parser's signature, and the SHA-256 of the source file.
PARSER_KEY = "concord.parser"
SOURCE_KEY = "concord.source"


def read_sentences(lines: Iterable[tuple[int, str]], form: GoldFormat, report: FaultReporter) -> Iterator[SentenceRows]:
    """Yield the rows of each sentence."""
    rows = SentenceRows()
    for number, line in lines:
        if not line.strip():
            if rows.has_rows:
                yield rows
                rows = SentenceRows()
        elif line.startswith("#"):
            key, equals, value = line[1:].partition("=")
            if key.split()[:1] == ["newdoc"]:
                rows.document = value.strip()
            elif equals:
                rows.metadata[key.strip().removeprefix("meta::")] = value.strip()
        else:
            _add_row(rows, line, number, form, report)
    if rows.has_rows:
        yield rows


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


def _add_row(rows: SentenceRows, line: str, number: int, form: GoldFormat, report: FaultReporter) -> None:
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        message = f"expected {COLUMNS} columns separated by tabs, got {len(columns)}"
    elif "-" in columns[0] or "." in columns[0]:
        return
    elif columns[0] != str(len(rows.words) + 1) and not rows.broken:
        message = f"expected word {len(rows.words) + 1} of the sentence, got {columns[0]!r}"
    elif not columns[1]:
        message = "expected a word form, got an empty column"
    else:
        _, word, _, tag, xpos, _, head, relation, _, misc = columns
        rows.words.append(word)
        rows.labels.append(_label(tag, xpos, misc, form))
        rows.tags.append(tag)
        rows.heads.append(head)
        rows.relations.append(relation)
        rows.numbers.append(number)
        return
    rows.broken = True
    report(number, message)


def _label(tag: str, xpos: str, misc: str, form: GoldFormat) -> str:
    column = form.label_column or ENTITY_KEY
    if column == "upos" or column == "xpos":
        label = tag if column == "upos" else xpos
        return "" if label == EMPTY else label
    pairs = (item.partition("=") for item in misc.split("|"))
    absent = "O" if form.read_scheme.has_entities else ""
    return next((value for key, _, value in pairs if key == column), absent)


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
