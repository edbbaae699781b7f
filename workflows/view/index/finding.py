"""Queries to the index: documents by facets, names with their labels, and words in context."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from concord.workflows.view.index.index_rows import GLUE, INNER_SPACE, SHARED
from concord.workflows.view.index.search_index import BANDS, SLOT_BITS

PAGE_ROWS = 50
SOURCES = 12
"""Files listed as a facet; those with the most documents."""
_CONTEXT = 70
_OPEN, _CLOSE = "\ue002", "\ue003"
_WORD = re.compile(r"\w+(?=n't\b)|n't\b|'\w+|\w+|[^\w\s]+")

Row = sqlite3.Row
DOCUMENT_ORDERS = {
    "collection": "d.rank",
    "entities": "d.entities DESC, d.rank",
    "words": "d.words DESC, d.rank",
    "changed": "d.changed DESC, d.rank",
    "least certain": "d.confidence IS NULL, d.confidence, d.rank",
}
NAME_ORDERS = {
    "count": "entities DESC, name",
    "documents": "documents DESC, name",
    "least certain": "confidence, name",
    "name": "folded, name",
}


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

    def where(self, *, without: str = "") -> tuple[str, list[Any]]:
        """Return the condition in SQL and its values, leaving out one facet."""
        conditions, values = ["1"], list[Any]()
        of_entity, own = self.entity_conditions(without=without)
        if of_entity:
            conditions.append(f"d.id IN (SELECT k.document FROM kinds k WHERE {' AND '.join(of_entity)})")
            values += own
        for column in ("tagger", "source"):
            if (value := getattr(self, column)) and column != without:
                conditions.append(f"d.{column} = ?")
                values.append(value)
        if self.generation is not None and without != "generation":
            conditions.append("d.generation = ?")
            values.append(self.generation)
        if self.text:
            conditions.append("(instr(lower(d.doc_id), lower(?)) OR instr(lower(coalesce(d.title, '')), lower(?)))")
            values += [self.text, self.text]
        return " AND ".join(conditions), values

    def entity_conditions(self, *, without: str) -> tuple[list[str], list[Any]]:
        """Return the conditions on the table kinds, called k, and their values, leaving out one facet."""
        conditions, values = list[str](), list[Any]()
        if self.label and without != "label":
            conditions.append("k.label = ?")
            values.append(self.label)
        if self.band is not None and without != "band":
            conditions.append("k.band = ?")
            values.append(self.band)
        if self.changed and without != "changed":
            conditions.append("k.changed")
        return conditions, values


def find_documents(
    index: sqlite3.Connection, wanted: DocumentFilter, *, order: str, page: int
) -> tuple[list[Row], int]:
    """Return a page of documents, and how many there are."""
    where, values = wanted.where()
    [total] = index.execute(f"SELECT count(*) FROM documents d WHERE {where}", values).fetchone()
    rows = index.execute(
        f"SELECT d.* FROM documents d WHERE {where} ORDER BY {DOCUMENT_ORDERS[order]} LIMIT ? OFFSET ?",
        (*values, PAGE_ROWS, page * PAGE_ROWS),
    )
    return rows.fetchall(), total


def facets(index: sqlite3.Connection, wanted: DocumentFilter) -> dict[str, list[Choice]]:
    """Return the values of each facet, counted under the choices in the other facets."""
    found = {}
    of_document, values = replace(wanted, label="", band=None, changed=False).where()
    joined = "" if of_document == "1" else f"JOIN documents d ON d.id = k.document AND {of_document}"
    for name in ("label", "band", "changed"):
        of_entity, own = wanted.entity_conditions(without=name)
        rows = index.execute(
            f"SELECT k.{name}, count(DISTINCT k.document) FROM kinds k {joined} WHERE {' AND '.join(of_entity) or '1'} "
            "GROUP BY 1 ORDER BY 1",
            (*values, *own),
        )
        found[name] = [Choice(str(value), str(value), count) for value, count in rows]
    found["band"] = [choice._replace(name=band_name(int(choice.value))) for choice in found["band"]]
    found["changed"] = [choice for choice in found["changed"] if choice.value == "1"]
    for name in ("tagger", "generation", "source"):
        where, values = wanted.where(without=name)
        rows = index.execute(
            f"SELECT d.{name}, count(*) FROM documents d WHERE {where} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {SOURCES}",
            values,
        )
        found[name] = [Choice(str(value), str(value), count) for value, count in rows]
    return found


def band_name(number: int) -> str:
    """Return the bounds of a band of confidence."""
    limits = ("0", *(f"{limit:g}" for limit in BANDS), "1")
    return f"{limits[number]} to {limits[number + 1]}"


def find_document(index: sqlite3.Connection, doc_id: str) -> Row | None:
    """Return the row of a document; None if the index has none of this id."""
    row: Row | None = index.execute("SELECT * FROM documents WHERE doc_id = ?", (doc_id,)).fetchone()
    return row


def neighbours(index: sqlite3.Connection, rank: int) -> tuple[str | None, str | None]:
    """Return the ids of the documents before and after one in the order of the collection."""
    before = index.execute("SELECT doc_id FROM documents WHERE rank < ? ORDER BY rank DESC LIMIT 1", (rank,)).fetchone()
    after = index.execute("SELECT doc_id FROM documents WHERE rank > ? ORDER BY rank LIMIT 1", (rank,)).fetchone()
    return before and before[0], after and after[0]


def names_of_document(index: sqlite3.Connection, document: int) -> list[Row]:
    """Return the names in a document by frequency: name, labels, entities, mean confidence."""
    return index.execute(
        "SELECT name, group_concat(DISTINCT label) AS labels, count(*) AS entities, avg(confidence) AS confidence, "
        "min(label) AS label, count(DISTINCT label) AS kinds FROM entities WHERE document = ? GROUP BY name "
        "ORDER BY entities DESC, name",
        (document,),
    ).fetchall()


def find_names(
    index: sqlite3.Connection, *, text: str, label: str, disagree: bool, order: str, page: int
) -> tuple[list[Row], int]:
    """Return a page of the names of all entities, and how many there are."""
    conditions, values = ["1"], list[Any]()
    if text:
        conditions.append("instr(folded, lower(?))")
        values.append(text)
    if label:
        conditions.append("name IN (SELECT name FROM name_labels WHERE label = ?)")
        values.append(label)
    if disagree:
        conditions.append("labels > 1")
    where = " AND ".join(conditions)
    [total] = index.execute(f"SELECT count(*) FROM names WHERE {where}", values).fetchone()
    rows = index.execute(
        f"SELECT * FROM names WHERE {where} ORDER BY {NAME_ORDERS[order]} LIMIT ? OFFSET ?",
        (*values, PAGE_ROWS, page * PAGE_ROWS),
    )
    return rows.fetchall(), total


def labels_of_names(index: sqlite3.Connection, names: Sequence[str]) -> dict[str, list[Row]]:
    """Return the labels of some names with their numbers of entities, the most frequent first."""
    found: dict[str, list[Row]] = {name: [] for name in names}
    rows = index.execute(
        f"SELECT * FROM name_labels WHERE name IN ({', '.join('?' * len(names))}) ORDER BY entities DESC, label",
        list(names),
    )
    for row in rows:
        found[row["name"]].append(row)
    return found


def all_labels(index: sqlite3.Connection) -> list[str]:
    """Return the entity types of the collection, sorted."""
    return [row[0] for row in index.execute("SELECT DISTINCT label FROM kinds ORDER BY 1")]


class Line(NamedTuple):
    """A match in its context; ``entity`` is the index's row where an entity of this name is meant."""

    doc_id: str
    title: str | None
    sent_id: int
    left: str
    match: str
    right: str
    entity: Row | None = None


def places_of_name(
    index: sqlite3.Connection, name: str, *, label: str = "", document: int | None = None, page: int = 0
) -> tuple[list[Line], int]:
    """Return a page of the entities of a name in context, and how many there are."""
    conditions, values = ["e.name = ?"], list[Any]([name])
    if label:
        conditions.append("e.label = ?")
        values.append(label)
    if document is not None:
        conditions.append("e.document = ?")
        values.append(document)
    where = " AND ".join(conditions)
    [total] = index.execute(f"SELECT count(*) FROM entities e WHERE {where}", values).fetchone()
    rows = index.execute(
        "SELECT e.*, d.doc_id, d.title, w.forms FROM entities e JOIN documents d ON d.id = e.document "
        f"LEFT JOIN words w ON w.rowid = (e.document >> {SLOT_BITS} << {SLOT_BITS}) + d.sentence_row + e.sent_id "
        f"WHERE {where} ORDER BY d.rank, e.number LIMIT ? OFFSET ?",
        (*values, PAGE_ROWS, page * PAGE_ROWS),
    ).fetchall()
    lines, seen = [], dict[tuple[str, int], int]()
    for row in rows:
        place = row["doc_id"], row["sent_id"]
        seen[place] = seen.get(place, -1) + 1
        left, match, right = _split_at_name(_shown(row["forms"] or ""), name, seen[place])
        lines.append(Line(*place[:1], row["title"], row["sent_id"], left, match, right, row))
    return lines, total


def search(
    index: sqlite3.Connection, text: str, *, column: Literal["forms", "lemmas"], document: int | None, page: int
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
        bounds = index.execute("SELECT id, sentence_row, sentences FROM documents WHERE id = ?", (document,)).fetchone()
        first = (document >> SLOT_BITS << SLOT_BITS) + bounds["sentence_row"]
        where += " AND rowid BETWEEN ? AND ?"
        values += [first, first + bounds["sentences"] - 1]
    [total] = index.execute(f"SELECT count(*) FROM words WHERE {where}", values).fetchone()
    number = 0 if column == "forms" else 1
    rows = index.execute(
        f"SELECT rowid, forms, highlight(words, {number}, '{_OPEN}', '{_CLOSE}') AS marked FROM words WHERE {where} "
        "ORDER BY rowid LIMIT ? OFFSET ?",
        (*values, PAGE_ROWS, page * PAGE_ROWS),
    ).fetchall()
    return [line for row in rows for line in _lines(index, row)], total


def documents_with(index: sqlite3.Connection, text: str) -> list[int]:
    """Return the numbers of the documents in which words occur next to each other, in the collection's order."""
    query = _match(text, "forms")
    if query is None:
        return []
    sentences = index.execute("SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid", (query,))
    found: dict[int, int] = {}
    end = -1
    for (sentence,) in sentences:
        if sentence >= end:
            row = _document_of(index, sentence)
            found[row["rank"]] = row["id"]
            end = (sentence >> SLOT_BITS << SLOT_BITS) + row["sentence_row"] + row["sentences"]
    return [number for _, number in sorted(found.items())]


def _document_of(index: sqlite3.Connection, sentence: int) -> Row:
    """Return the document that a row of the words is in."""
    slot = sentence >> SLOT_BITS
    row: Row = index.execute(
        "SELECT * FROM documents WHERE id >= ? AND id < ? AND sentence_row <= ? ORDER BY id DESC LIMIT 1",
        (slot << SLOT_BITS, (slot + 1) << SLOT_BITS, sentence & ((1 << SLOT_BITS) - 1)),
    ).fetchone()
    return row


def _lines(index: sqlite3.Connection, row: Row) -> Iterator[Line]:
    found = _document_of(index, row["rowid"])
    sent_id = (row["rowid"] & ((1 << SLOT_BITS) - 1)) - found["sentence_row"]
    pieces = re.split(f"([ {GLUE}])", row["forms"])
    number = 0
    for part in re.split(f"({_OPEN}[^{_CLOSE}]*{_CLOSE})", row["marked"]):
        words = len(re.findall(f"[ {GLUE}]", part))
        if part.startswith(_OPEN):
            start, stop = 2 * number, 2 * (number + words) + 1
            while start and pieces[start] == SHARED:
                start -= 2
            shown = [_shown("".join(piece)) for piece in (pieces[:start], pieces[start:stop], pieces[stop:])]
            yield Line(found["doc_id"], found["title"], sent_id, *_cut(*shown))
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
