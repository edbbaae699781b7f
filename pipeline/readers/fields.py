"""Records with named fields, and the documents that they become."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.plan import Piece
from concord.pipeline.readers.encodings import Encoding
from concord.pipeline.readers.records import RecordError, too_large

Fields = Mapping[str, Any]

DUPLICATE_ID = "duplicate_id"
MISSING_TEXT = "missing_text"
TEXT_NOT_STRING = "text_not_string"

_SHOWN_NAMES = 20
_NULL = "got null;"

_TYPE_NAMES = {"bool": "true or false", "int": "an integer", "float": "a number", "list": "a list", "dict": "an object"}


class Record(NamedTuple):
    """One record of a file.

    Attributes:
        start, end: half-open, in the reader's unit.
        fields: by name, or why it cannot be read.
        size: bytes of input, for cutting shards; None stands for the bytes of its text.
        encoding: of its bytes, where its format leaves that open.
    """

    start: int
    end: int
    fields: Fields | RecordError
    size: int | None = None
    encoding: Encoding | None = None

    def readable_fields(self) -> Fields:
        """Return the fields; raise the RecordError where there are none."""
        if isinstance(self.fields, RecordError):
            # One error may stand for many records; its traceback would grow with each.
            raise self.fields.with_traceback(None)
        return self.fields


def build_document(record: Record, piece: Piece, *, is_duplicate: bool, config: ReaderConfig) -> Document:
    """Build the document that a record of a piece becomes; all fields but id and text become its meta.

    Raises:
        RecordError: naming the field that is wrong, or when the id is a duplicate.
    """
    doc_id = record_id(record, name=piece.name, config=config)
    text = record_text(record, doc_id=doc_id, config=config)
    if is_duplicate:
        raise duplicate_id(doc_id)
    return Document(
        doc_id=doc_id,
        text=text,
        source_uri=piece.uri,
        source_position=record.start,
        meta=_meta(record.readable_fields(), doc_id=doc_id, config=config),
        encoding=record.encoding.name if record.encoding else None,
        encoding_confidence=record.encoding.confidence if record.encoding else None,
    )


def record_id(record: Record, *, name: str, config: ReaderConfig) -> str:
    """Return the id of the document that a record of the file ``name`` (see Piece.name) becomes.

    Raises:
        RecordError: when the record cannot be read or its id is neither a string nor an integer.
    """
    value = record.readable_fields().get(config.id_field)
    if value is None:
        return f"{name}:{record.start}"
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise RecordError(
        "id_not_string",
        f"field {config.id_field!r}: expected a string or an integer, got {_type_name(value)};"
        " set reader.id_field or fix the record",
    )


def record_text(record: Record, *, doc_id: str | None = None, config: ReaderConfig) -> str:
    """Return a record's text; RecordError if it is missing, too long or not a string."""
    fields = record.readable_fields()
    value = fields.get(config.text_field)
    if isinstance(value, str):
        if len(value) > config.max_record_bytes:
            raise too_large(config.max_record_bytes)
        return value
    if value is None:
        got = _NULL if config.text_field in fields else f"got only {_names(fields)};"
        raise RecordError(
            MISSING_TEXT,
            f"expected a field {config.text_field!r}, {got} set reader.text_field or fix the record",
            doc_id=doc_id,
        )
    raise RecordError(
        TEXT_NOT_STRING,
        f"field {config.text_field!r}: expected a string, got {_type_name(value)}; set reader.text_field",
        doc_id=doc_id,
    )


def names_wrong_field(dead_letter: DeadLetter) -> bool:
    """Tell whether a dead letter suggests that reader.text_field is wrong: no such field, or one that is no string."""
    if dead_letter.error == MISSING_TEXT:
        return _NULL not in dead_letter.message
    return dead_letter.error == TEXT_NOT_STRING


def duplicate_id(doc_id: str) -> RecordError:
    """Return the error of a record whose id an earlier record of the collection has."""
    return RecordError(
        DUPLICATE_ID,
        f"expected an id that no earlier record has, got {doc_id!r}; the first record was kept; rename this one",
        doc_id=doc_id,
    )


def _meta(fields: Fields, *, doc_id: str, config: ReaderConfig) -> str | None:
    others = {key: value for key, value in fields.items() if key not in (config.id_field, config.text_field)}
    if not others:
        return None
    try:
        return orjson.dumps(others, default=_json_value, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise RecordError(
            "unstorable_field",
            f"expected fields that fit into one JSON object, got {_names(others)} ({error}); drop or flatten them",
            doc_id=doc_id,
        ) from None


def _json_value(value: object) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value).__name__, type(value).__name__)


def _names(fields: Fields) -> str:
    names = [repr(name) for name in list(fields)[:_SHOWN_NAMES]]
    return ", ".join(names) + (", ..." if len(fields) > len(names) else "") if names else "no field"
