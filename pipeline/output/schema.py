"""The Arrow schemas of the output, their version, and the way from records to tables.

Every field carries one line of description, and every table the version, the signatures of parser and tagger, how the
tagger's probabilities are calibrated and the unit of offsets, in the schema's metadata.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from concord.models.labels import Span
from concord.models.outputs import Prediction
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, ParsedDocument, ParsedWord
from concord.pipeline.identity import ComponentIdentity

SCHEMA_VERSION = 2
OFFSET_UNIT = "code points of the raw text, half-open"
ANNOTATED = "annotated"

_VERSION_KEY = "concord.schema_version"
_PARSER_KEY = "concord.parser"
_TAGGER_KEY = "concord.tagger"
_OFFSET_KEY = "concord.offset_unit"
_CALIBRATION_KEY = "concord.calibration"
UNCALIBRATED = "none"


def _field(name: str, kind: pa.DataType, description: str, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"description": description})


def _schema(*fields: pa.Field) -> pa.Schema:
    return pa.schema(fields, metadata={_VERSION_KEY: str(SCHEMA_VERSION), _OFFSET_KEY: OFFSET_UNIT})


_DOC_ID = _field("doc_id", pa.string(), "the document's name, unique in the collection")
_SENT_ID = _field("sent_id", pa.int32(), "0-based number of the sentence within its document")
_START = _field("start_char", pa.int32(), "offset of the first code point")
_END = _field("end_char", pa.int32(), "offset behind the last code point")

DOCUMENTS = _schema(
    _DOC_ID,
    _field("source_uri", pa.string(), "absolute path of the input file"),
    _field("source_position", pa.int64(), "jsonl: byte in the decompressed file; parquet: row; text: 0"),
    _field("text_sha256", pa.string(), "SHA-256 of the raw text in UTF-8, hex"),
    _field("n_chars", pa.int32(), "code points of the raw text"),
    _field("n_sentences", pa.int32(), "rows in sentences"),
    _field("n_tokens", pa.int32(), "rows in tokens"),
    _field("n_entities", pa.int32(), "rows in entities"),
    _field("parser", pa.string(), "signature of the parser that made sentences, tokens and trees"),
    _field("tagger", pa.string(), "signature of the tagger that made the entities"),
    _field("status", pa.string(), "annotated; documents that could not be are in errors"),
    _field("meta", pa.string(), "the record's other fields as one JSON object", nullable=True),
)

SENTENCES = _schema(
    _DOC_ID,
    _SENT_ID,
    _START,
    _END,
    _field("n_tokens", pa.int32(), "rows in tokens"),
    _field("continues", pa.bool_(), "true for a further piece of an over-long sentence; each piece has its own root"),
)

TOKENS = _schema(
    _DOC_ID,
    _SENT_ID,
    _field("token_id", pa.int32(), "1-based number of the word within its sentence, as in CoNLL-U"),
    _START,
    _END,
    _field("text", pa.string(), "the slice of the raw text; words of one multi-word token may share it"),
    _field("word", pa.string(), "the syntactic word's form"),
    _field("lemma", pa.string(), "lemma", nullable=True),
    _field("upos", pa.string(), "universal part of speech", nullable=True),
    _field("xpos", pa.string(), "part of speech of the language's own tag set", nullable=True),
    _field("feats", pa.string(), "morphological features, as in CoNLL-U", nullable=True),
    _field("head", pa.int32(), "token_id of the head, 0 for the root"),
    _field("deprel", pa.string(), "relation to the head"),
    _field("draft_ner", pa.string(), "stage one's label in BIO2; equals ner for a tagger of one stage"),
    _field("ner", pa.string(), "final label in BIO2; a sentence that continues another may begin with I-"),
    _field(
        "ner_prob",
        pa.float32(),
        "probability of the label by the stage that gave it, 0..1; concord.calibration in the table's metadata says "
        "how it is calibrated",
    ),
    _field("uncertainty", pa.float32(), "entropy of stage one in nats"),
    _field("refined", pa.bool_(), "true where stage two gave the label"),
)

ENTITIES = _schema(
    _DOC_ID,
    _field("entity_id", pa.int32(), "0-based number of the entity within its document"),
    _field("sent_id", pa.int32(), "sentence in which the entity begins"),
    _START,
    _END,
    _field("start_token", pa.int32(), "token_id of the first word"),
    _field(
        "end_token",
        pa.int32(),
        "token_id of the last word; counts on past the sentence's n_tokens where the entity runs into a piece that "
        "continues it",
    ),
    _field("text", pa.string(), "the slice of the raw text"),
    _field("label", pa.string(), "entity type"),
    _field(
        "confidence",
        pa.float32(),
        "probability that just these words are an entity of this label, 0..1; concord.calibration in the table's "
        "metadata says how it is calibrated",
    ),
    _field("uncertainty", pa.float32(), "largest uncertainty of its words in nats"),
    _field("refined", pa.bool_(), "true where stage two gave the label of any of its words"),
)

ERRORS = _schema(
    _field("doc_id", pa.string(), "the document's name, where it could be read", nullable=True),
    _field("source_uri", pa.string(), "absolute path of the input file"),
    _field("position", pa.int64(), "jsonl: byte in the decompressed file; parquet: row; text: 0"),
    _field("stage", pa.string(), "read, parse, tag or write"),
    _field("error", pa.string(), "short stable reason"),
    _field("message", pa.string(), "where, what was expected, what came"),
    _field("attempts", pa.int32(), "how often a retry has been tried"),
)

SCHEMAS: dict[str, pa.Schema] = {
    "documents": DOCUMENTS,
    "sentences": SENTENCES,
    "tokens": TOKENS,
    "entities": ENTITIES,
    "errors": ERRORS,
}


def component_signature(component: ComponentIdentity) -> str:
    """Give what the columns ``parser`` and ``tagger`` and the tables' metadata say of a component."""
    return f"{component.name}@{component.digest}"


def signed_schema(name: str, *, parser: str, tagger: str, calibration: str) -> pa.Schema:
    """Give a table's schema with the signatures of parser and tagger in its metadata.

    Args:
        calibration: the methods by which the tagger's probabilities are calibrated, or ``UNCALIBRATED``.
    """
    schema = SCHEMAS[name]
    signed = {_PARSER_KEY: parser, _TAGGER_KEY: tagger, _CALIBRATION_KEY: calibration}
    return schema.with_metadata({**schema.metadata, **signed})


def schema_version(schema: pa.Schema) -> int | None:
    """Read the version off a file's schema; None when it bears none."""
    version = (schema.metadata or {}).get(_VERSION_KEY.encode())
    return int(version) if version is not None else None


def calibration_of(schema: pa.Schema) -> str | None:
    """Read off a file's schema how its probabilities are calibrated; None when it does not say."""
    found = (schema.metadata or {}).get(_CALIBRATION_KEY.encode())
    return found.decode() if found is not None else None


def annotated_tables(
    documents: Iterable[AnnotatedDocument], *, parser: str, tagger: str, calibration: str = UNCALIBRATED
) -> dict[str, pa.Table]:
    """Give the four tables of annotated documents, in the documents' order.

    Args:
        parser, tagger: their signatures.
        calibration: as in ``signed_schema``.

    Raises:
        ValueError: for a value that the schema does not allow (UnicodeEncodeError for a lone surrogate).
    """
    flat = [_flatten(document) for document in documents]
    columns = {
        "documents": _document_columns(flat, parser=parser, tagger=tagger, calibration=calibration),
        "sentences": _sentence_columns(flat),
        "tokens": _token_columns(flat),
        "entities": _entity_columns(flat),
    }
    return {
        name: _table(values, signed_schema(name, parser=parser, tagger=tagger, calibration=calibration))
        for name, values in columns.items()
    }


def error_table(letters: Sequence[DeadLetter], *, parser: str, tagger: str, calibration: str) -> pa.Table:
    """Give the table of dead letters. What cannot be written in UTF-8 is written with backslashes."""
    schema = signed_schema("errors", parser=parser, tagger=tagger, calibration=calibration)
    columns = {name: [_writable(getattr(letter, name)) for letter in letters] for name in schema.names}
    return _table(columns, schema)


def offset_fault(parsed: ParsedDocument) -> str | None:
    """Say what is wrong with a document's offsets; None when all is well.

    Words must be ordered and disjoint (only words of one multi-word token may share one stretch), each must equal its
    slice of the raw text, together they must cover every code point that is not white space, and no sentence may
    be empty.
    """
    text = parsed.document.text
    begin = end = 0
    for number, sentence in enumerate(parsed.sentences):
        if not sentence.words:
            return f"sentence {number}: expected a word or more, got none"
        for word in sentence.words:
            start, stop = word.start_char, word.end_char
            shares_token = begin < end and (start, stop) == (begin, end)
            if not shares_token and not end <= start < stop <= len(text):
                return f"{word.text!r}: expected offsets within {end}..{len(text)}, got {start}..{stop}"
            if text[start:stop] != word.text:
                return f"characters {start}..{stop}: expected {text[start:stop]!r}, got {word.text!r}"
            if _holds_ink(text[end:start]):
                return f"characters {end}..{start}: {text[end:start][:80]!r} is in no word"
            begin, end = start, stop
    if _holds_ink(text[end:]):
        return f"characters {end}..{len(text)}: {text[end:][:80]!r} is in no word"
    return None


def _holds_ink(gap: str) -> bool:
    return bool(gap) and not gap.isspace()


def _writable(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class _Flat:
    """A document with its words and labels in one row each; a sentence's words begin at ``starts``."""

    annotated: AnnotatedDocument
    words: list[ParsedWord]
    starts: list[int]
    probabilities: list[float]
    uncertainty: list[float]
    refined: list[bool]

    @property
    def doc_id(self) -> str:
        return self.annotated.parsed.document.doc_id

    @property
    def spans(self) -> list[tuple[int, Span, float]]:
        """The entities with the number of the sentence in which they begin, and their confidence."""
        return [
            (number, span, confidence)
            for number, prediction in enumerate(self.annotated.predictions)
            for span, confidence in zip(prediction.spans, prediction.confidences, strict=True)
        ]


def _flatten(annotated: AnnotatedDocument) -> _Flat:
    words: list[ParsedWord] = []
    starts: list[int] = []
    for sentence, prediction in zip(annotated.parsed.sentences, annotated.predictions, strict=True):
        if len(prediction.labels) != len(sentence.words):
            raise ValueError(f"labels: expected {len(sentence.words)}, got {len(prediction.labels)}")
        starts.append(len(words))
        words.extend(sentence.words)
    return _Flat(
        annotated,
        words,
        starts,
        _chain(annotated.predictions, "probabilities"),
        _chain(annotated.predictions, "uncertainty"),
        _chain(annotated.predictions, "refined"),
    )


def _chain(predictions: Sequence[Prediction], name: str) -> list[Any]:
    return [value for prediction in predictions for value in getattr(prediction, name)]


def _document_columns(flat: Sequence[_Flat], *, parser: str, tagger: str, calibration: str) -> dict[str, list[Any]]:
    documents = [item.annotated.parsed.document for item in flat]
    return {
        "doc_id": [document.doc_id for document in documents],
        "source_uri": [document.source_uri for document in documents],
        "source_position": [document.source_position for document in documents],
        "text_sha256": [hashlib.sha256(document.text.encode()).hexdigest() for document in documents],
        "n_chars": [len(document.text) for document in documents],
        "n_sentences": [len(item.starts) for item in flat],
        "n_tokens": [len(item.words) for item in flat],
        "n_entities": [len(item.spans) for item in flat],
        "parser": [parser] * len(flat),
        "tagger": [tagger] * len(flat),
        "status": [ANNOTATED] * len(flat),
        "meta": [document.meta for document in documents],
    }


def _sentence_columns(flat: Sequence[_Flat]) -> dict[str, list[Any]]:
    rows = [(item, number) for item in flat for number in range(len(item.starts))]
    sentences = [item.annotated.parsed.sentences[number] for item, number in rows]
    return {
        "doc_id": [item.doc_id for item, _ in rows],
        "sent_id": [number for _, number in rows],
        "start_char": [sentence.words[0].start_char for sentence in sentences],
        "end_char": [sentence.words[-1].end_char for sentence in sentences],
        "n_tokens": [len(sentence.words) for sentence in sentences],
        "continues": [sentence.continues for sentence in sentences],
    }


_WORD_FIELDS = ("start_char", "end_char", "text", "word", "lemma", "upos", "xpos", "feats", "head", "deprel")


def _token_columns(flat: Sequence[_Flat]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in TOKENS.names}
    for item in flat:
        columns["doc_id"].extend([item.doc_id] * len(item.words))
        for number, sentence in enumerate(item.annotated.parsed.sentences):
            columns["sent_id"].extend([number] * len(sentence.words))
            columns["token_id"].extend(range(1, len(sentence.words) + 1))
        for name in _WORD_FIELDS:
            columns[name].extend([getattr(word, name) for word in item.words])
        columns["draft_ner"].extend(_chain(item.annotated.predictions, "draft_labels"))
        columns["ner"].extend(_chain(item.annotated.predictions, "labels"))
        columns["ner_prob"].extend(item.probabilities)
        columns["uncertainty"].extend(item.uncertainty)
        columns["refined"].extend(item.refined)
    return columns


def _entity_columns(flat: Sequence[_Flat]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in ENTITIES.names}
    for item in flat:
        for entity_id, (sent_id, span, confidence) in enumerate(item.spans):
            row = _entity_row(item, sent_id, span, confidence)
            columns["entity_id"].append(entity_id)
            for name, value in row.items():
                columns[name].append(value)
    return columns


def _entity_row(item: _Flat, sent_id: int, span: Span, confidence: float) -> dict[str, Any]:
    within = slice(item.starts[sent_id] + span.start, item.starts[sent_id] + span.end)
    words = item.words[within]
    if len(words) != span.end - span.start:
        raise ValueError(f"entity {span}: expected it within the document's {len(item.words)} words")
    start_char, end_char = words[0].start_char, words[-1].end_char
    return {
        "doc_id": item.doc_id,
        "sent_id": sent_id,
        "start_char": start_char,
        "end_char": end_char,
        "start_token": span.start + 1,
        "end_token": span.end,
        "text": item.annotated.parsed.document.text[start_char:end_char],
        "label": span.label,
        "confidence": confidence,
        "uncertainty": max(item.uncertainty[within]),
        "refined": any(item.refined[within]),
    }


def _table(columns: dict[str, list[Any]], schema: pa.Schema) -> pa.Table:
    table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    for field in schema:
        # Arrow itself minds a null in a required column only when the file is being written.
        if not field.nullable and table.column(field.name).null_count:
            raise ValueError(f"{field.name}: expected a value in every row, got null")
    return table
