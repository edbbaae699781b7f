"""The index of a collection that its pages are looked up in: an SQLite file outside of the collection.

It holds rows of documents with their metadata, entities and dead letters, what they add up to by name, and a full-text
table of sentences; its rows are computed from the tables of a shard in Arrow and numpy.
Shards are known by the hashes of their parts: a new generation adds those that are new and removes those that are gone.
"""

import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from concord.pipeline.names.identities import name_key
from concord.pipeline.output.collection import Collection
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.shard_stats import is_changed
from concord.pipeline.output.tables import normalize_name, title_of, without_candidates, without_lost_pages
from concord.workflows.view.page import Window

INNER_SPACE = "\ue000"
"""Stands for white space inside a word, which would split it."""

# Accents of Latin, Greek and Cyrillic; points of Hebrew; vowel signs and hamza of Arabic. Marks of other scripts stay:
# in Hindi they are the vowels of a word.
_MARKS = re.compile(
    "[\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
)


def fold(text: str) -> str:
    """Return a text without case, accents and width."""
    if text.isascii():
        return text.lower()
    bare = _MARKS.sub("", unicodedata.normalize("NFKD", text.replace("\u2019", "'")))
    return unicodedata.normalize("NFC", bare.casefold())


def fold_word(word: str) -> str:
    """Return a word as the table words of the index has it: still one word, and as it is where SQLite folds it."""
    return word if word.isascii() else re.sub(r"\s", INNER_SPACE, fold(word)) or word


GLUE = "\x1f"
"""Between two words of a sentence that no white space separates; a space is between all others."""
SHARED = "\ue001"
"""Stands for a word of a multi-word token but the first, all of which share one slice of the text."""

_DATE = re.compile(r"(\d{4})-(0[1-9]|1[0-2])(?!\d)")
_LARGEST = 2**63 - 1

Numbers = NDArray[Any]


def document_rows(
    documents: pa.Table, tokens: pa.Table, *, base: int, generations: Sequence[int]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table documents of the index, without the lowest confidence.

    Args:
        base: number of the first document; the others follow.
        generations: in which each was annotated.
    """
    first_words = _starts(documents["n_tokens"])
    sums = (_running_sum(values)[first_words] for values in (tokens["refined"].to_numpy(), is_changed(tokens)))
    numbers = range(documents.num_rows)
    yield from zip(
        (base + number for number in numbers),
        documents["source_position"].to_pylist(),
        documents["doc_id"].to_pylist(),
        map(title_of, documents["meta"].to_pylist()),
        documents["source_uri"].to_pylist(),
        documents["tagger"].to_pylist(),
        generations,
        (base + _starts(documents["n_sentences"])[:-1]).tolist(),
        first_words[:-1].tolist(),
        *(documents[name].to_pylist() for name in ("n_sentences", "n_tokens", "n_entities")),
        *(np.diff(sum_before).tolist() for sum_before in sums),
        (None for _ in numbers),
        strict=True,
    )


def meta_rows(
    metas: Sequence[str | None], languages: Sequence[str | None], *, base: int
) -> Iterator[tuple[int, str, str | float, str | None]]:
    """Yield the rows of the table meta of the index: each text or number of a field, and its year if it is a date.

    A list is a value for each of its items; a field of a field is called ``author.name``. The language of a text is a
    field as well, unless the metadata has one of this name.
    """
    for number, (meta, language) in enumerate(zip(metas, languages, strict=True), base):
        fields = orjson.loads(meta or "{}")
        fields = {"language": language, **(fields if isinstance(fields, dict) else {})}
        for name, value in dict.fromkeys(_leaves(fields)):
            date = _DATE.match(value) if isinstance(value, str) else None
            yield number, name, value, date and date[1]


def _leaves(fields: dict[str, Any]) -> Iterator[tuple[str, str | float]]:
    waiting = [*fields.items()]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{name}.{inner}", leaf) for inner, leaf in value.items()]
        elif isinstance(value, list):
            waiting += [(name, item) for item in value]
        elif isinstance(value, bool) or (isinstance(value, int) and abs(value) > _LARGEST):
            # SQLite has whole numbers of eight bytes, and no true or false.
            yield name, str(value).lower()
        elif value not in (None, ""):
            yield name, value


def entity_rows(
    documents: pa.Table, sentences: pa.Table, tokens: pa.Table, entities: pa.Table, *, base: int
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table entities of the index; one is changed if stage two changed any of its words."""
    entities, counts = without_candidates(entities), documents["n_entities"].to_numpy()
    document = np.repeat(np.arange(documents.num_rows), counts)
    sentence = _starts(documents["n_sentences"])[document] + entities["sent_id"].to_numpy()
    word = _starts(sentences["n_tokens"])[sentence]
    changed = _running_sum(is_changed(tokens))
    first, end = (word + entities[name].to_numpy() for name in ("start_token", "end_token"))
    canonical = entities["canonical"].to_pylist()
    differs = changed[np.minimum(end, len(changed) - 1)] > changed[first - 1]
    yield from zip(
        (base + document).tolist(),
        *(entities[name].to_pylist() for name in ("entity_id", "sent_id", "start_char", "end_char")),
        *(entities[name].to_pylist() for name in ("start_token", "end_token", "label")),
        map(normalize_name, entities["text"].to_pylist()),
        canonical,
        map(name_key, canonical, entities["label"].to_pylist()),
        *(entities[name].to_pylist() for name in ("confidence", "uncertainty")),
        entities["refined"].to_numpy().astype(int).tolist(),
        differs.astype(int).tolist(),
        entities["source"].to_pylist(),
        strict=True,
    )


def sentence_rows(sentences: pa.Table, tokens: pa.Table) -> Iterator[tuple[str, str, str | None]]:
    """Yield the words of each sentence and their lemmas, both to be searched, and the words to be shown.

    All have the same number of words. Those to be shown are None where they are those searched.
    """
    starts, ends = (tokens[name].to_numpy() for name in ("start_char", "end_char"))
    offsets = _starts(sentences["n_tokens"])
    is_first = np.zeros(tokens.num_rows + 1, dtype=bool)
    is_first[offsets] = True
    is_first = is_first[:-1]
    shares = ~is_first & (np.roll(starts, 1) == starts) & (np.roll(ends, 1) == ends)
    spaced = np.roll(ends, 1) < starts
    separators = pa.array(np.where(is_first, "", np.where(spaced, " ", GLUE)), pa.string())
    shown, forms = (
        _joined(pc.binary_join_element_wise(separators, pc.if_else(pa.array(shares), SHARED, words), ""), offsets, "")
        for words in _cleaned(tokens["text"])
    )
    _, lemmas = _cleaned(pc.coalesce(tokens["lemma"], tokens["text"]))
    for form, lemma, original in zip(forms, _joined(lemmas, offsets, " "), shown, strict=True):
        yield form, lemma, None if original == form else original


def _joined(words: pa.Array, offsets: Numbers, separator: str) -> Sequence[str]:
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), words)
    joined: list[str] = pc.binary_join(lists, separator).to_pylist()
    return joined


def _cleaned(words: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return words without the characters that separate words, and folded; an empty one is a placeholder."""
    encoded = words.combine_chunks().dictionary_encode()
    clean = pc.replace_substring_regex(encoded.dictionary, r"[\pZ\p{Cc}]", INNER_SPACE)
    clean = pc.if_else(pc.equal(clean, ""), INNER_SPACE, clean)
    folded = pa.array(map(fold_word, clean.to_pylist()), pa.string())
    return clean.take(encoded.indices), folded.take(encoded.indices)


def _starts(counts: pa.ChunkedArray) -> Numbers:
    """Return where each of some runs of rows starts, and where the last one ends."""
    return _running_sum(counts.to_numpy())


def _running_sum(values: Numbers) -> Numbers:
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])


VERSION = 7
"""Of the tables and how their rows are computed; each has a file of its own."""
SLOT_BITS = 32
"""Numbers of documents and sentences are ``shard slot << SLOT_BITS | row in its part``."""
BANDS = (0.5, 0.8, 0.95)
"""Limits of the bands of confidence."""
PAGE_ROWS = 50
FIRST_PAGE = Window(PAGE_ROWS, 0)
RowT = TypeVar("RowT", bound=NamedTuple)

_SCHEMA = """
CREATE TABLE shards (slot INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL);
CREATE TABLE documents (id INTEGER PRIMARY KEY, position INTEGER NOT NULL, doc_id TEXT NOT NULL, title TEXT,
  source TEXT NOT NULL, tagger TEXT NOT NULL, generation INTEGER NOT NULL, first_sentence INTEGER NOT NULL,
  token_row INTEGER NOT NULL, sentences INTEGER NOT NULL, words INTEGER NOT NULL, entities INTEGER NOT NULL,
  refined INTEGER NOT NULL, changed INTEGER NOT NULL, confidence REAL);
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
        *("n_sentences", "n_tokens", "n_entities"),
    ),
    "sentences": ("n_tokens",),
    "tokens": ("start_char", "end_char", "text", "lemma", "draft_ner", "ner", "refined"),
    "entities": (
        *("entity_id", "sent_id", "start_char", "end_char", "start_token", "end_token", "text", "label"),
        *("canonical", "confidence", "uncertainty", "refined", "source"),
    ),
    "errors": ("doc_id", "source_uri", "position", "stage", "error", "message", "attempts", "page"),
}
BAND = f"coalesce({' + '.join(f'(confidence >= {limit})' for limit in BANDS)}, -1)"


class Progress(NamedTuple):
    """How many shards of the collection the index holds."""

    indexed: int
    shards: int


class SearchIndex:
    """The index of one collection. Any number of threads and processes may read while one of them updates."""

    def __init__(self, path: Path) -> None:
        """Open the index, or make a new one where there is none."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # The texts of a collection are nobody else's business.
        path.touch(mode=0o600)
        with self._writing() as index:
            if index.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                for statement in _SCHEMA.split(";"):
                    index.execute(statement)

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

        A shard that is there is not read again.

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
        yield Progress(len(slots), len(reports))
        for number, key in enumerate(added, len(slots) + 1):
            with self._writing() as index:
                _add(index, collection, reports[key], key=key)
                if key == added[-1]:
                    _sum_up(index)
            yield Progress(number, len(reports))

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
    return f"{report.shard} {report.generation} {hashes}"


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


def _add(index: sqlite3.Connection, collection: Collection, report: CommitRecord, *, key: str) -> None:
    """Add the documents, entities, dead letters and words of a shard, unless another process has."""
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
    errors = without_lost_pages(errors).drop_columns(["page"])
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
    index.executemany(
        "INSERT INTO words (rowid, forms, lemmas, shown) VALUES (?, ?, ?, ?)",
        ((number, *row) for number, row in enumerate(sentence_rows(sentences, tokens), base)),
    )


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
