"""Queries to the index for places in their context: those of a name, and those of words."""

import re
import sqlite3
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

from concord.workflows.view.index.documents import ALL_DOCUMENTS, PLACE, DocumentFilter, IndexedDocument
from concord.workflows.view.index.folding import INNER_SPACE, fold_word
from concord.workflows.view.index.index_rows import GLUE, SHARED
from concord.workflows.view.index.search_index import FIRST_PAGE, count_rows, join_conditions, select
from concord.workflows.view.page import UnavailableError, Window

SEARCHED = 5_000
"""Sentences that are looked at for entities of a type."""
_CONTEXT = 60
_OPEN, _CLOSE = "\ue002", "\ue003"
_WORD = re.compile(r"\w+(?=n't\b)|n't\b|'\w+|\w+|[^\w\s]+")
_TERM = re.compile(r'"(?:[^"]|"")*"?|[()]|[^\s()"]+')
_OPERATORS = ("AND", "OR", "NOT")
_OF_SENTENCE = "FROM documents WHERE sentences AND first_sentence <= {} ORDER BY first_sentence DESC LIMIT 1"
_DOCUMENT = f"(SELECT id {_OF_SENTENCE.format('words.rowid')})"
"""The number of the document that a row of the table words is in, in SQL."""

Column: TypeAlias = Literal["forms", "lemmas"]
"""In which the words of a search are to be found."""


class IndexedEntity(NamedTuple):
    """A row of the table entities of the index; its words are counted from 1 in the sentence."""

    number: int
    start: int
    end: int
    label: str
    name: str
    confidence: float | None
    uncertainty: float | None
    refined: bool
    changed: bool
    origin: str | None
    first_word: int = 0
    last_word: int = 0


class Line(NamedTuple):
    """A match in its context, with the entity if it is one that was asked for, or lies in one."""

    doc_id: str
    title: str | None
    sent_id: int
    left: str
    match: str
    right: str
    entity: IndexedEntity | None = None


def places_of_name(
    index: sqlite3.Connection,
    *,
    name: str = "",
    key: str = "",
    label: str = "",
    document: int | None = None,
    document_filter: DocumentFilter = ALL_DOCUMENTS,
    window: Window = FIRST_PAGE,
) -> tuple[list[Line], int]:
    """Return some of the entities that are written as ``name`` or have the name ``key``, and how many there are."""
    where, values = join_conditions(
        ("e.name = ?", name), ("e.key = ?", key), ("e.label = ?", label), ("e.document = ?", document)
    )
    of_document, document_values = document_filter.where()
    columns = ", ".join(f"e.{name}" for name in IndexedEntity._fields)
    rest = f"entities e JOIN documents d ON d.id = e.document WHERE {where} AND {of_document}"
    rows = index.execute(
        "SELECT e.sent_id, d.doc_id, d.title, "
        f"(SELECT coalesce(shown, forms) FROM words WHERE rowid = d.first_sentence + e.sent_id), {columns} "
        f"FROM {rest} ORDER BY {PLACE}, e.number LIMIT ? OFFSET ?",
        (*values, *document_values, *window),
    )
    lines = []
    for sent_id, doc_id, title, forms, *columns in rows:
        entity = IndexedEntity(*columns)
        parts = _split(forms, entity.first_word - 1, entity.last_word) if forms else ("", entity.name, "")
        lines.append(Line(doc_id, title, sent_id, *parts, entity))
    return lines, count_rows(index, rest, (*values, *document_values))


def find_words(
    index: sqlite3.Connection,
    text: str,
    *,
    column: Column,
    document: IndexedDocument | None,
    document_filter: DocumentFilter = ALL_DOCUMENTS,
    label: str = "",
    window: Window = FIRST_PAGE,
) -> tuple[list[Line], int]:
    """Return some of the sentences that match, a line for each match, and how many sentences there are.

    Args:
        text: words, "words next to each other", AND, OR, NOT and brackets; a ``*`` at the end of a word stands for any
            further letters.
        column: whether the words are to be found in their forms or as lemmas; case and accents make no difference.
        document, document_filter: search only there.
        label: only matches in entities of this type, of the first ``SEARCHED`` sentences that match; they are counted.

    Raises:
        UnavailableError: when the words and operators are no query.
    """
    where, values = _words_condition(text, column, document)
    of_document, document_values = document_filter.where()
    if of_document != "1":
        where += f" AND {_DOCUMENT} IN (SELECT d.id FROM documents d WHERE {of_document})"
        values += document_values
    number = 0 if column == "forms" else 1
    try:
        rows = index.execute(
            f"SELECT rowid, coalesce(shown, forms), highlight(words, {number}, '{_OPEN}', '{_CLOSE}') FROM words "
            f"WHERE {where} ORDER BY rowid LIMIT ? OFFSET ?",
            (*values, *((SEARCHED, 0) if label else window)),
        ).fetchall()
    except sqlite3.OperationalError as error:
        if "fts5" not in str(error):
            raise
        raise UnavailableError(f"{text!r} is no search: {str(error).removeprefix('fts5: ')}") from None
    lines = [line for row in rows for line in _lines(index, *row, label=label)]
    if label:
        return lines[window.offset : window.offset + window.limit], len(lines)
    return lines, count_rows(index, f"words WHERE {where}", values)


def documents_found(index: sqlite3.Connection, text: str, *, column: Column, document: IndexedDocument | None) -> str:
    """Return the numbers of the documents in which ``find_words`` finds a text, as a JSON list."""
    where, values = _words_condition(text, column, document)
    query = f"SELECT json_group_array(DISTINCT {_DOCUMENT}) FROM words WHERE {where}"
    numbers: str = index.execute(query, values).fetchone()[0]
    return numbers


def documents_with(index: sqlite3.Connection, text: str) -> list[IndexedDocument]:
    """Return the documents in which words occur next to each other, in the collection's order."""
    query = _query(quote(text), "forms")
    rest = f"FROM documents d WHERE id IN (SELECT {_DOCUMENT} FROM words WHERE words MATCH ?) ORDER BY {PLACE}"
    return select(index, IndexedDocument, rest, (query,)) if query else []


def quote(words: str) -> str:
    """Return a search for words next to each other."""
    return '"{}"'.format(words.replace('"', '""'))


def _words_condition(text: str, column: Column, document: IndexedDocument | None) -> tuple[str, list[Any]]:
    """Return the condition on the table words that they match, and its values."""
    query = _query(text, column)
    where, values = ("words MATCH ?", list[Any]([query])) if query else ("0", [])
    if document is not None:
        where += " AND rowid BETWEEN ? AND ?"
        values += [document.first_sentence, document.first_sentence + document.sentences - 1]
    return where, values


def _lines(index: sqlite3.Connection, sentence: int, forms: str, marked: str, *, label: str) -> Iterator[Line]:
    """Yield the matches of a row of the words, which ``marked`` holds between marks; with a label those in entities."""
    [document] = select(index, IndexedDocument, _OF_SENTENCE.format("?"), (sentence,))
    sent_id = sentence - document.first_sentence
    where, values = join_conditions(("label = ?", label))
    rest = f"FROM entities WHERE document = ? AND sent_id = ? AND {where} ORDER BY number"
    entities = select(index, IndexedEntity, rest, (document.id, sent_id, *values))
    first = 0
    for part in re.split(f"({_OPEN}[^{_CLOSE}]*{_CLOSE})", marked):
        end = first + len(re.findall(f"[ {GLUE}]", part))
        if part.startswith(_OPEN):
            entity = next((it for it in entities if it.first_word <= end + 1 and it.last_word > first), None)
            if entity is not None or not label:
                yield Line(document.doc_id, document.title, sent_id, *_split(forms, first, end + 1), entity)
        first = end


def _query(text: str, column: str) -> str | None:
    """Return a query of FTS5, which knows the operators; None without words."""
    text = text.replace("\0", "").strip()
    parts: list[str] = []
    for term in _TERM.findall(text):
        if parts and term not in (")", *_OPERATORS) and parts[-1] not in ("(", *_OPERATORS):
            parts.append("AND")
        if term == "NOT" and parts and parts[-1] == "AND":
            parts.pop()
        parts.append(term if term in ("(", ")", *_OPERATORS) else _phrase(term))
    return f"{column} : ({' '.join(parts)})" if parts else None


def _phrase(term: str) -> str:
    """Return a query for words next to each other, separated as they are given, or as English words are."""
    words = (term[1:].removesuffix('"').replace('""', '"') if term.startswith('"') else term) or term
    prefix = "*" if words.endswith("*") and len(words) > 1 else ""
    words = " ".join(map(fold_word, words.removesuffix(prefix).split()))
    phrases = filter(None, dict.fromkeys((tuple(words.split()), tuple(_WORD.findall(words)))))
    return "({})".format(" OR ".join(" + ".join(map(quote, phrase)) + f" {prefix}" for phrase in phrases) or '""')


def _split(forms: str, first: int, end: int) -> tuple[str, str, str]:
    """Split a sentence before and after some of its words, given by their numbers from 0 on; cut what is far away."""
    pieces = re.split(f"([ {GLUE}])", forms)
    start, stop = 2 * first, 2 * end - 1
    while start and pieces[start] == SHARED:
        start -= 2
    left, match, right = (_shown("".join(piece)) for piece in (pieces[:start], pieces[start:stop], pieces[stop:]))
    # Cut between words, if there are spaces.
    if len(left) > _CONTEXT:
        _, _, words = left[-_CONTEXT:].partition(" ")
        left = f"\u2026{words or left[-_CONTEXT:]}"
    if len(right) > _CONTEXT:
        words, _, _ = right[:_CONTEXT].rpartition(" ")
        right = f"{words or right[:_CONTEXT]}\u2026"
    return left, match, right


def _shown(forms: str) -> str:
    return forms.replace(GLUE, "").replace(SHARED, "").replace(INNER_SPACE, " ")
