"""Gold corpora in CoNLL-U with the entity label in the MISC column as ``NER=B-PER``; absent is ``O``.

Token labels stand in UPOS, XPOS or MISC; there every word must have one.

``# newdoc`` starts a document; a sentence before the first one is a document by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from models.data import Sentence
from pipeline.errors import InputError
from pipeline.readers.gold_lines import GoldFormat, check_labels, numbered_lines

COLUMNS = 10
EMPTY = "_"
TAG_COLUMNS = ("upos", "xpos")
# Comments at the head of a file whose trees are a parser's: its signature, and the sha256 of the file parsed.
PARSER_KEY = "concord.parser"
SOURCE_KEY = "concord.source"


@dataclass(slots=True)
class _Rows:
    """The words of the sentence being read, column by column."""

    words: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    relations: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


def read_gold(path: Path, form: GoldFormat) -> list[list[Sentence]]:
    """Read the documents of a corpus, each a list of sentences with labels, tags (UPOS) and trees.

    Tags and trees are None for a sentence that leaves one of them open (``_``); tags also where the labels are parts
    of speech. Ranges of multi-word tokens and empty nodes are passed over: labels stand on syntactic words.

    Raises:
        InputError: with file and line, when the file is no CoNLL-U or a label is not of the scheme.
    """
    documents: list[list[Sentence]] = []
    in_document = False
    for starts_document, rows in _sentences(path, form):
        sentence = _to_sentence(rows, path, form) if rows.words else None
        if starts_document:
            in_document = True
            documents.append([])
        if sentence is not None and in_document:
            documents[-1].append(sentence)
        elif sentence is not None:
            documents.append([sentence])
    return [document for document in documents if document]


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


def _sentences(path: Path, form: GoldFormat) -> Iterator[tuple[bool, _Rows]]:
    """Give the rows of each sentence, and whether it is the first of a document."""
    starts_document, rows = False, _Rows()
    for number, line in numbered_lines(path):
        if not line.strip():
            if rows.words:
                yield starts_document, rows
                starts_document, rows = False, _Rows()
        elif line.startswith("#"):
            starts_document = starts_document or line[1:].split("=")[0].split()[:1] == ["newdoc"]
        else:
            _add_row(rows, line, f"{path}:{number}", number, form)
    if rows.words:
        yield starts_document, rows


def _add_row(rows: _Rows, line: str, where: str, number: int, form: GoldFormat) -> None:
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise InputError(f"{where}: expected {COLUMNS} columns parted by tabs, got {len(columns)}")
    identity, word, _, tag, xpos, _, head, relation, _, misc = columns
    if "-" in identity or "." in identity:
        return
    if identity != str(len(rows.words) + 1):
        raise InputError(f"{where}: expected word {len(rows.words) + 1} of the sentence, got {identity!r}")
    if not word:
        raise InputError(f"{where}: expected a word form, got an empty column")
    column = form.label_column or "NER"
    label = {"upos": tag, "xpos": xpos}.get(column) or _misc_value(misc, column)
    if form.label_scheme == "TOKENS" and label in (None, "", EMPTY):
        raise InputError(f"{where}: expected a label of the word ({column}), got none")
    rows.words.append(word)
    rows.labels.append(label or "O")
    rows.tags.append(tag)
    rows.heads.append(head)
    rows.relations.append(relation)
    rows.numbers.append(number)


def _misc_value(misc: str, wanted: str) -> str | None:
    pairs = (item.partition("=") for item in misc.split("|"))
    return next((value for key, _, value in pairs if key == wanted), None)


def _to_sentence(rows: _Rows, path: Path, form: GoldFormat) -> Sentence:
    check_labels(rows.labels, rows.numbers, path, form)
    has_tree = EMPTY not in rows.heads and EMPTY not in rows.relations
    return Sentence(
        words=tuple(rows.words),
        labels=tuple(rows.labels),
        # Next to labels that are parts of speech they would give the answer away.
        tags=None if EMPTY in rows.tags or form.label_column in TAG_COLUMNS else tuple(rows.tags),
        heads=_read_heads(rows, path) if has_tree else None,
        relations=tuple(rows.relations) if has_tree else None,
    )


def _read_heads(rows: _Rows, path: Path) -> tuple[int, ...]:
    length = len(rows.words)
    for head, number in zip(rows.heads, rows.numbers, strict=True):
        if not (head.isascii() and head.isdigit() and int(head) <= length):
            raise InputError(f"{path}:{number}: expected a head within 0..{length}, got {head!r}")
    return tuple(int(head) for head in rows.heads)
