"""Build the output tables of annotated documents, and the table of names of a whole collection."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from concord.models.data.outputs import Source, known_numbers
from concord.models.data.sentence import visible, without_line_breaks
from concord.models.labels import Span
from concord.pipeline.documents import (
    PAGE,
    AnnotatedDocument,
    DeadLetter,
    Document,
    Lost,
    ParsedSentence,
    ParsedWord,
    Part,
)
from concord.pipeline.names.identities import Mention, identify, name_key
from concord.pipeline.names.language import ENGLISH, Language, language_of
from concord.pipeline.names.values import VALUES, value_of
from concord.pipeline.output.schema import (
    ANNOTATED,
    CANDIDATE,
    ENTITIES,
    NAMES,
    SCHEMAS,
    TOKENS,
    Signature,
    signed_schema,
)
from concord.pipeline.parsing.stanza_packages import MULTILINGUAL_PACKAGE

Columns: TypeAlias = dict[str, list[Any]]
"""The values of a table, by the names of its columns."""

_NUMBERED = (PAGE, "chapter")
_FOR_MANY_LANGUAGES = f"stanza/{MULTILINGUAL_PACKAGE}@"
_OF_DOCUMENTS = (
    *("doc_id", "source_uri", "source_position", "meta", "meta_nulls"),
    *("encoding", "encoding_confidence", "replaced", "source_sha256"),
)
"""The columns of documents that hold what was read."""
_OF_PREDICTIONS = {
    "draft_ner": "draft_labels",
    "ner": "labels",
    "ner_prob": "probabilities",
    "uncertainty": "uncertainty",
    "refined": "refined",
}
"""The columns of tokens that hold a prediction."""


def annotated_tables(
    documents: Iterable[AnnotatedDocument], signature: Signature, *, keep_text: bool = False
) -> dict[str, pa.Table]:
    """Build the four tables of annotated documents, in the order of the documents.

    Args:
        keep_text: store all raw texts in the table of documents, and not only those that were extracted.

    Raises:
        ValueError: for a value that the schema does not allow (UnicodeEncodeError for a lone surrogate).
    """
    columns = _columns(documents, signature, keep_text=keep_text)
    return {name: _table(values, signed_schema(name, signature)) for name, values in columns.items()}


def annotated_columns(documents: Iterable[AnnotatedDocument], signature: Signature) -> dict[str, Columns]:
    """Return the columns of the four tables, with the values that the tables hold, but sooner for a few rows.

    PyArrow imports pandas before it builds its first table from lists. The columns of documents lack their language.
    """
    tables = _columns(documents, signature, keep_text=False, language=False)
    for name, columns in tables.items():
        for field in SCHEMAS[name]:
            if pa.types.is_float32(field.type) and field.name in columns:
                values = columns[field.name]
                rounded = np.array(values, dtype=np.float32).tolist()
                columns[field.name] = [None if old is None else new for old, new in zip(values, rounded, strict=True)]
    return tables


def error_table(dead_letters: Sequence[DeadLetter], signature: Signature) -> pa.Table:
    """Build the table of dead letters; characters that UTF-8 cannot encode are escaped with backslashes."""
    schema = signed_schema("errors", signature)
    columns = {name: [_encodable(getattr(row, name, None)) for row in dead_letters] for name in schema.names}
    return _table(columns, schema)


def lost_pages(documents: pa.Table, signature: Signature) -> pa.Table:
    """Return the rows of the table of errors for the pages that the rows of documents have lost."""
    columns = ["doc_id", "source_uri", "source_position", "parts", "lost"]
    rows = []
    for doc_id, uri, position, parts, losses in zip(*(documents[name].to_pylist() for name in columns), strict=True):
        kind = next((part["kind"] for part in parts or () if part["kind"] in _NUMBERED), "part")
        for number, error, message in (lost.values() for lost in losses or () if lost["number"]):
            rows.append((doc_id, uri, position, "read", error, f"{uri}, {kind} {number}: {message}", 0, number))
    schema = signed_schema("errors", signature)
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def without_lost_pages(errors: pa.Table) -> pa.Table:
    """Return rows of the table of errors that are dead letters."""
    return errors.filter(pc.is_null(errors["page"]))


def _columns(
    documents: Iterable[AnnotatedDocument], signature: Signature, *, keep_text: bool, language: bool = True
) -> dict[str, Columns]:
    flat = [_FlatDocument(document, signature.parser) for document in documents]
    columns = _document_columns(flat, signature, keep_text=keep_text)
    if language:
        columns["language"] = [item.language and item.language.code for item in flat]
        columns["language_confidence"] = [item.language and item.language.confidence for item in flat]
    return {
        "documents": columns,
        "sentences": _sentence_columns(flat),
        "tokens": _token_columns(flat),
        "entities": _entity_columns(flat),
    }


def normalize_name(text: str) -> str:
    """Return the name of an entity: its text without invisible characters or line ends in words, with single spaces."""
    return " ".join(visible(without_line_breaks(text)).split())


def title_of(meta: str | None) -> str | None:
    """Return the title among a record's other fields, if there is one."""
    if not meta or '"title"' not in meta:
        return None
    fields = orjson.loads(meta)
    title = fields.get("title") if isinstance(fields, dict) else None
    return title if isinstance(title, str) and title.strip() else None


def without_candidates(entities: pa.Table) -> pa.Table:
    """Return rows of the table of entities, with their ``source``, without candidates."""
    return entities.filter(pc.not_equal(entities["source"], CANDIDATE))


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


@dataclass(frozen=True)
class _FlatDocument:
    """A document with the words and predictions of its sentences concatenated."""

    annotated: AnnotatedDocument
    parser: str

    @property
    def document(self) -> Document:
        return self.annotated.parsed.document

    @property
    def sentences(self) -> tuple[ParsedSentence, ...]:
        return self.annotated.parsed.sentences

    @cached_property
    def words(self) -> list[ParsedWord]:
        return [word for sentence in self.sentences for word in sentence.words]

    def values(self, name: str) -> list[Any]:
        """Return an attribute of the predictions of all words."""
        return [value for prediction in self.annotated.predictions for value in getattr(prediction, name)]

    @cached_property
    def language(self) -> Language | None:
        """The language of the text, if it is sure."""
        return language_of(self.document.text)

    @property
    def is_english(self) -> bool:
        """Whether the rules of English decide values and identities.

        A text whose language is not sure counts as English, unless the parser is for many languages.
        """
        if self.language is None:
            return not self.parser.startswith(_FOR_MANY_LANGUAGES)
        return self.language.code == ENGLISH

    @property
    def spans(self) -> list[tuple[int, Span, float | None, Source]]:
        """The entities and then the candidates as (number of the sentence they begin in, span, confidence, source)."""
        spans = [
            (number, *entity)
            for number, prediction in enumerate(self.annotated.predictions)
            for entity in prediction.entities
        ]
        return sorted(spans, key=lambda span: span[-1] == CANDIDATE)

    @property
    def candidates(self) -> int:
        """How many of them are candidates."""
        return sum(prediction.sources.count("candidate") for prediction in self.annotated.predictions)


def _document_columns(flat: Sequence[_FlatDocument], signature: Signature, *, keep_text: bool) -> Columns:
    documents = [item.document for item in flat]
    return {
        **{name: [getattr(document, name) for document in documents] for name in _OF_DOCUMENTS},
        "text_sha256": [hashlib.sha256(document.text.encode()).hexdigest() for document in documents],
        "n_chars": [len(document.text) for document in documents],
        "n_sentences": [len(item.sentences) for item in flat],
        "n_tokens": [len(item.words) for item in flat],
        "n_entities": [len(item.spans) - item.candidates for item in flat],
        "n_candidates": [item.candidates for item in flat],
        "parser": [signature.parser] * len(flat),
        "tagger": [signature.tagger] * len(flat),
        "status": [ANNOTATED] * len(flat),
        "parts": [None if document.parts is None else [*map(Part._asdict, document.parts)] for document in documents],
        "lost": [[*map(Lost._asdict, document.lost)] or None for document in documents],
        "raw_text": [document.text if keep_text or document.parts is not None else None for document in documents],
    }


def _sentence_columns(flat: Sequence[_FlatDocument]) -> Columns:
    sentences = [sentence for item in flat for sentence in item.sentences]
    return {
        "doc_id": [item.document.doc_id for item in flat for _ in item.sentences],
        "sent_id": [number for item in flat for number in range(len(item.sentences))],
        "start_char": [sentence.words[0].start_char for sentence in sentences],
        "end_char": [sentence.words[-1].end_char for sentence in sentences],
        "n_tokens": [len(sentence.words) for sentence in sentences],
        "continues": [sentence.continues for sentence in sentences],
    }


def _token_columns(flat: Sequence[_FlatDocument]) -> Columns:
    columns: Columns = {name: [] for name in TOKENS.names}
    for item in flat:
        columns["doc_id"].extend([item.document.doc_id] * len(item.words))
        for number, sentence in enumerate(item.sentences):
            columns["sent_id"].extend([number] * len(sentence.words))
            columns["token_id"].extend(range(1, len(sentence.words) + 1))
        for name, values in zip(ParsedWord._fields, zip(*item.words, strict=True), strict=False):
            columns[name].extend(values)
        for name, attribute in _OF_PREDICTIONS.items():
            columns[name].extend(item.values(attribute))
    return columns


def _entity_columns(flat: Sequence[_FlatDocument]) -> Columns:
    rows: list[dict[str, Any]] = []
    for item in flat:
        first, document_text = len(rows), item.document.text
        starts = [*accumulate((len(sentence.words) for sentence in item.sentences), initial=0)]
        uncertainty, refined = item.values("uncertainty"), item.values("refined")
        for entity_id, (sent_id, span, confidence, source) in enumerate(item.spans):
            within = slice(starts[sent_id] + span.start, starts[sent_id] + span.end)
            words = item.words[within]
            if len(words) != span.end - span.start:
                raise ValueError(f"entity {span}: expected it within the document's {len(item.words)} words")
            start_char, end_char = words[0].start_char, words[-1].end_char
            text = document_text[start_char:end_char]
            name = normalize_name(text)
            rows.append(
                {
                    "doc_id": item.document.doc_id,
                    "entity_id": entity_id,
                    "sent_id": sent_id,
                    "start_char": start_char,
                    "end_char": end_char,
                    "start_token": span.start + 1,
                    "end_token": span.end,
                    "text": text,
                    "name": name,
                    "label": span.label,
                    "value": value_of(span.label, document_text, start_char, end_char)
                    if span.label in VALUES and item.is_english
                    else None,
                    "confidence": confidence,
                    "uncertainty": max(known_numbers(uncertainty[within]), default=None),
                    "refined": any(refined[within]),
                    "source": source,
                }
            )
        last = len(rows) - item.candidates
        mentions = [
            Mention(row["name"], row["label"], *place, item.annotated.canonical.get(place))
            for row in rows[first:last]
            for place in [(row["start_char"], row["end_char"])]
        ]
        identities = identify(mentions, document_text, in_english=len(mentions) < 2 or item.is_english)
        for row, identity in zip(rows[first:last], identities, strict=True):
            row |= {"canonical": identity.canonical, "identity": identity.number}
        for row in rows[last:]:
            row |= {"canonical": row["name"], "identity": row["entity_id"]}
    return {name: [row[name] for row in rows] for name in ENTITIES.names}


def _table(columns: Columns, schema: pa.Schema) -> pa.Table:
    table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    for field in schema:
        # Arrow checks required columns for nulls only while it writes the file.
        if not field.nullable and table.column(field.name).null_count:
            raise ValueError(f"{field.name}: expected a value in every row, got null")
    return table


NAMED_COLUMNS = ("doc_id", "name", "label", "canonical")
"""The columns of entities that make up the table."""
_DIGITS = 16
_MERGED_ROWS = 1 << 18
"""Counts of shards that are held before they are added up."""


def tabulate_names(shards: Iterable[pa.Table], previous: pa.Table | None = None) -> pa.Table:
    """Group entities that have the same label and canonical name, but for case, full stops, articles and titles.

    Dates, amounts and numbers are left out. Memory holds the entities of one shard, and each name with its variants.

    Args:
        shards: rows of the table entities, with ``NAMED_COLUMNS`` at least; the rows of a document are in one shard.
        previous: the table of an earlier generation, from which names keep their ids.

    Returns:
        The table names, the most frequent first.
    """
    counts, documents = [], []
    for shard in shards:
        entities = shard.filter(pc.invert(pc.is_in(shard["label"], pa.array(VALUES))))
        columns = {name: entities[name].cast(pa.large_string()) for name in NAMED_COLUMNS}
        pairs = zip(entities["label"].to_pylist(), entities["canonical"].to_pylist(), strict=True)
        rows = pa.table({"key": pa.array((_key(*pair) for pair in pairs), pa.large_string()), **columns})
        counts.append(_counts([rows.append_column("mentions", [pa.array([1] * len(rows), pa.int64())])]))
        once = _group(rows, "key", "doc_id")
        of_key = [once["key"], pa.array([1] * len(once), pa.int64()), once["doc_id"], once["doc_id"]]
        documents.append(_documents([pa.table(of_key, names=["key", "documents", "first_doc_id", "last_doc_id"])]))
        if sum(map(len, counts[1:])) > max(_MERGED_ROWS, len(counts[0])):
            counts, documents = [_counts(counts)], [_documents(documents)]
    if not counts:
        return NAMES.empty_table()
    counted = _counts(counts)
    fullest = _most_frequent(counted, "canonical", "first")
    named_in = _documents(documents).sort_by("key")
    keys = named_in["key"].to_pylist()
    columns = {
        "name_id": pa.array(_name_ids(keys, previous)),
        "canonical": fullest["canonical"],
        "label": pa.array([key.partition("\0")[0] for key in keys]),
        "mentions": fullest["mentions"],
        **{name: named_in[name] for name in ("documents", "first_doc_id", "last_doc_id")},
        "variants": _most_frequent(counted, "name", "list")["name"],
    }
    return pa.table(columns).cast(NAMES).sort_by([("mentions", "descending"), ("name_id", "ascending")])


def _key(label: str, canonical: str) -> str:
    """Return what is the same for all canonical names of one name."""
    return f"{label}\0{name_key(canonical, label)}"


def _name_ids(keys: Sequence[str], previous: pa.Table | None) -> list[str]:
    """Return the id of each key: that of the previous table, or one that depends on the key alone."""
    ids: dict[str, str] = {}
    for row in () if previous is None else previous.select(["label", "canonical", "name_id"]).to_pylist():
        ids.setdefault(_key(row["label"], row["canonical"]), row["name_id"])
    taken = set(ids.values())
    for key in keys:
        seed = key
        # The id of a name that had another key when the rules were others may be that of this key.
        while key not in ids:
            name_id = hashlib.sha256(seed.encode()).hexdigest()[:_DIGITS]
            if name_id not in taken:
                ids[key] = name_id
                taken.add(name_id)
            seed += "\0"
    return [ids[key] for key in keys]


def _counts(tables: Sequence[pa.Table]) -> pa.Table:
    return _group(pa.concat_tables(tables), "key", "canonical", "name", mentions="sum")


def _documents(tables: Sequence[pa.Table]) -> pa.Table:
    """Add up documents that shards share none of, given in the order of the shards."""
    return _group(pa.concat_tables(tables), "key", documents="sum", first_doc_id="first", last_doc_id="last")


def _most_frequent(counted: pa.Table, column: str, how: str) -> pa.Table:
    """Return the most frequent value of each key, or all values in this order, sorted by keys."""
    order = [("key", "ascending"), ("mentions", "descending"), (column, "ascending")]
    return _group(_group(counted, "key", column, mentions="sum").sort_by(order), "key", mentions="sum", **{column: how})


def _group(table: pa.Table, *keys: str, **columns: str) -> pa.Table:
    """Return the groups in the order of their first rows, with aggregates of some columns."""
    # One thread: with several, groups and the first of their rows come in any order.
    groups = table.group_by(list(keys), use_threads=False).aggregate(list(columns.items()))
    return groups.rename_columns([*keys, *columns])
