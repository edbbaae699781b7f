"""Queries to the index: documents by facets, names with their labels, and words in context."""

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeVar

from concord.workflows.view.index.index_rows import GLUE, INNER_SPACE, SHARED
from concord.workflows.view.index.search_index import BANDS, SLOT_BITS
from concord.workflows.view.page import NotFoundError

PAGE_ROWS = 50
SOURCES = 12
"""Files listed as a facet; those with the most documents."""
_CONTEXT = 70
_OPEN, _CLOSE = "\ue002", "\ue003"
_WORD = re.compile(r"\w+(?=n't\b)|n't\b|'\w+|\w+|[^\w\s]+")

_PLACE = "d.source, d.position, d.doc_id"
"""The order of the input, which stays when documents are annotated again and shards are rewritten or merged."""
DOCUMENT_ORDERS = {
    "collection": _PLACE,
    "entities": f"d.entities DESC, {_PLACE}",
    "words": f"d.words DESC, {_PLACE}",
    "changed": f"d.changed DESC, {_PLACE}",
    "least certain": f"d.confidence IS NULL, d.confidence, {_PLACE}",
}
NAME_ORDERS = {
    "count": "entities DESC, name",
    "documents": "documents DESC, name",
    "least certain": "confidence, name",
    "name": "folded, name",
}


class IndexedDocument(NamedTuple):
    """A row of the table documents of the index."""

    id: int
    source: str
    position: int
    doc_id: str
    title: str | None
    sentence_row: int
    token_row: int
    entity_row: int
    sentences: int
    words: int
    entities: int
    refined: int
    changed: int
    confidence: float | None

    @property
    def heading(self) -> str:
        """The title, or the id of a document without one."""
        return self.title or self.doc_id

    @property
    def place(self) -> tuple[str, int, str]:
        """Its place in the order of the collection."""
        return self.source, self.position, self.doc_id

    @property
    def first_sentence(self) -> int:
        """The row of its first sentence in the table words."""
        return (self.id >> SLOT_BITS << SLOT_BITS) + self.sentence_row


class IndexedEntity(NamedTuple):
    """A row of the table entities of the index."""

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


class IndexedDeadLetter(NamedTuple):
    """A row of the table dead_letters of the index."""

    doc_id: str | None
    source: str
    position: int
    stage: str
    error: str
    message: str
    attempts: int


class IndexedName(NamedTuple):
    """A row of the table names of the index; ``labels`` is their number."""

    name: str
    entities: int
    documents: int
    confidence: float | None
    labels: int


class NameLabel(NamedTuple):
    """A row of the table name_labels of the index."""

    name: str
    label: str
    entities: int
    confidence: float | None


RowT = TypeVar("RowT", IndexedDocument, IndexedEntity, IndexedDeadLetter, IndexedName, NameLabel)


def select(index: sqlite3.Connection, row_type: type[RowT], rest: str, values: Sequence[Any] = ()) -> list[RowT]:
    """Return the rows of a query in SQL, given from FROM on."""
    columns = ", ".join(row_type._fields)
    return [row_type(*row) for row in index.execute(f"SELECT {columns} {rest}", values)]


class Choice(NamedTuple):
    """A value of a facet, with the number of documents that have it."""

    value: str
    name: str
    documents: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentFilter:
    """Which documents to list; the entity facets hold for one and the same entity.

    Attributes:
        label: of an entity.
        band: of an entity's confidence: how many of ``BANDS`` it reaches; None for any.
        changed: whether stage two changed an entity.
        generation: in which the document was annotated; None for any.
        text: part of the id or title.
    """

    label: str = ""
    band: int | None = None
    changed: bool = False
    tagger: str = ""
    source: str = ""
    generation: int | None = None
    text: str = ""

    def without(self, *names: str) -> "DocumentFilter":
        """Return the filter without some of its facets."""
        return replace(self, **{name: getattr(DocumentFilter(), name) for name in names})

    def where(self) -> tuple[str, list[Any]]:
        """Return the condition on the table documents, called d, in SQL, and its values."""
        of_entity, entity_values = self.entity_condition()
        of_document, values = join_conditions(
            ("d.tagger = ?", self.tagger),
            ("d.source = ?", self.source),
            ("d.generation = ?", self.generation),
            ("(instr(lower(d.doc_id), lower(?)) OR instr(lower(coalesce(d.title, '')), lower(?)))", self.text),
        )
        if of_entity == "1":
            return of_document, values
        condition = f"d.id IN (SELECT k.document FROM kinds k WHERE {of_entity}) AND {of_document}"
        return condition, [*entity_values, *values]

    def entity_condition(self) -> tuple[str, list[Any]]:
        """Return the condition on the table kinds, called k, and its values."""
        return join_conditions(("k.label = ?", self.label), ("k.band = ?", self.band), ("k.changed", self.changed))


def join_conditions(*conditions: tuple[str, object]) -> tuple[str, list[Any]]:
    """Return conditions in SQL joined by AND, and their values; one whose value is empty, None or false is left out."""
    chosen = [(condition, value) for condition, value in conditions if value is not False and value not in ("", None)]
    where = " AND ".join(condition for condition, _ in chosen) or "1"
    return where, [value for condition, value in chosen for _ in range(condition.count("?"))]


def find_documents(
    index: sqlite3.Connection, document_filter: DocumentFilter, *, order: str, page: int
) -> tuple[list[IndexedDocument], int]:
    """Return a page of documents, and how many there are."""
    where, values = document_filter.where()
    rest = f"FROM documents d WHERE {where} ORDER BY {DOCUMENT_ORDERS[order]} LIMIT ? OFFSET ?"
    rows = select(index, IndexedDocument, rest, (*values, PAGE_ROWS, page * PAGE_ROWS))
    return rows, count_rows(index, f"documents d WHERE {where}", values)


def facets(index: sqlite3.Connection, document_filter: DocumentFilter) -> dict[str, list[Choice]]:
    """Return the values of each facet, counted under the choices in the other facets."""
    of_document, values = document_filter.without("label", "band", "changed").where()
    joined = "" if of_document == "1" else f"JOIN documents d ON d.id = k.document AND {of_document}"
    choices = {}
    for name in ("label", "band", "changed"):
        of_entity, entity_values = document_filter.without(name).entity_condition()
        rows = index.execute(
            f"SELECT k.{name}, count(DISTINCT k.document) FROM kinds k {joined} WHERE {of_entity} "
            "GROUP BY 1 ORDER BY 1",
            [*values, *entity_values],
        )
        choices[name] = [Choice(str(value), str(value), count) for value, count in rows]
    choices["band"] = [choice._replace(name=band_name(int(choice.value))) for choice in choices["band"]]
    choices["changed"] = [choice for choice in choices["changed"] if choice.value == "1"]
    for name in ("tagger", "generation", "source"):
        where, values = document_filter.without(name).where()
        rows = index.execute(
            f"SELECT d.{name}, count(*) FROM documents d WHERE {where} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {SOURCES}",
            values,
        )
        choices[name] = [Choice(str(value), str(value), count) for value, count in rows]
    return choices


def count_rows(index: sqlite3.Connection, table: str, values: Sequence[Any] = ()) -> int:
    """Return how many rows a table has, or what follows FROM in SQL."""
    return int(index.execute(f"SELECT count(*) FROM {table}", values).fetchone()[0])


def band_name(number: int) -> str:
    """Return the bounds of a band of confidence, of which a tagger without probabilities has none."""
    if number < 0:
        return "none"
    limits = ("0", *(f"{limit:g}" for limit in BANDS), "1")
    return f"{limits[number]} to {limits[number + 1]}"


def find_document(index: sqlite3.Connection, doc_id: str) -> IndexedDocument | None:
    """Return the row of a document; None if the index has none of this id."""
    return next(iter(select(index, IndexedDocument, "FROM documents WHERE doc_id = ?", (doc_id,))), None)


def get_document(index: sqlite3.Connection, doc_id: str) -> IndexedDocument:
    """Return the row of a document; NotFoundError if the index has none of this id."""
    document = find_document(index, doc_id)
    if document is None:
        raise NotFoundError(f"there is no document {doc_id!r}")
    return document


def neighbours(index: sqlite3.Connection, document: IndexedDocument) -> tuple[str | None, str | None]:
    """Return the ids of the documents before and after one in the order of the collection."""
    before, after = (
        index.execute(
            f"SELECT doc_id FROM documents WHERE (source, position, doc_id) {sign} (?, ?, ?) "
            f"ORDER BY source {way}, position {way}, doc_id {way} LIMIT 1",
            document.place,
        ).fetchone()
        for sign, way in (("<", "DESC"), (">", "ASC"))
    )
    return before and before[0], after and after[0]


class DocumentName(NamedTuple):
    """A name in a document: the labels of its entities, and how many there are."""

    name: str
    labels: Sequence[str]
    entities: int


def names_of_document(index: sqlite3.Connection, document: int) -> list[DocumentName]:
    """Return the names in a document by frequency."""
    rows = index.execute(
        "SELECT name, group_concat(DISTINCT label), count(*) AS entities FROM entities WHERE document = ? "
        "GROUP BY name ORDER BY entities DESC, name",
        (document,),
    )
    return [DocumentName(name, labels.split(","), entities) for name, labels, entities in rows]


def find_names(
    index: sqlite3.Connection, *, text: str, label: str, disagree: bool, order: str, page: int
) -> tuple[list[IndexedName], int]:
    """Return a page of the names of all entities, and how many there are."""
    where, values = join_conditions(
        ("instr(folded, lower(?))", text),
        ("name IN (SELECT name FROM name_labels WHERE label = ?)", label),
        ("labels > 1", disagree),
    )
    rest = f"FROM names WHERE {where} ORDER BY {NAME_ORDERS[order]} LIMIT ? OFFSET ?"
    rows = select(index, IndexedName, rest, (*values, PAGE_ROWS, page * PAGE_ROWS))
    return rows, count_rows(index, f"names WHERE {where}", values)


def labels_of_names(index: sqlite3.Connection, names: Sequence[str]) -> dict[str, list[NameLabel]]:
    """Return the labels of some names with their numbers of entities, the most frequent first."""
    labels: dict[str, list[NameLabel]] = {name: [] for name in names}
    places = ", ".join("?" * len(names))
    rest = f"FROM name_labels WHERE name IN ({places}) ORDER BY entities DESC, label"
    for row in select(index, NameLabel, rest, names):
        labels[row.name].append(row)
    return labels


def all_labels(index: sqlite3.Connection) -> list[str]:
    """Return the entity types of the collection, sorted."""
    return [row[0] for row in index.execute("SELECT DISTINCT label FROM kinds ORDER BY 1")]


class Line(NamedTuple):
    """A match in its context, with the entity if it is one that was asked for."""

    doc_id: str
    title: str | None
    sent_id: int
    left: str
    match: str
    right: str
    entity: IndexedEntity | None = None


def places_of_name(
    index: sqlite3.Connection, name: str, *, label: str = "", document: int | None = None, page: int = 0
) -> tuple[list[Line], int]:
    """Return a page of the entities of a name in context, and how many there are."""
    where, values = join_conditions(("e.label = ?", label), ("e.document = ?", document))
    where, values = f"e.name = ? AND {where}", [name, *values]
    columns = ", ".join(f"e.{name}" for name in IndexedEntity._fields)
    rows = index.execute(
        f"SELECT e.sent_id, d.doc_id, d.title, w.forms, {columns} "
        "FROM entities e JOIN documents d ON d.id = e.document "
        f"LEFT JOIN words w ON w.rowid = (e.document >> {SLOT_BITS} << {SLOT_BITS}) + d.sentence_row + e.sent_id "
        f"WHERE {where} ORDER BY {_PLACE}, e.number LIMIT ? OFFSET ?",
        (*values, PAGE_ROWS, page * PAGE_ROWS),
    ).fetchall()
    lines, seen = [], Counter[tuple[str, int]]()
    for sent_id, doc_id, title, forms, *entity in rows:
        parts = _split_at_name(_shown(forms or ""), name, seen[doc_id, sent_id])
        seen[doc_id, sent_id] += 1
        lines.append(Line(doc_id, title, sent_id, *parts, IndexedEntity(*entity)))
    return lines, count_rows(index, f"entities e WHERE {where}", values)


def find_words(
    index: sqlite3.Connection,
    text: str,
    *,
    column: Literal["forms", "lemmas"],
    document: IndexedDocument | None,
    page: int = 0,
) -> tuple[list[Line], int]:
    """Return a page of the sentences that contain words next to each other, a line for each match, and how many
    sentences there are.

    Args:
        text: words; a ``*`` at the end stands for any further letters.
        column: whether the words are to be found in their forms or as lemmas; case and accents make no difference.
        document: search only there.
    """
    query = _match(text, column)
    if query is None:
        return [], 0
    where, values = "words MATCH ?", list[Any]([query])
    if document is not None:
        where += " AND rowid BETWEEN ? AND ?"
        values += [document.first_sentence, document.first_sentence + document.sentences - 1]
    number = 0 if column == "forms" else 1
    rows = index.execute(
        f"SELECT rowid, forms, highlight(words, {number}, '{_OPEN}', '{_CLOSE}') FROM words WHERE {where} "
        "ORDER BY rowid LIMIT ? OFFSET ?",
        (*values, PAGE_ROWS, page * PAGE_ROWS),
    ).fetchall()
    lines = [line for row in rows for line in _lines(index, *row)]
    return lines, count_rows(index, f"words WHERE {where}", values)


def documents_with(index: sqlite3.Connection, text: str) -> list[IndexedDocument]:
    """Return the documents in which words occur next to each other, in the collection's order."""
    query = _match(text, "forms")
    if query is None:
        return []
    documents: list[IndexedDocument] = []
    end = -1
    for (sentence,) in index.execute("SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid", (query,)):
        if sentence >= end:
            document = _document_of(index, sentence)
            documents.append(document)
            end = document.first_sentence + document.sentences
    return sorted(documents, key=attrgetter("place"))


def _document_of(index: sqlite3.Connection, sentence: int) -> IndexedDocument:
    """Return the document that a row of the words is in."""
    slot, row = sentence >> SLOT_BITS, sentence & ((1 << SLOT_BITS) - 1)
    rest = "FROM documents WHERE id >= ? AND id < ? AND sentence_row <= ? ORDER BY id DESC LIMIT 1"
    return select(index, IndexedDocument, rest, (slot << SLOT_BITS, (slot + 1) << SLOT_BITS, row))[0]


def _lines(index: sqlite3.Connection, sentence: int, forms: str, marked: str) -> Iterator[Line]:
    """Yield the matches of a row of the words, which ``marked`` holds between marks."""
    document = _document_of(index, sentence)
    sent_id = sentence - document.first_sentence
    pieces = re.split(f"([ {GLUE}])", forms)
    number = 0
    for part in re.split(f"({_OPEN}[^{_CLOSE}]*{_CLOSE})", marked):
        words = len(re.findall(f"[ {GLUE}]", part))
        if part.startswith(_OPEN):
            start, stop = 2 * number, 2 * (number + words) + 1
            while start and pieces[start] == SHARED:
                start -= 2
            shown = [_shown("".join(piece)) for piece in (pieces[:start], pieces[start:stop], pieces[stop:])]
            yield Line(document.doc_id, document.title, sent_id, *_cut(*shown))
        number += words


def _match(text: str, column: str) -> str | None:
    """Return a query of FTS5; None without words. Words may be separated as in the query, or as English words are."""
    text = text.replace("\0", "").replace("\u2019", "'").strip()
    prefix = "*" if text.endswith("*") and len(text) > 1 else ""
    text = text.removesuffix(prefix)
    phrases = dict.fromkeys((tuple(text.split()), tuple(_WORD.findall(text))))
    quoted = [
        " + ".join('"{}"'.format(word.replace('"', '""')) for word in phrase) + f" {prefix}"
        for phrase in phrases
        if phrase
    ]
    return " OR ".join(f"{column} : {phrase}" for phrase in quoted) or None


def _shown(forms: str) -> str:
    return forms.replace(GLUE, "").replace(SHARED, "").replace(INNER_SPACE, " ")


def _split_at_name(sentence: str, name: str, number: int) -> tuple[str, str, str]:
    """Split a sentence at an occurrence of a name; the name alone where it cannot be found."""
    place = -1
    for _ in range(number + 1):
        place = sentence.find(name, place + 1)
    if place < 0:
        return "", name, ""
    return _cut(sentence[:place], name, sentence[place + len(name) :])


def _cut(left: str, match: str, right: str) -> tuple[str, str, str]:
    if len(left) > _CONTEXT:
        left = f"\u2026{left[-_CONTEXT:]}"
    if len(right) > _CONTEXT:
        right = f"{right[:_CONTEXT]}\u2026"
    return left, match, right
