"""The index of a collection that its pages are looked up in: an SQLite file outside of the collection.

It holds rows of documents with their metadata, entities and dead letters, what they add up to by name, and a full-text
table of sentences.
Shards are known by the hashes of their parts: a new generation adds those that are new and removes those that are gone.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from concord.pipeline.output.collection import Collection
from concord.pipeline.output.manifest import CommitRecord
from concord.workflows.view.index.index_rows import document_rows, entity_rows, fold, meta_rows, sentence_rows
from concord.workflows.view.page import Window

VERSION = 6
SLOT_BITS = 32
"""Numbers of documents and sentences are ``shard slot << SLOT_BITS | row in its part``."""
BANDS = (0.5, 0.8, 0.95)
"""Limits of the bands of confidence."""
PAGE_ROWS = 50
FIRST_PAGE = Window(PAGE_ROWS, 0)
RowT = TypeVar("RowT", bound=NamedTuple)

_SCHEMA = """
CREATE TABLE shards (slot INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, searchable INTEGER NOT NULL DEFAULT 0);
CREATE TABLE documents (id INTEGER PRIMARY KEY, position INTEGER NOT NULL, doc_id TEXT NOT NULL, title TEXT,
  source TEXT NOT NULL, tagger TEXT NOT NULL, generation INTEGER NOT NULL, first_sentence INTEGER NOT NULL,
  token_row INTEGER NOT NULL, entity_row INTEGER NOT NULL, chars INTEGER NOT NULL, sentences INTEGER NOT NULL,
  words INTEGER NOT NULL, entities INTEGER NOT NULL, refined INTEGER NOT NULL, changed INTEGER NOT NULL,
  uncertainty REAL, confidence REAL);
CREATE INDEX documents_doc_id ON documents (doc_id);
CREATE INDEX documents_place ON documents (source, position, doc_id);
CREATE INDEX documents_first_sentence ON documents (first_sentence) WHERE sentences;
CREATE TABLE meta (document INTEGER NOT NULL, field TEXT NOT NULL, value NOT NULL, year TEXT,
  PRIMARY KEY (document, field, value)) WITHOUT ROWID;
CREATE INDEX meta_field ON meta (field, value);
CREATE TABLE fields (field TEXT PRIMARY KEY, documents INTEGER NOT NULL, choices INTEGER NOT NULL,
  dated INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE entities (document INTEGER NOT NULL, number INTEGER NOT NULL, sent_id INTEGER NOT NULL,
  start INTEGER NOT NULL, end INTEGER NOT NULL, first_word INTEGER NOT NULL, last_word INTEGER NOT NULL,
  label TEXT NOT NULL, name TEXT NOT NULL, canonical TEXT NOT NULL, key TEXT NOT NULL, confidence REAL,
  uncertainty REAL, refined INTEGER NOT NULL, changed INTEGER NOT NULL, origin TEXT,
  PRIMARY KEY (document, sent_id, number)) WITHOUT ROWID;
CREATE INDEX entities_key ON entities (key, label);
CREATE TABLE dead_letters (id INTEGER PRIMARY KEY, doc_id TEXT, source TEXT NOT NULL, position INTEGER NOT NULL,
  stage TEXT NOT NULL, error TEXT NOT NULL, message TEXT NOT NULL, attempts INTEGER NOT NULL);
CREATE INDEX dead_letters_doc_id ON dead_letters (doc_id);
CREATE TABLE kinds (document INTEGER NOT NULL, label TEXT NOT NULL, band INTEGER NOT NULL, changed INTEGER NOT NULL,
  entities INTEGER NOT NULL, PRIMARY KEY (document, label, band, changed)) WITHOUT ROWID;
CREATE TABLE names (key TEXT PRIMARY KEY, name TEXT NOT NULL, entities INTEGER NOT NULL, documents INTEGER NOT NULL,
  confidence REAL, folded TEXT NOT NULL, disagree INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX names_entities ON names (entities DESC, name);
CREATE TABLE name_labels (key TEXT NOT NULL, label TEXT NOT NULL, entities INTEGER NOT NULL,
  confidence REAL, PRIMARY KEY (key, label)) WITHOUT ROWID;
CREATE TABLE variants (key TEXT NOT NULL, name TEXT NOT NULL, entities INTEGER NOT NULL, folded TEXT NOT NULL,
  PRIMARY KEY (key, name)) WITHOUT ROWID;
CREATE INDEX variants_name ON variants (name);
CREATE VIRTUAL TABLE words USING fts5(forms, lemmas, shown UNINDEXED,
  tokenize="unicode61 remove_diacritics 2 categories 'L* M* N* P* S* Cf Co Cn Cs'");
"""
_COLUMNS = {
    "documents": (
        *("doc_id", "source_uri", "source_position", "tagger", "meta", "language"),
        *("n_chars", "n_sentences", "n_tokens", "n_entities", "n_candidates"),
    ),
    "sentences": ("n_tokens",),
    "tokens": ("draft_ner", "ner", "refined", "uncertainty"),
    "entities": (
        *("entity_id", "sent_id", "start_char", "end_char", "start_token", "end_token", "text", "label"),
        *("canonical", "confidence", "uncertainty", "refined", "source"),
    ),
    "errors": ("doc_id", "source_uri", "position", "stage", "error", "message", "attempts"),
}
_TABLES = (
    *("documents", "meta", "fields", "entities", "dead_letters", "kinds"),
    *("names", "name_labels", "variants", "words", "shards"),
)
BAND = f"coalesce({' + '.join(f'(confidence >= {limit})' for limit in BANDS)}, -1)"


class Progress(NamedTuple):
    """How many shards of the collection the index holds, with their documents and with their words."""

    shards: int
    listed: int
    searchable: int

    @property
    def is_complete(self) -> bool:
        """Whether everything can be found."""
        return self.searchable == self.shards


class SearchIndex:
    """The index of one collection. Any number of threads and processes may read while one of them updates."""

    def __init__(self, path: Path) -> None:
        """Open the index, or make a new one where there is none of this version."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # The texts of a collection are nobody else's business.
        path.touch(mode=0o600)
        with self._writing() as index:
            if index.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                for statement in (*(f"DROP TABLE IF EXISTS {name}" for name in _TABLES), *_SCHEMA.split(";")):
                    index.execute(statement)
                index.execute(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that sees one state of the index."""
        index = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=30, check_same_thread=False)
        index.create_function("fold", 1, _fold_value, deterministic=True)
        try:
            index.execute("BEGIN")
            yield index
        finally:
            index.close()

    def update(self, collection: Collection) -> Iterator[Progress]:
        """Bring the index up to date with a collection, a shard at a time, and yield how far it is.

        All documents and entities come first, which is fast; then the words. A shard that is there is not read again.

        Raises:
            IntegrityError: when a part is gone or damaged.
        """
        reports = {shard_key(report): report for report in collection.manifest.shards}
        with self._writing() as index:
            slots = dict(index.execute("SELECT key, slot FROM shards"))
            removed = slots.keys() - reports.keys()
            for key in removed:
                _remove(index, slots.pop(key))
            added = [key for key in reports if key not in slots]
            if removed and not added:
                _sum_up(index)
        yield self._progress(len(reports))
        for key in added:
            with self._writing() as index:
                _add_rows(index, collection, reports[key], key=key)
                if key == added[-1]:
                    _sum_up(index)
            yield self._progress(len(reports))
        for key, report in reports.items():
            with self._writing() as index:
                _add_words(index, collection, report, key=key)
            yield self._progress(len(reports))

    def _progress(self, shards: int) -> Progress:
        with self.reading() as index:
            listed, searchable = index.execute("SELECT count(*), coalesce(sum(searchable), 0) FROM shards").fetchone()
        return Progress(shards=shards, listed=listed, searchable=searchable)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        index = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        index.create_function("fold", 1, _fold_value, deterministic=True)
        try:
            # The index can be made again, so that a crash of the machine may cost it.
            index.execute("PRAGMA journal_mode = WAL")
            index.execute("PRAGMA synchronous = OFF")
            index.execute("BEGIN IMMEDIATE")
            yield index
            if index.in_transaction:
                index.execute("COMMIT")
        finally:
            index.close()


class Choice(NamedTuple):
    """A value of a facet, or something else to choose, with the number of documents or places that have it."""

    value: str
    name: str
    number: int


def select(index: sqlite3.Connection, row_type: type[RowT], rest: str, values: Sequence[Any] = ()) -> list[RowT]:
    """Return the rows of a query in SQL, given from FROM on."""
    columns = ", ".join(row_type._fields)
    return [row_type._make(row) for row in index.execute(f"SELECT {columns} {rest}", values)]


def select_choices(index: sqlite3.Connection, query: str, values: Sequence[Any] = ()) -> list[Choice]:
    """Return the rows of a query in SQL that has two columns, value and count, or a name between them."""
    return [Choice(str(value), str((*name, value)[0]), count) for value, *name, count in index.execute(query, values)]


def count_rows(index: sqlite3.Connection, table: str, values: Sequence[Any] = ()) -> int:
    """Return how many rows a table has, or what follows FROM in SQL."""
    return int(index.execute(f"SELECT count(*) FROM {table}", values).fetchone()[0])


def join_conditions(*conditions: tuple[str, object]) -> tuple[str, list[Any]]:
    """Return conditions in SQL joined by AND, and their values; one whose value is empty, None or false is left out."""
    chosen = [(condition, value) for condition, value in conditions if value is not False and value not in ("", None)]
    where = " AND ".join(condition for condition, _ in chosen) or "1"
    return where, [value for condition, value in chosen for _ in range(condition.count("?"))]


def all_labels(index: sqlite3.Connection) -> list[str]:
    """Return the entity types of the collection, sorted."""
    return [row[0] for row in index.execute("SELECT DISTINCT label FROM kinds ORDER BY 1")]


def band_name(number: int) -> str:
    """Return the bounds of a band of confidence, of which a tagger without probabilities has none."""
    if number < 0:
        return "none"
    limits = ("0", *(f"{limit:g}" for limit in BANDS), "1")
    return f"{limits[number]} to {limits[number + 1]}"


def shard_key(report: CommitRecord) -> str:
    """Return what a shard is known by: shards with equal keys have equal rows."""
    hashes = " ".join(f"{name}:{part.sha256}" for name, part in sorted(report.files.items()))
    return sha256(f"{report.shard} {report.generation} {hashes}".encode()).hexdigest()


def _fold_value(value: str | float) -> str:
    return fold(str(value))


def _remove(index: sqlite3.Connection, slot: int) -> None:
    bounds = slot << SLOT_BITS, (slot + 1) << SLOT_BITS
    for table, column in (
        ("documents", "id"),
        ("meta", "document"),
        ("entities", "document"),
        ("kinds", "document"),
        ("dead_letters", "id"),
        ("words", "rowid"),
    ):
        index.execute(f"DELETE FROM {table} WHERE {column} >= ? AND {column} < ?", bounds)
    index.execute("DELETE FROM shards WHERE slot = ?", (slot,))


def _add_rows(index: sqlite3.Connection, collection: Collection, report: CommitRecord, *, key: str) -> None:
    """Add the documents, entities and dead letters of a shard, unless another process has."""
    cursor = index.execute("INSERT OR IGNORE INTO shards (key) VALUES (?)", (key,))
    if not cursor.rowcount:
        return
    slot = cursor.lastrowid or 0
    base = slot << SLOT_BITS
    tables = {name: collection.read_rows(report, name, columns) for name, columns in _COLUMNS.items()}
    documents, sentences, tokens, entities, errors = tables.values()
    rows = document_rows(documents, tokens, base=base, generations=report.document_generations(documents.num_rows))
    _insert(index, "documents", rows)
    _insert(index, "meta", meta_rows(documents["meta"].to_pylist(), documents["language"].to_pylist(), base=base))
    _insert(index, "entities", entity_rows(documents, sentences, tokens, entities, base=base))
    numbers = range(base, base + errors.num_rows)
    _insert(index, "dead_letters", zip(numbers, *(column.to_pylist() for column in errors.columns), strict=True))
    bounds = base, base + (1 << SLOT_BITS)
    index.execute(
        f"INSERT INTO kinds SELECT document, label, {BAND}, changed, count(*) FROM entities "
        "WHERE document >= ? AND document < ? GROUP BY 1, 2, 3, 4",
        bounds,
    )
    index.execute(
        "UPDATE documents SET confidence = (SELECT min(confidence) FROM entities WHERE document = documents.id) "
        "WHERE id >= ? AND id < ?",
        bounds,
    )


def _add_words(index: sqlite3.Connection, collection: Collection, report: CommitRecord, *, key: str) -> None:
    """Add the words of a shard, unless they are there."""
    row = index.execute("SELECT slot FROM shards WHERE key = ? AND NOT searchable", (key,)).fetchone()
    if row is None:
        return
    [slot] = row
    sentences = collection.read_rows(report, "sentences", ("n_tokens",))
    tokens = collection.read_rows(report, "tokens", ("start_char", "end_char", "text", "lemma"))
    base = slot << SLOT_BITS
    index.executemany(
        "INSERT INTO words (rowid, forms, lemmas, shown) VALUES (?, ?, ?, ?)",
        ((number, *row) for number, row in enumerate(sentence_rows(sentences, tokens), base)),
    )
    index.execute("UPDATE shards SET searchable = 1 WHERE slot = ?", (slot,))


def _insert(index: sqlite3.Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    columns = len(index.execute(f"PRAGMA table_info({table})").fetchall())
    index.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})", rows)


def _sum_up(index: sqlite3.Connection) -> None:
    """Count the fields of the metadata and the entities of each name again."""
    for table in ("fields", "names", "name_labels", "variants"):
        index.execute(f"DELETE FROM {table}")
    index.execute(
        "INSERT INTO fields SELECT field, count(DISTINCT document), count(DISTINCT value), count(*) = count(year) "
        "FROM meta GROUP BY field"
    )
    index.execute("INSERT INTO name_labels SELECT key, label, count(*), avg(confidence) FROM entities GROUP BY 1, 2")
    index.execute("INSERT INTO variants SELECT key, name, count(*), fold(name) FROM entities GROUP BY 1, 2")
    # A name that is written alike with two labels may be two names: Baxter, and the Baxter that is Alan Baxter.
    index.execute(
        "WITH spelled AS (SELECT key, canonical, count(*) AS n FROM entities GROUP BY 1, 2), "
        "fullest AS (SELECT key, canonical, max(n) FROM spelled GROUP BY key), "
        "disagreeing AS (SELECT DISTINCT key FROM variants WHERE name IN "
        "(SELECT name FROM entities GROUP BY name HAVING count(DISTINCT label) > 1)) "
        "INSERT INTO names SELECT key, fullest.canonical, count(*), count(DISTINCT document), avg(confidence), "
        "fold(fullest.canonical), key IN (SELECT key FROM disagreeing) "
        "FROM entities JOIN fullest USING (key) GROUP BY key"
    )
