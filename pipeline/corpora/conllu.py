"""Gold corpora in CoNLL-U with the entity label in the MISC column as ``NER=B-PER``; absent is ``O``.

Token labels stand in UPOS, XPOS or MISC; there every word must have one.

``# newdoc`` starts a document; a sentence before the first one is a document by itself. Ranges of multi-word tokens
and empty nodes are passed over: labels stand on syntactic words.
"""

from collections.abc import Iterator
from pathlib import Path

from concord.pipeline.corpora.corpus_format import EMPTY, Fault, GoldFormat, OnFault, Rows, numbered_lines

COLUMNS = 10
ENTITY_KEY = "NER"
# Comments at the head of a file whose trees are a parser's: its signature, and the sha256 of the file parsed.
PARSER_KEY = "concord.parser"
SOURCE_KEY = "concord.source"


def read_rows(path: Path, form: GoldFormat, on_fault: OnFault) -> Iterator[Rows]:
    """Give the rows of each sentence.

    Raises:
        InputError: when the file cannot be opened or unpacked.
    """
    rows = Rows()
    for number, line in numbered_lines(path, on_fault):
        if not line.strip():
            if rows.numbers or rows.broken:
                yield rows
                rows = Rows()
        elif line.startswith("#"):
            key, equals, value = line[1:].partition("=")
            if key.split()[:1] == ["newdoc"]:
                rows.document = value.strip()
            elif equals:
                rows.metadata[key.strip().removeprefix("meta::")] = value.strip()
        else:
            _add_row(rows, line, number, path, form, on_fault)
    if rows.numbers or rows.broken:
        yield rows


def read_header(path: Path) -> dict[str, str]:
    """Give what the first comments of a corpus say of its trees, by key; empty where they are no parser's.

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


def _add_row(rows: Rows, line: str, number: int, path: Path, form: GoldFormat, on_fault: OnFault) -> None:
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        message = f"expected {COLUMNS} columns parted by tabs, got {len(columns)}"
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
    on_fault(Fault(path=path, line=number, message=message))


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
    """Give one line of ten columns; what is None or empty is left open."""
    columns = (lemma, upos, xpos, feats, None if head is None else str(head), deprel, None, misc)
    return "\t".join((str(number), form, *(column or EMPTY for column in columns)))
