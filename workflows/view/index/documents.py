"""Queries to the index for documents, what they can be chosen by, and dead letters."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from concord.workflows.view.index.search_index import (
    BAND,
    SLOT_BITS,
    Choice,
    band_name,
    join_conditions,
    select,
    select_choices,
)
from concord.workflows.view.page import NotFoundError, Window

FIELDS = 8
"""Fields of the metadata shown as facets; those that most documents have."""
META = "meta."
"""Begins the parameters that choose by metadata, before the name of a field."""
SOURCES = 12
"""Files listed as a facet; those with the most documents."""
_SHOWN_YEARS = 100
PLACE = "d.source, d.position, d.doc_id"
"""The order of the input, which stays when documents are annotated again and shards are rewritten or merged."""
DOCUMENT_ORDERS = {
    "collection": PLACE,
    "entities": f"d.entities DESC, {PLACE}",
    "words": f"d.words DESC, {PLACE}",
    "changed": f"d.changed DESC, {PLACE}",
    "least certain": f"d.confidence IS NULL, d.confidence, {PLACE}",
}


class IndexedDocument(NamedTuple):
    """A row of the table documents of the index."""

    id: int
    source: str
    position: int
    doc_id: str
    title: str | None
    first_sentence: int
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
    def sentence_row(self) -> int:
        """The row of its first sentence in the part; ``first_sentence`` is that in the table words."""
        return self.first_sentence & ((1 << SLOT_BITS) - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentFilter:
    """Which documents to list; the entity facets hold for one and the same entity.

    Attributes:
        label: of an entity.
        band: of an entity's confidence: how many of ``BANDS`` it reaches; None for any.
        changed: whether stage two changed an entity.
        generation: in which the document was annotated; None for any.
        text: part of the id or of any metadata.
        meta: fields of the metadata, each with its value; of a date also the year.
        among: numbers of documents as a JSON list; empty for any.
    """

    label: str = ""
    band: int | None = None
    changed: bool = False
    tagger: str = ""
    source: str = ""
    generation: int | None = None
    text: str = ""
    meta: Mapping[str, str] = field(default_factory=dict)
    among: str = ""

    def without(self, *names: str) -> "DocumentFilter":
        """Return the filter without some of its facets."""
        return replace(self, **{name: getattr(DocumentFilter(), name) for name in names})

    def without_meta(self, name: str) -> "DocumentFilter":
        """Return the filter without a field of the metadata."""
        return replace(self, meta={key: value for key, value in self.meta.items() if key != name})

    def where(self) -> tuple[str, list[Any]]:
        """Return the condition on the table documents, called d, in SQL, and its values."""
        of_entity, entity_values = self.entity_condition()
        of_document, values = join_conditions(
            ("d.tagger = ?", self.tagger),
            ("d.source = ?", self.source),
            ("d.generation = ?", self.generation),
            ("d.id IN (SELECT value FROM json_each(?))", self.among),
            (
                "(instr(fold(d.doc_id), fold(?)) OR "
                "d.id IN (SELECT document FROM meta WHERE instr(fold(value), fold(?))))",
                self.text,
            ),
        )
        for name, value in self.meta.items():
            of_document += (
                " AND d.id IN (SELECT document FROM meta WHERE field = ? AND (CAST(value AS TEXT) = ? OR year = ?))"
            )
            values += [name, value, value]
        if of_entity != "1":
            of_document += f" AND d.id IN (SELECT k.document FROM kinds k WHERE {of_entity})"
        return of_document, [*values, *entity_values]

    def entity_condition(self) -> tuple[str, list[Any]]:
        """Return the condition on the table kinds, called k, and its values."""
        return join_conditions(("k.label = ?", self.label), ("k.band = ?", self.band), ("k.changed", self.changed))


ALL_DOCUMENTS = DocumentFilter()


class Totals(NamedTuple):
    """What the documents of a filter add up to; ``matching`` counts the entities that match its entity facets."""

    documents: int
    words: int
    entities: int
    refined: int
    changed: int
    matching: int


def find_documents(
    index: sqlite3.Connection,
    document_filter: DocumentFilter,
    *,
    order: str,
    reverse: bool,
    window: Window,
) -> tuple[list[IndexedDocument], Totals]:
    """Return some documents, and what all of them add up to.

    Args:
        order: of ``DOCUMENT_ORDERS``, or ``META`` with a field of the metadata; documents without it are the last.
        reverse: whether the largest values of a field are the first.
    """
    where, values = document_filter.where()
    by, order_values = DOCUMENT_ORDERS.get(order), list[str]()
    if by is None:
        value = "(SELECT min(value) FROM meta WHERE document = d.id AND field = ?)"
        by = f"{value} IS NULL, {value} {'DESC' if reverse else 'ASC'}, {PLACE}"
        order_values = [order.removeprefix(META)] * 2
    rest = f"FROM documents d WHERE {where} ORDER BY {by} LIMIT ? OFFSET ?"
    rows = select(index, IndexedDocument, rest, (*values, *order_values, *window))
    sums = ", ".join(f"coalesce(sum({name}), 0)" for name in Totals._fields[1:-1])
    totals = index.execute(f"SELECT count(*), {sums} FROM documents d WHERE {where}", values).fetchone()
    of_entity, entity_values = document_filter.entity_condition()
    [matching] = index.execute(
        f"SELECT coalesce(sum(k.entities), 0) FROM kinds k WHERE {of_entity} "
        f"AND k.document IN (SELECT d.id FROM documents d WHERE {where})",
        (*entity_values, *values),
    ).fetchone()
    return rows, Totals._make((*totals, matching))


def matching_entity(index: sqlite3.Connection, document_filter: DocumentFilter, row: IndexedDocument) -> str:
    """Return where the first entity of a document is that matches the entity facets, in the form ``sentence number``.

    It is empty if all entities match.
    """
    of_entity, values = document_filter.entity_condition()
    entities = f"(SELECT *, {BAND} AS band FROM entities WHERE document = ?) k"
    query = f"SELECT sent_id || ' ' || number FROM {entities} WHERE {of_entity} ORDER BY sent_id, number LIMIT 1"
    found = index.execute(query, (row.id, *values)).fetchone() if of_entity != "1" else None
    return found[0] if found else ""


def find_document(index: sqlite3.Connection, doc_id: str) -> IndexedDocument | None:
    """Return the row of a document; None if the index has none of this id."""
    return next(iter(select(index, IndexedDocument, "FROM documents WHERE doc_id = ?", (doc_id,))), None)


def get_document(index: sqlite3.Connection, doc_id: str) -> IndexedDocument:
    """Return the row of a document; NotFoundError if the index has none of this id."""
    if (document := find_document(index, doc_id)) is None:
        raise NotFoundError(f"there is no document {doc_id!r}")
    return document


def neighbours(index: sqlite3.Connection, document: IndexedDocument) -> tuple[str | None, str | None]:
    """Return the ids of the documents before and after one in the order of the collection."""
    before, after = (
        index.execute(
            f"SELECT doc_id FROM documents WHERE (source, position, doc_id) {sign} (?, ?, ?) "
            f"ORDER BY source {way}, position {way}, doc_id {way} LIMIT 1",
            (document.source, document.position, document.doc_id),
        ).fetchone()
        for sign, way in (("<", "DESC"), (">", "ASC"))
    )
    return before and before[0], after and after[0]


def meta_of_document(index: sqlite3.Connection, row: IndexedDocument) -> list[tuple[str, str | float]]:
    """Return the metadata of a document, field by field."""
    return index.execute("SELECT field, value FROM meta WHERE document = ?", (row.id,)).fetchall()


def facets(index: sqlite3.Connection, document_filter: DocumentFilter) -> dict[str, list[Choice]]:
    """Return the values of each facet, counted under the choices in the other facets."""
    of_document, values = document_filter.without("label", "band", "changed").where()
    joined = "" if of_document == "1" else f"JOIN documents d ON d.id = k.document AND {of_document}"
    choices = {}
    for name in ("label", "band", "changed"):
        of_entity, entity_values = document_filter.without(name).entity_condition()
        query = f"SELECT k.{name}, count(DISTINCT k.document) FROM kinds k {joined} WHERE {of_entity} "
        choices[name] = select_choices(index, f"{query} GROUP BY 1 ORDER BY 1", [*values, *entity_values])
    choices["changed"] = [choice for choice in choices["changed"] if choice.value == "1"]
    for name in ("tagger", "generation", "source"):
        where, values = document_filter.without(name).where()
        query = f"SELECT d.{name} AS choice, count(*) FROM documents d WHERE {where} GROUP BY choice "
        query += f"ORDER BY choice IS ? DESC, 2 DESC, choice LIMIT {SOURCES}"
        choices[name] = select_choices(index, query, [*values, getattr(document_filter, name)])
    choices = {name: _with_chosen(rows, getattr(document_filter, name)) for name, rows in choices.items()}
    choices["band"] = [choice._replace(name=band_name(int(choice.value))) for choice in choices["band"]]
    return choices


class MetaField(NamedTuple):
    """A row of the table fields of the index; ``dated`` if all values of the field are dates."""

    field: str
    documents: int
    choices: int
    dated: bool


def meta_fields(index: sqlite3.Connection) -> list[MetaField]:
    """Return the fields of the metadata; those that most documents have are the first."""
    return select(index, MetaField, "FROM fields ORDER BY documents DESC, field")


def meta_facets(
    index: sqlite3.Connection, document_filter: DocumentFilter
) -> tuple[dict[str, list[Choice]], dict[str, list[Choice]]]:
    """Return the values of fields of the metadata in which values recur or that are chosen, and the years of dates.

    Languages are listed whether or not they recur.
    """
    fields = [
        entry
        for entry in meta_fields(index)
        if entry.dated or entry.field == "language" or 2 * entry.choices <= entry.documents
    ][:FIELDS]
    fields += [entry for entry in meta_fields(index) if entry.field in document_filter.meta and entry not in fields]
    recurring, dated = {}, {}
    for name, _, _, is_date in fields:
        chosen = document_filter.meta.get(name, "")
        where, values = document_filter.without_meta(name).where()
        if is_date:
            dated[name] = time_line(index, name, "documents d", where, values)
        else:
            rows = select_choices(
                index,
                "SELECT CAST(m.value AS TEXT) AS choice, count(DISTINCT d.id) FROM documents d "
                f"JOIN meta m ON m.document = d.id AND m.field = ? WHERE {where} "
                f"GROUP BY choice ORDER BY choice = ? DESC, 2 DESC, choice LIMIT {SOURCES}",
                (name, *values, chosen),
            )
            recurring[name] = _with_chosen(rows, chosen)
    return recurring, dated


def time_line(index: sqlite3.Connection, name: str, table: str, where: str, values: Sequence[Any]) -> list[Choice]:
    """Return the years from the first to the last one.

    Args:
        name: the field of the metadata that has the date.
        table, where: the documents, called d, in SQL.
    """
    rows = index.execute(
        f"SELECT CAST(m.year AS INTEGER), count(DISTINCT d.id) FROM {table} "
        f"JOIN meta m ON m.document = d.id AND m.field = ? WHERE {where} GROUP BY 1",
        (name, *values),
    )
    counts: dict[int, int] = dict(rows.fetchall())
    years = range(min(counts), max(counts) + 1)[-_SHOWN_YEARS:] if counts else []
    return [Choice(f"{year:04}", f"{year:04}", counts.get(year, 0)) for year in years]


def _with_chosen(choices: list[Choice], chosen: str | int | None) -> list[Choice]:
    """Return the values of a facet with the chosen one, which perhaps no document has under the other choices."""
    value = "" if chosen is None or chosen is False else str(1 if chosen is True else chosen)
    is_listed = not value or value in {choice.value for choice in choices}
    return choices if is_listed else [*choices, Choice(value, value, 0)]


class IndexedDeadLetter(NamedTuple):
    """A row of the table dead_letters of the index."""

    doc_id: str | None
    source: str
    position: int
    stage: str
    error: str
    message: str
    attempts: int
