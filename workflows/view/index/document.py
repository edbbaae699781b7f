"""One page of a document read from the tables: some sentences with their words, and the text around them."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import Any

import numpy as np

from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.collection import Collection
from concord.pipeline.output.document_rows import (
    CollectedDocument,
    CollectedSentence,
    DocumentRow,
    EntityRow,
    SentenceRow,
    TokenRow,
)
from concord.pipeline.output.manifest import ShardReport
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.index.search_index import SLOT_BITS

PAGE_WORDS = 2500
"""Words on a page of a document, to the end of the sentence."""
_SHOWN = ("start_char", "end_char", "text", "draft_ner", "ner", "uncertainty")
_DRAWN = ("upos", "head", "deprel")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadSentence:
    """A sentence with its words; ``gap`` is the text before it, back to the sentence before."""

    row: SentenceRow
    gap: str
    tokens: tuple[TokenRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentPage:
    """A page of a document.

    Attributes:
        text: the whole raw text; None where the input no longer has it.
        missing: why there is no text.
        page, pages: 0-based number of the page, and how many there are.
        entities: rows of the index for entities of this page, in order, or what replaces them.
    """

    row: DocumentRow
    text: str | None
    missing: str
    page: int
    pages: int
    sentences: tuple[ReadSentence, ...]
    entities: Sequence[sqlite3.Row | Mapping[str, Any]]

    def slice(self, start: int, end: int) -> str:
        """Return a slice of the raw text; a space stands for one that is not there."""
        if self.text is None:
            return " " if start < end else ""
        return self.text[start:end]


def read_page(
    opened: OpenedCollection,
    index: sqlite3.Connection,
    listed: sqlite3.Row,
    *,
    page: int | None = None,
    sentence: int | None = None,
    trees: bool = False,
) -> DocumentPage:
    """Read a page of a document, by its number or by the number of a sentence on it; the first one by default.

    Args:
        listed: the document's row of the index.
        trees: whether to read the columns that only a tree shows; they are null otherwise.

    Raises:
        IntegrityError: when the part is gone or damaged, or the index is not up to date yet.
    """
    collection = opened.snapshot.collection
    report, row = read_row(opened, index, listed)
    start = listed["sentence_row"]
    table = collection.read_rows(report, "sentences", SentenceRow._fields, start=start, stop=start + row.n_sentences)
    words = np.concatenate([[0], np.cumsum(table["n_tokens"].to_numpy(), dtype=np.int64)])
    page_of = words[:-1] // PAGE_WORDS
    numbers = np.unique(page_of)
    if sentence is not None and 0 <= sentence < row.n_sentences:
        page = int(np.searchsorted(numbers, page_of[sentence]))
    page = min(max(page or 0, 0), max(len(numbers) - 1, 0))
    first, stop = (
        (np.searchsorted(page_of, numbers[page], side) for side in ("left", "right")) if len(numbers) else (0, 0)
    )
    text = opened.text(row)
    tokens = _read_tokens(
        collection,
        report,
        start=listed["token_row"] + int(words[first]),
        stop=listed["token_row"] + int(words[stop]),
        trees=trees,
    )
    read = DocumentPage(
        row=row,
        text=None if isinstance(text, DeadLetter) else text,
        missing=text.message if isinstance(text, DeadLetter) else "",
        page=page,
        pages=max(len(numbers), 1),
        sentences=(),
        entities=(),
    )
    rows = [SentenceRow(**values) for values in table.slice(int(first), int(stop - first)).to_pylist()]
    before = int(table["end_char"][int(first) - 1].as_py()) if first else 0
    sentences = _with_words(read, rows, tokens, before=before)
    entities = index.execute(
        "SELECT * FROM entities WHERE document = ? AND end > ? AND start < ? ORDER BY number",
        (listed["id"], before, rows[-1].end_char if rows else 0),
    )
    return replace(read, sentences=tuple(sentences), entities=entities.fetchall())


def read_document(opened: OpenedCollection, index: sqlite3.Connection, listed: sqlite3.Row) -> CollectedDocument:
    """Read a whole document with all columns.

    Raises:
        IntegrityError: as of ``read_row``.
    """
    report, row = read_row(opened, index, listed)

    def rows(table: str, names: Sequence[str], start: str, count: int) -> Iterator[tuple[Any, ...]]:
        first = listed[start]
        found = opened.snapshot.collection.read_rows(report, table, names, start=first, stop=first + count)
        return zip(*(found[name].to_pylist() for name in names), strict=True)

    tokens = map(TokenRow._make, rows("tokens", TokenRow._fields, "token_row", row.n_tokens))
    sentences = map(SentenceRow._make, rows("sentences", SentenceRow._fields, "sentence_row", row.n_sentences))
    entities = map(EntityRow._make, rows("entities", EntityRow._fields, "entity_row", row.n_entities))
    return CollectedDocument(
        row=row,
        sentences=tuple(
            CollectedSentence(sentence, tuple(islice(tokens, sentence.n_tokens))) for sentence in sentences
        ),
        entities=tuple(entities),
    )


def read_row(
    opened: OpenedCollection, index: sqlite3.Connection, listed: sqlite3.Row
) -> tuple[ShardReport, DocumentRow]:
    """Return the shard that holds a document of the index, and its row of the table of documents.

    Raises:
        IntegrityError: when the part is gone or damaged, or the index is not up to date yet.
    """
    key = index.execute("SELECT key FROM shards WHERE slot = ?", (listed["id"] >> SLOT_BITS,)).fetchone()[0]
    report = opened.snapshot.shards.get(key)
    if report is None:
        raise IntegrityError(f"{opened.output}: another generation has just become current; load the page again")
    place = listed["id"] & ((1 << SLOT_BITS) - 1)
    collection = opened.snapshot.collection
    found = collection.read_rows(report, "documents", DocumentRow._fields, start=place, stop=place + 1)
    return report, DocumentRow(**found.to_pylist()[0])


def _read_tokens(
    collection: Collection, report: ShardReport, *, start: int, stop: int, trees: bool
) -> Sequence[TokenRow]:
    names = (*_SHOWN, *_DRAWN) if trees else _SHOWN
    table = collection.read_rows(report, "tokens", names, start=start, stop=stop)
    columns = (table[name].to_pylist() if name in names else repeat(None, table.num_rows) for name in TokenRow._fields)
    return list(map(TokenRow._make, zip(*columns, strict=True)))


def _with_words(
    page: DocumentPage, rows: Sequence[SentenceRow], tokens: Sequence[TokenRow], *, before: int
) -> list[ReadSentence]:
    sentences, taken = [], 0
    for row in rows:
        own = tuple(tokens[taken : taken + row.n_tokens])
        sentences.append(ReadSentence(row=row, gap=page.slice(before, row.start_char), tokens=own))
        taken, before = taken + row.n_tokens, row.end_char
    return sentences
