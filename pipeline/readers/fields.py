"""Records with named fields, and the documents that they become."""

from base64 import b64encode
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import NO_TEXT, DeadLetter, Document, Lost, Part
from concord.pipeline.plan import Piece
from concord.pipeline.readers.files import Encoding
from concord.pipeline.readers.records import RecordError, too_large

Fields = Mapping[str, Any]

DUPLICATE_ID = "duplicate_id"
MISSING_TEXT = "missing_text"
TEXT_NOT_STRING = "text_not_string"

_SHOWN_NAMES = 20
_NULL = "got null;"

_TYPE_NAMES = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "Number": "a number",
    "str": "a string",
    "NoneType": "null",
    "list": "a list",
    "dict": "an object",
}


class Record(NamedTuple):
    """One record of a file.

    Attributes:
        start, end: half-open, in the reader's unit.
        fields: by name, or why it cannot be read; a RecordError stands for a value that cannot be.
        size: bytes of input, for cutting shards; None stands for the bytes of its text.
        encoding: of its bytes, where its format leaves that open.
        replaced, parts: see Document.
    """

    start: int
    end: int
    fields: Fields | RecordError
    size: int | None = None
    encoding: Encoding | None = None
    replaced: int = 0
    parts: tuple[Part, ...] | None = None

    def readable_fields(self) -> Fields:
        """Return the fields; raise the RecordError where there are none."""
        if isinstance(self.fields, RecordError):
            # One error may stand for many records; its traceback would grow with each.
            raise self.fields.with_traceback(None)
        return self.fields


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractedRecord:
    """A record whose text was extracted, and is therefore stored: a message, say, or a page of a web archive.

    Attributes:
        doc_id: None stands for the field that ``reader.id_field`` names, or else the record's place.
        meta: the other fields.
        parts: see Document.parts.
    """

    text: str
    doc_id: str | None = None
    meta: Fields = field(default_factory=dict)
    parts: tuple[Part, ...] = ()

    def fields(self, config: ReaderConfig) -> Fields:
        """Return the fields as those of other records, whatever the fields of their id and text are called."""
        named = {} if self.doc_id is None else {config.id_field: self.doc_id}
        return {**self.meta, **named, config.text_field: self.text}


class Number(NamedTuple):
    """A number of JSON as it is written, with all its digits."""

    digits: str


def check_names(names: Sequence[str], *, error: str = "invalid_header") -> None:
    """Check that no two columns of a table, or keys of an object, have one name: one value would hide the other.

    Raises:
        RecordError: with the code ``error``, naming one that comes twice.
    """
    twice = [name for name, count in Counter(names).items() if count > 1] if len(set(names)) < len(names) else []
    if twice:
        raise RecordError(
            error, f"expected different names, got {twice[0]!r} twice among {_names(names)}; rename or drop one of them"
        )


def by_name(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object of names and values; raise RecordError (``duplicate_key``) as ``check_names``."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        check_names([name for name, _ in pairs], error="duplicate_key")
    return fields


def build_document(record: Record, piece: Piece, *, is_duplicate: bool, config: ReaderConfig) -> Document:
    """Build the document that a record of a piece becomes; all fields but id and text become its meta.

    Raises:
        RecordError: naming the field that is wrong, or when the id is a duplicate.
    """
    doc_id = record_id(record, name=piece.name, config=config)
    text = record_text(record, doc_id=doc_id, config=config)
    if is_duplicate:
        raise duplicate_id(doc_id)
    meta, nulls = meta_of(record.readable_fields(), config=config)
    return Document(
        doc_id=doc_id,
        text=text,
        source_uri=piece.uri,
        source_position=record.start,
        meta=meta,
        meta_nulls=nulls,
        encoding=record.encoding.name if record.encoding else None,
        encoding_confidence=record.encoding.confidence if record.encoding else None,
        replaced=record.replaced,
        parts=record.parts,
        lost=lost_with_text(text),
    )


def lost_with_text(text: str, lost: tuple[Lost, ...] = ()) -> tuple[Lost, ...]:
    """Return what is lost of a text; where it has no word, that says so as well."""
    if text and not text.isspace():
        return lost
    return (*lost, Lost(0, NO_TEXT, "expected a text, got no word"))


def record_id(record: Record, *, name: str, config: ReaderConfig) -> str:
    """Return the id of the document that a record of the file ``name`` (see Piece.name) becomes.

    Raises:
        RecordError: when the record cannot be read or its id is neither a string nor an integer.
    """
    value = _value(record.readable_fields(), config.id_field)
    if value is None:
        return f"{name}:{record.start}"
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, Number) and value.digits.removeprefix("-").isdigit():
        return value.digits
    raise RecordError(
        "id_not_string",
        f"field {config.id_field!r}: expected a string or an integer, got {type_name(value)};"
        " set reader.id_field or fix the record",
    )


def record_text(record: Record, *, doc_id: str | None = None, config: ReaderConfig) -> str:
    """Return a record's text; RecordError if it is missing, too long or not a string."""
    fields = record.readable_fields()
    value = _value(fields, config.text_field, doc_id=doc_id)
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
        f"field {config.text_field!r}: expected a string, got {type_name(value)}; set reader.text_field",
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


def _value(fields: Fields, name: str, *, doc_id: str | None = None) -> Any:
    value = fields.get(name)
    if isinstance(value, RecordError):
        raise RecordError(value.code, f"field {name!r}: {value}", doc_id=doc_id)
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError as error:
        raise RecordError(
            "lone_surrogate",
            f"field {name!r}: expected whole characters, got half of a surrogate pair at {error.start}; fix the record",
            doc_id=doc_id,
        ) from None
    return value


def meta_of(fields: Fields, *, config: ReaderConfig) -> tuple[str | None, str | None]:
    """Return the other fields as a JSON object, and a list of those that it cannot hold."""
    others = {key: value for key, value in fields.items() if key not in (config.id_field, config.text_field)}
    if not others:
        return None, None
    try:
        return orjson.dumps(others, default=_json_value, option=orjson.OPT_SORT_KEYS).decode(), None
    except orjson.JSONEncodeError:
        pass
    values: dict[str, orjson.Fragment | None] = {}
    for key, value in others.items():
        name = key.encode(errors="backslashreplace").decode()
        try:
            # orjson refuses integers beyond 64 bits.
            content = str(value) if type(value) is int else orjson.dumps(value, default=_json_value)
        except TypeError:
            values[name] = None
        else:
            values[name] = orjson.Fragment(content)
    nulls = sorted(name for name, value in values.items() if value is None)
    meta = orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode()
    return meta, orjson.dumps(nulls).decode() if nulls else None


def _json_value(value: object) -> object:
    if isinstance(value, RecordError):
        raise value
    if isinstance(value, Number):
        return orjson.Fragment(value.digits)
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def type_name(value: object) -> str:
    """Return what a value of a field is, in words."""
    return _TYPE_NAMES.get(type(value).__name__, type(value).__name__)


def _names(fields: Collection[str]) -> str:
    names = [repr(name) for name in list(fields)[:_SHOWN_NAMES]]
    return ", ".join(names) + (", ..." if len(fields) > len(names) else "") if names else "no field"
