"""Queries to the index: documents and what they can be chosen by, names, words in their context, dead letters."""

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from concord.pipeline.names.values import VALUES
from concord.workflows.view.index.search_index import (
    BAND,
    FIRST_PAGE,
    GLUE,
    INNER_SPACE,
    SHARED,
    SLOT_BITS,
    Choice,
    band_name,
    count_rows,
    fold_word,
    join_conditions,
    select,
    select_choices,
)
from concord.workflows.view.page import NotFoundError, UnavailableError, Window

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
    index: sqlite3.Connection, document_filter: DocumentFilter, *, order: str, reverse: bool, window: Window
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


def read_profile(index: sqlite3.Connection, key: str, document_filter: DocumentFilter) -> dict[str, Any]:
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
    return {
        # How it is written, and other names that are written like that.
        "variants": select_choices(index, variants, (key,)),
        "same": select_choices(index, same, (key, key)),
        # The names in the same sentences, with the number of these.
        "neighbours": select_choices(index, nearby, (key, key)),
        # Its documents over time, by the first field of the metadata that is a date.
        "years": time_line(index, date, table, f"e.key = ? AND {where}", (key, *values)),
        "date": date,
    }


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
        parts = _split(forms, entity.first_word - 1, entity.last_word)
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
