"""Queries to the index for the names of entities, and what is known of one."""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from concord.pipeline.names.values import VALUES
from concord.workflows.view.index.documents import DocumentFilter, meta_fields, time_line
from concord.workflows.view.index.search_index import Choice, count_rows, join_conditions, select, select_choices
from concord.workflows.view.page import NotFoundError, Window

NAME_ORDERS = {
    "count": "entities DESC, name, key",
    "documents": "documents DESC, name, key",
    "least certain": "confidence, name, key",
    "name": "folded, name, key",
}
_NEIGHBOURS = 24


class IndexedName(NamedTuple):
    """A row of the table names of the index: what has one canonical name, but for case, articles and titles.

    ``disagree``: whether one of its variants has several labels in the collection, perhaps under another name.
    """

    key: str
    name: str
    entities: int
    documents: int
    confidence: float | None
    disagree: bool


class NameLabel(NamedTuple):
    """A row of the table name_labels of the index."""

    label: str
    entities: int
    confidence: float | None


class DocumentName(NamedTuple):
    """A name in a document: the labels of its entities, and how many there are."""

    name: str
    labels: Sequence[str]
    entities: int


def names_of_document(index: sqlite3.Connection, document: int, *, within: str | None = None) -> list[DocumentName]:
    """Return the names in a document by frequency; only those that occur in a text, unless it is None."""
    rows = index.execute(
        "SELECT name, group_concat(DISTINCT label), count(*) AS entities FROM entities WHERE document = ? "
        f"AND label NOT IN {VALUES} GROUP BY name HAVING instr(coalesce(?, name), name) ORDER BY entities DESC, name",
        (document, within),
    )
    return [DocumentName(name, labels.split(","), entities) for name, labels, entities in rows]


def find_names(
    index: sqlite3.Connection, *, text: str, label: str, disagree: bool, order: str, window: Window
) -> tuple[list[IndexedName], int]:
    """Return some of the names of all entities, and how many there are; without a label, dates and numbers are none."""
    where, values = join_conditions(
        ("(instr(folded, fold(?)) OR key IN (SELECT key FROM variants WHERE instr(folded, fold(?))))", text),
        ("key IN (SELECT key FROM name_labels WHERE label = ?)", label),
        (f"key IN (SELECT key FROM name_labels WHERE label NOT IN {VALUES})", not label),
        ("disagree", disagree),
    )
    rest = f"FROM names WHERE {where} ORDER BY {NAME_ORDERS[order]} LIMIT ? OFFSET ?"
    return select(index, IndexedName, rest, (*values, *window)), count_rows(index, f"names WHERE {where}", values)


def get_name(index: sqlite3.Connection, name: str) -> IndexedName:
    """Return the name with a key, or else the most frequent one that is written so, rather one that is called so.

    Raises:
        NotFoundError: when no entity is called so.
    """
    where = "key = ? OR key IN (SELECT key FROM variants WHERE name = ?)"
    rest = f"FROM names WHERE {where} ORDER BY key <> ?, name <> ?, {NAME_ORDERS['count']} LIMIT 1"
    rows = select(index, IndexedName, rest, [name] * 4)
    if not rows:
        raise NotFoundError(f"no entity is called {name!r}")
    return rows[0]


def labels_of_name(index: sqlite3.Connection, key: str) -> list[NameLabel]:
    """Return the labels of a name with their numbers of entities, the most frequent first."""
    return select(index, NameLabel, "FROM name_labels WHERE key = ? ORDER BY entities DESC, label", (key,))


class NameProfile(NamedTuple):
    """What is known of a name.

    Attributes:
        variants: how it is written, with the number of entities, the most frequent first.
        same: other names that are written like one of its variants.
        neighbours: the names in the same sentences, with the number of these.
        years: its documents over time, by the first field of the metadata that is a date, ``date``.
    """

    variants: Sequence[Choice]
    same: Sequence[Choice]
    neighbours: Sequence[Choice]
    years: Sequence[Choice]
    date: str


def read_profile(index: sqlite3.Connection, key: str, document_filter: DocumentFilter) -> NameProfile:
    """Return what is known of a name; its documents over time whatever year is chosen."""
    variants = "SELECT name, entities FROM variants WHERE key = ? ORDER BY entities DESC, name"
    same = (
        "SELECT key, name, entities FROM names WHERE key <> ? AND key IN (SELECT key FROM variants WHERE name IN "
        f"(SELECT name FROM variants WHERE key = ?)) ORDER BY entities DESC, name LIMIT {_NEIGHBOURS}"
    )
    nearby = (
        "SELECT o.key, n.name, count(DISTINCT o.document || ' ' || o.sent_id) FROM "
        "(SELECT DISTINCT document, sent_id FROM entities WHERE key = ?) s "
        "CROSS JOIN entities o USING (document, sent_id) JOIN names n ON n.key = o.key WHERE o.key <> ? "
        f"GROUP BY 1 ORDER BY 3 DESC, 2 LIMIT {_NEIGHBOURS}"
    )
    date = next((entry.field for entry in meta_fields(index) if entry.dated), "")
    where, values = document_filter.without_meta(date).where()
    table = "documents d JOIN entities e ON e.document = d.id"
    return NameProfile(
        variants=select_choices(index, variants, (key,)),
        same=select_choices(index, same, (key, key)),
        neighbours=select_choices(index, nearby, (key, key)),
        years=time_line(index, date, table, f"e.key = ? AND {where}", (key, *values)),
        date=date,
    )
