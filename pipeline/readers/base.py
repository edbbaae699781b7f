"""What a format implements to be read, and how its files become documents.

There are four kinds: a ``FileReader`` for files of one document, an ``ArchiveReader`` for files of many, whose texts
are extracted, a ``StreamReader`` for tables, and a ``RecordReader`` for files that are read from their beginning.
"""

import errno
from abc import abstractmethod
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import NO_TEXT, DeadLetter, Document, Lost
from concord.pipeline.plan import Piece
from concord.pipeline.readers.extraction import is_short_of_memory, isolated
from concord.pipeline.readers.files import Decoded, Encoding, read_whole
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter, reason_of, too_large
from concord.pipeline.storage.atomic_writes import CODECS
from concord.pipeline.storage.files import file_state, is_url

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

Fields = Mapping[str, Any]


class Reader(Protocol):
    """Reads the files of one format. Its methods may raise OSError where a file cannot be read.

    Attributes:
        suffixes: how the names of its files end, in lower case, as in ``.jsonl``.
        extracts: whether texts are extracted, by code that a file may break: in a process of its own. Such texts are
            always stored, and their documents compared by the bytes that they are extracted from.
        unit: what positions in its files count, as in ``byte``; empty where a file is one document.
        libraries: the packages that it needs, whose releases decide which text is found.
        used_if_there: packages that it can do without, but whose releases decide as well.
    """

    suffixes: Sequence[str]
    extracts: bool
    unit: str
    libraries: Sequence[str] = ()
    used_if_there: Sequence[str] = ()

    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        """Find the records of a file, in order; a record that cannot be read is one with ``doc_id`` None.

        Args:
            name: the file's path below the input folder; names the records that have no id of their own.
        """

    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        """Read a piece of a file: one document or dead letter for each record that ``scan`` found in it.

        There are fewer when the file has changed since it was scanned.
        """


class FileReader(Reader):
    """Reads files of one document each, whose id is their path below the input folder.

    Attributes:
        needs_text: whether a file without a word becomes a dead letter.
        text_share: about how much of a file is text, for cutting shards.
    """

    extracts = True
    unit = ""
    needs_text = True
    text_share = 1.0

    @abstractmethod
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        """Return the text in the decompressed content of a file.

        Whatever it raises becomes a dead letter; RecordError says best what is wrong with the file.
        """

    def extract_checked(self, content: bytes, config: ReaderConfig) -> Decoded:
        """Return the text in the content of a file if it can be stored; RecordError for everything else."""
        return _checked(self.extract, content, config, f"{self.suffixes[0]} file")

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        size = file_state(path).size
        yield ScannedRecord(position=0, end=size, size=int(size * self.text_share), doc_id=name)

    @override
    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        try:
            if piece.duplicates:
                raise _duplicate_id(piece.name)
            content = read_whole(piece.uri, expected_size=piece.end, config=config)
            if self.extracts:
                found = isolated(self.extract_checked, content, config, config=config)
                document = _document(found, piece, piece.name, 0, sha256(content).hexdigest())
            else:
                document = _document(self.extract_checked(content, config), piece, piece.name, 0)
            if self.needs_text and any(lost.error == NO_TEXT for lost in document.lost):
                raise RecordError(NO_TEXT, "; ".join(lost.message for lost in reversed(document.lost)))
            yield document
        except RecordError as error:
            error.doc_id = piece.name
            yield dead_letter(error, piece, 0, "")


class Record(NamedTuple):
    """One record of a table.

    Attributes:
        start, end: half-open, in the reader's unit.
        fields: by name, or why it cannot be read; a RecordError stands for a value that cannot be.
        size: bytes of input, for cutting shards; None stands for the bytes of its text.
        encoding: of its bytes, where its format leaves that open.
        replaced: see Document.
    """

    start: int
    end: int
    fields: Fields | RecordError
    size: int | None = None
    encoding: Encoding | None = None
    replaced: int = 0

    def readable_fields(self) -> Fields:
        """Return the fields; raise the RecordError where there are none."""
        if isinstance(self.fields, RecordError):
            # One error may stand for many records; its traceback would grow with each.
            raise self.fields.with_traceback(None)
        return self.fields


class RawRecord(NamedTuple):
    """A record of an archive, before its text is extracted.

    Attributes:
        start, end: half-open, in the reader's unit.
        content: its bytes, or what its reader has made of them, or why it cannot be read.
        doc_id: None where it has none; its place then names it.
        attachment: its number in the message that has this id, or starts so many bytes before; else 0.
        digest: the SHA-256 in hex of what its text comes from; None stands for that of its content.
    """

    start: int
    end: int
    content: Any
    doc_id: str | None = None
    attachment: int = 0
    digest: str | None = None

    @property
    def source_sha256(self) -> str | None:
        """See Document."""
        if isinstance(self.content, RecordError):
            return None
        return self.digest or sha256(self.content).hexdigest()


AnyRecord = TypeVar("AnyRecord", Record, RawRecord)
AnyRecord_co = TypeVar("AnyRecord_co", Record, RawRecord, covariant=True)


class RecordStream(Protocol[AnyRecord_co]):
    """An open file whose records are read forward.

    Attributes:
        position: the end of the last record, or a place before the next one.
    """

    position: int

    def read(self) -> AnyRecord_co | None:
        """Read the next record; None at the end of the file."""

    def skip_to(self, position: int) -> None:
        """Skip forward to the start of a record."""

    def close(self) -> None:
        """Close the file."""


class CollectionReader(Reader, Generic[AnyRecord]):
    """Reads files of many records, each of which can be reached by its position."""

    unit = "record"

    @abstractmethod
    def open(self, path: str, config: ReaderConfig, *, columns: Sequence[str] | None = None) -> RecordStream[AnyRecord]:
        """Open a file at its first record.

        Args:
            path: of a file, or its URL.
            columns: the fields that are needed, for formats that save time by it; None needs all.

        Raises:
            RecordError: when it has no records that can be read.
        """

    @abstractmethod
    def scanned(self, record: AnyRecord, name: str, config: ReaderConfig) -> ScannedRecord:
        """Return what a plan has to know of a record in the file of a name."""

    @abstractmethod
    def id_of(self, record: AnyRecord, name: str, config: ReaderConfig) -> str:
        """Return the id of the document that a record in the file of a name becomes; raise RecordError if none."""

    @abstractmethod
    def document(self, record: AnyRecord, doc_id: str, piece: Piece, config: ReaderConfig) -> Document:
        """Return the document that a record becomes; raise RecordError where it cannot."""

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        with closing(self.open(path, config, columns=(config.id_field, config.text_field))) as stream:
            stream.skip_to(0)
            while (record := stream.read()) is not None:
                yield self.scanned(record, name, config)

    @override
    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        duplicates = frozenset(piece.duplicates)
        with self.open_at(piece.uri, piece.start, config) as stream:
            while stream.position < piece.end:
                record = stream.read()
                if record is None or record.end > piece.end:
                    return
                doc_id: str | None = None
                try:
                    doc_id = self.id_of(record, piece.name, config)
                    if record.start in duplicates:
                        raise _duplicate_id(doc_id)
                    yield self.document(record, doc_id, piece, config)
                except RecordError as error:
                    error.doc_id = doc_id
                    yield dead_letter(error, piece, record.start, self.unit)

    @contextmanager
    def open_at(self, path: str, position: int, config: ReaderConfig) -> Iterator[RecordStream[AnyRecord]]:
        """Open a file at a position, going on with the stream of the last piece if possible."""
        key = (self, config, path, *file_version(path))
        parked = _parked.pop(key, None)
        if parked is not None and parked.position > position:
            parked.close()
            parked = None
        stream = self.open(path, config) if parked is None else cast(RecordStream[AnyRecord], parked)
        try:
            stream.skip_to(position)
            yield stream
        except BaseException:
            stream.close()
            raise
        while _parked:
            _parked.popitem()[1].close()
        _parked[key] = stream


_parked: dict[tuple[object, ...], RecordStream[Any]] = {}
"""The stream of the last piece that was read to its end, which the next piece usually continues.

If a compressed file (or a large Parquet row group) were opened again for each piece, reading it would take time that
grows with the square of its size.
"""


class ArchiveReader(CollectionReader[RawRecord]):
    """Reads files of many records whose texts are extracted, each from its own bytes."""

    extracts = True
    unit = "byte"

    @abstractmethod
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[RawRecord]:
        """Find the records of a file from the one on that begins at ``start``, the same ones wherever it starts.

        It runs in the process that asks, and so must not call code that a file may break, except by ``isolated``.
        """

    @abstractmethod
    def extract(self, raw: RawRecord, config: ReaderConfig) -> Decoded:
        """Return the text of a record with content; as ``FileReader.extract``."""

    def finds(self, path: str, config: ReaderConfig) -> bool:
        """Tell whether ``split`` begins anywhere in a file without reading what is before."""
        return PurePath(path).suffix.lower() not in CODECS

    @override
    def id_of(self, record: RawRecord, name: str, config: ReaderConfig) -> str:
        if isinstance(record.content, RecordError):
            raise record.content.with_traceback(None)
        named = record.doc_id or f"{name}:{record.start - record.attachment}"
        return f"{named}#{record.attachment}" if record.attachment else named

    @override
    def open(self, path: str, config: ReaderConfig, *, columns: Sequence[str] | None = None) -> RecordStream[RawRecord]:
        return _ForwardStream(partial(self.split, path, config), finds=self.finds(path, config))

    @override
    def scanned(self, record: RawRecord, name: str, config: ReaderConfig) -> ScannedRecord:
        fault = record.content if isinstance(record.content, RecordError) else None
        return ScannedRecord(
            position=record.start,
            end=record.end,
            size=1 if record.attachment or fault else len(record.content),
            doc_id=None if fault else self.id_of(record, name, config),
            loses_file=fault is not None and fault.loses_file,
            source_sha256=record.source_sha256,
        )

    @override
    def document(self, record: RawRecord, doc_id: str, piece: Piece, config: ReaderConfig) -> Document:
        found = isolated(_checked, self.extract, record, config, "record", config=config)
        return _document(found, piece, doc_id, record.start, record.source_sha256)


class StreamReader(CollectionReader[Record]):
    """Reads tables: files of records with fields, one of which is the text."""

    extracts = False

    @override
    def scanned(self, record: Record, name: str, config: ReaderConfig) -> ScannedRecord:
        doc_id, size = None, 1
        with suppress(RecordError):  # it becomes a dead letter when it is read
            text = record_text(record, config)
            doc_id, size = self.id_of(record, name, config), len(text.encode(errors="replace"))
        return ScannedRecord(
            position=record.start,
            end=record.end,
            size=size if record.size is None else record.size,
            doc_id=doc_id,
            loses_file=isinstance(record.fields, RecordError) and record.fields.loses_file,
        )

    @override
    def id_of(self, record: Record, name: str, config: ReaderConfig) -> str:
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

    @override
    def document(self, record: Record, doc_id: str, piece: Piece, config: ReaderConfig) -> Document:
        text = record_text(record, config)
        meta, nulls = meta_of(record.readable_fields(), config=config)
        encoding, confidence = record.encoding or (None, None)
        found = Decoded(text, encoding, confidence, meta=meta, replaced=record.replaced)
        return replace(_document(found, piece, doc_id, record.start), meta_nulls=nulls)

    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        """Read the text of the record that starts at a position (see Document.source_position).

        Raises:
            RecordError: when no text starts there.
        """
        with self.open_at(path, position, config) as stream:
            record = stream.read()
        if record is None:
            raise RecordError("no_such_record", f"expected a record at {self.unit} {position}, got the end of the file")
        return record_text(record, config)


@dataclass(eq=False)
class FunctionReader(StreamReader):
    """Reads files by the stream that a function opens, given what ``open`` is given."""

    suffixes: Sequence[str]
    open_stream: Callable[[str, ReaderConfig, Sequence[str] | None], RecordStream[Record]]
    unit: str = "byte"

    @override
    def open(self, path: str, config: ReaderConfig, *, columns: Sequence[str] | None = None) -> RecordStream[Record]:
        return self.open_stream(path, config, columns)


class RecordReader(StreamReader):
    """Reads files as sequences of records, from the first one on; positions are 0-based numbers of records.

    A subclass says how the file names end and yields the records. To read a piece, all records before it are read as
    well; a format in which a record can be found by its position deserves a ``StreamReader``.
    """

    @abstractmethod
    def records(self, path: str, config: ReaderConfig) -> Iterator[Fields | RecordError]:
        """Yield the fields of each record, or a RecordError for one that cannot be read; the same at each call.

        An exception (but an OSError of the disk) ends the file: one dead letter stands for what was not read.

        Args:
            path: of a file, or its URL; ``files.read_whole`` reads both.
        """

    @override
    def open(self, path: str, config: ReaderConfig, *, columns: Sequence[str] | None = None) -> RecordStream[Record]:
        return _ForwardStream(partial(self._numbered, path, config), finds=False)

    def _numbered(self, path: str, config: ReaderConfig, start: int) -> Iterator[Record]:
        for number, fields in enumerate(self.records(path, config)):
            yield Record(number, number + 1, fields)


class _ForwardStream(Generic[AnyRecord]):
    """Records that are read forward.

    Args:
        split: returns the records from the one on that begins at a position.
        finds: whether it passes over those before it.
    """

    def __init__(self, split: Callable[[int], Iterator[AnyRecord]], *, finds: bool) -> None:
        self.position = 0
        self._split: Callable[[int], Iterator[AnyRecord]] = split
        self._finds = finds
        self._records: Iterator[AnyRecord] | None = None
        self._start = 0

    def read(self) -> AnyRecord | None:
        for record in self._records or ():
            self.position = record.end
            if record.start >= self._start:
                return record
        return None

    def skip_to(self, position: int) -> None:
        if self._records is None or (self._finds and position != self.position):
            self.close()
            self._records = self._split(position)
        self._start = position

    def close(self) -> None:
        if isinstance(self._records, Generator):
            self._records.close()


def _document(found: Decoded, piece: Piece, doc_id: str, position: int, digest: str | None = None) -> Document:
    """Return a document; ``digest`` is that of the bytes that its text was extracted from, if it was."""
    lost = found.lost
    if not found.text or found.text.isspace():
        lost = (*lost, Lost(0, NO_TEXT, "expected a text, got no word"))
    return Document(
        doc_id=doc_id,
        text=found.text,
        source_uri=piece.uri,
        source_position=position,
        meta=found.meta,
        encoding=found.encoding,
        encoding_confidence=found.confidence,
        replaced=found.replaced,
        parts=None if digest is None else found.parts or (),
        lost=lost,
        source_sha256=digest,
    )


Content = TypeVar("Content", bytes, RawRecord)


def _checked(
    extract: Callable[[Content, ReaderConfig], Decoded], content: Content, config: ReaderConfig, kind: str
) -> Decoded:
    """Return a text that can be stored; RecordError for everything else."""
    with as_record_errors(kind):
        found = extract(content, config)
        found.text.encode()
    if len(found.text) > config.max_record_bytes:
        raise too_large(config.max_record_bytes)
    return found


@contextmanager
def as_record_errors(kind: str) -> Iterator[None]:
    """Raise a RecordError in place of whatever a library raises for a damaged file of a kind, but MemoryError."""
    try:
        yield
    except (RecordError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a library raises
        if is_short_of_memory() or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            raise MemoryError from None
        raise RecordError(
            "unreadable",
            f"expected a {kind}, got one that cannot be read ({reason_of(error)}); open it with the program "
            "that it was made with and save it again, or remove it",
        ) from None


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


def record_text(record: Record, config: ReaderConfig) -> str:
    """Return a record's text; RecordError if it is missing, too long or not a string."""
    fields = record.readable_fields()
    value = _value(fields, config.text_field)
    if isinstance(value, str):
        if len(value) > config.max_record_bytes:
            raise too_large(config.max_record_bytes)
        return value
    if value is None:
        got = _NULL if config.text_field in fields else f"got only {_names(fields)};"
        raise RecordError(
            MISSING_TEXT,
            f"expected a field {config.text_field!r}, {got} set reader.text_field or fix the record",
        )
    raise RecordError(
        TEXT_NOT_STRING,
        f"field {config.text_field!r}: expected a string, got {type_name(value)}; set reader.text_field",
    )


def names_wrong_field(dead_letter: DeadLetter) -> bool:
    """Tell whether a dead letter suggests that reader.text_field is wrong: no such field, or one that is no string."""
    if dead_letter.error == MISSING_TEXT:
        return _NULL not in dead_letter.message
    return dead_letter.error == TEXT_NOT_STRING


def _duplicate_id(doc_id: str) -> RecordError:
    """Return the error of a record whose id an earlier record of the collection has."""
    return RecordError(
        DUPLICATE_ID,
        f"expected an id that no earlier record has, got {doc_id!r}; the first record was kept; rename this one",
    )


def _value(fields: Fields, name: str) -> Any:
    value = fields.get(name)
    if isinstance(value, RecordError):
        raise RecordError(value.code, f"field {name!r}: {value}")
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError as error:
        raise RecordError(
            "lone_surrogate",
            f"field {name!r}: expected whole characters, got half of a surrogate pair at {error.start}; fix the record",
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


def stored_meta(fields: Mapping[str, Any]) -> str | None:
    """Return what else a file says, as JSON for Document.meta: what is not empty, without what some programs add."""
    said = {
        name: value.replace("\0", "").encode(errors="replace").decode() if isinstance(value, str) else value
        for name, value in fields.items()
        if value
    }
    return orjson.dumps(said, option=orjson.OPT_SORT_KEYS).decode() if said else None


class Formats(NamedTuple):
    """What is known of all formats, for files within files.

    Attributes:
        of: returns the format that a file's name states, None if there is none.
        reader: returns the reader of a format; raises InputError where its library is missing.
    """

    of: Callable[[str], str | None]
    reader: Callable[[str], Reader]


FORMATS: list[Formats] = []
"""One item, which ``read_file`` adds, since the formats of mail are among those that mail attaches."""


def file_version(path: str) -> tuple[object, ...]:
    """Return what distinguishes a file from an earlier one of the same name."""
    if is_url(path):
        return file_state(path)
    status = Path(path).stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
