"""What a format implements to be read, and how its files become documents.

There are four kinds: a ``FileReader`` for files of one document, an ``ArchiveReader`` for files of many, whose texts
are extracted, a ``StreamReader`` for tables, and a ``RecordReader`` for files that are read from their beginning.
"""

import errno
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import NO_TEXT, DeadLetter, Document, Lost
from concord.pipeline.plan import Piece
from concord.pipeline.readers.extraction import EXTRACTION, is_short_of_memory, outcome
from concord.pipeline.readers.files import Decoded, Encoding, read_whole
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter, reason_of, too_large
from concord.pipeline.storage.atomic_writes import CODECS
from concord.pipeline.storage.files import FileState, file_state

DUPLICATE_ID = "duplicate_id"
MISSING_TEXT = "missing_text"
TEXT_NOT_STRING = "text_not_string"

_SHOWN = 100
_BATCH_RECORDS = 64
_BATCH_BYTES = 1 << 18

Fields = Mapping[str, Any]
Content = TypeVar("Content")


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
        text_share: about how much of a file is text, for cutting shards.
    """

    extracts = True
    unit = ""
    text_share = 1.0

    @abstractmethod
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        """Return the text in the decompressed content of a file.

        Whatever it raises becomes a dead letter; RecordError says best what is wrong with the file.
        """

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
            extract, digest = partial(extract_checked, self.extract, content, config, f"{self.suffixes[0]} file"), None
            if self.extracts:
                # A large file, as of thousands of pages, may take longer: a second for each MB.
                seconds = config.extraction_seconds + len(content) // 1_000_000
                limits = config.model_copy(update={"extraction_seconds": seconds})
                extract, digest = partial(EXTRACTION.one, extract, config=limits), sha256(content).hexdigest()
            document = _document(extract(), piece, piece.name, 0, digest)
            if self.extracts and any(lost.error == NO_TEXT for lost in document.lost):
                raise RecordError(NO_TEXT, "; ".join(lost.message for lost in reversed(document.lost)))
            yield document
        except RecordError as error:
            yield dead_letter(error, piece, 0, "", doc_id=piece.name)


class Record(NamedTuple):
    """A record of a file of many, before it becomes a document.

    Attributes:
        start, end: half-open, in the reader's unit.
        content: of a table, its fields, a RecordError in place of a value that cannot be read; of an archive, its
            bytes, or what its reader has made of them. A RecordError says why there is none.
        encoding: of its bytes, where its format leaves that open.
        replaced: see Document.
        doc_id: None where its fields hold it, or it has none and its place names it.
        attachment: its number in the message that has this id, or starts so many bytes before; else 0.
        digest: the SHA-256 in hex of what its text is extracted from; None stands for that of its content.
    """

    start: int
    end: int
    content: Any
    encoding: Encoding | None = None
    replaced: int = 0
    doc_id: str | None = None
    attachment: int = 0
    digest: str | None = None

    def checked_content(self) -> Any:
        """Return the content; raise the RecordError where there is none."""
        if isinstance(self.content, RecordError):
            # One error may stand for many records; its traceback would grow with each.
            raise self.content.with_traceback(None)
        return self.content

    @property
    def source_sha256(self) -> str | None:
        """See Document; of a record whose text is extracted."""
        if isinstance(self.content, RecordError):
            return None
        return self.digest or sha256(self.content).hexdigest()


class RecordStream(Protocol):
    """An open file whose records are read forward.

    Attributes:
        position: the end of the last record, or a place before the next one.
    """

    position: int

    def read(self) -> Record | None:
        """Read the next record; None at the end of the file."""

    def skip_to(self, position: int) -> None:
        """Skip forward to the start of a record."""

    def close(self) -> None:
        """Close the file."""


class CollectionReader(Reader):
    """Reads files of many records, each of which can be reached by its position."""

    unit = "record"

    @abstractmethod
    def open(self, path: str, config: ReaderConfig, *, columns: Sequence[str] | None = None) -> RecordStream:
        """Open a file at its first record.

        Args:
            path: of a file, or its URL.
            columns: the fields that are needed, for formats that save time by it; None needs all.

        Raises:
            RecordError: when it has no records that can be read.
        """

    @abstractmethod
    def id_of(self, record: Record, name: str, config: ReaderConfig) -> str:
        """Return the id of the document that a record in the file of a name becomes; raise RecordError if none."""

    @abstractmethod
    def size_of(self, record: Record, config: ReaderConfig) -> int:
        """Return about how many bytes of input a record has, for cutting shards; may raise RecordError."""

    @abstractmethod
    def extract(self, record: Record, config: ReaderConfig) -> Decoded:
        """Return the text of a record with content; as ``FileReader.extract``."""

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        with closing(self.open(path, config, columns=(config.id_field, config.text_field))) as stream:
            for record in iter(stream.read, None):
                doc_id, size = None, 1
                with suppress(RecordError):  # it becomes a dead letter when it is read
                    size, doc_id = self.size_of(record, config), self.id_of(record, name, config)
                yield ScannedRecord(
                    position=record.start,
                    end=record.end,
                    size=size,
                    doc_id=doc_id,
                    loses_file=isinstance(record.content, RecordError) and record.content.loses_file,
                    source_sha256=record.source_sha256 if self.extracts else None,
                )

    @override
    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        duplicates = frozenset(piece.duplicates)
        with self._open_at(piece.uri, piece.start, config) as stream:
            for record, found in self._extracted(_batches(stream, piece.end), config):
                doc_id: str | None = None
                try:
                    doc_id = self.id_of(record, piece.name, config)
                    if record.start in duplicates:
                        raise _duplicate_id(doc_id)
                    if isinstance(found, RecordError):
                        raise found
                    digest = record.source_sha256 if self.extracts else None
                    yield _document(found, piece, doc_id, record.start, digest)
                except RecordError as error:
                    yield dead_letter(error, piece, record.start, self.unit, doc_id=doc_id)

    def _extracted(
        self, batches: Iterator[list[Record]], config: ReaderConfig
    ) -> Iterator[tuple[Record, Decoded | RecordError]]:
        """Yield records with their texts, or why there is none."""
        extract = partial(extract_checked, self.extract, config=config, kind="record")
        for batch in batches:
            found = (
                EXTRACTION.each(extract, [(record,) for record in batch], config=config)
                if self.extracts
                else [outcome(extract, record) for record in batch]
            )
            yield from zip(batch, found, strict=True)

    @contextmanager
    def _open_at(self, path: str, position: int, config: ReaderConfig) -> Iterator[RecordStream]:
        """Open a file at a position, going on with the stream of the last piece if possible."""
        key = self, config, path, file_state(path)
        stream = _parked.pop(key, None)
        if stream is not None and stream.position > position:
            stream.close()
            stream = None
        stream = stream or self.open(path, config)
        try:
            stream.skip_to(position)
            with suppress(GeneratorExit):  # of a reader of one record; the next one may follow
                yield stream
        except BaseException:
            stream.close()
            raise
        while _parked:
            _parked.popitem()[1].close()
        _parked[key] = stream


_parked: dict[tuple[Reader, ReaderConfig, str, FileState], RecordStream] = {}
"""The stream of the last piece that was read, which the next piece usually continues.

If a compressed file (or a large Parquet row group) were opened again for each piece, reading it would take time that
grows with the square of its size.
"""


def _batches(stream: RecordStream, end: int) -> Iterator[list[Record]]:
    """Yield the next records of a stream up to a position, small ones of bytes together."""
    batch, size = list[Record](), 0
    while stream.position < end and (record := stream.read()) is not None and record.end <= end:
        batch.append(record)
        size += len(record.content) if isinstance(record.content, bytes) else _BATCH_BYTES
        if size >= _BATCH_BYTES or len(batch) == _BATCH_RECORDS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class ArchiveReader(CollectionReader):
    """Reads files of many records whose texts are extracted, each from its own bytes."""

    extracts = True
    unit = "byte"

    @abstractmethod
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[Record]:
        """Find the records of a file from the one on that begins at ``start``, the same ones wherever it starts.

        It runs in the process that asks, and so must not call code that a file may break, except by ``EXTRACTION``.
        """

    def finds(self, path: str, config: ReaderConfig) -> bool:
        """Tell whether ``split`` begins anywhere in a file without reading what is before."""
        return PurePath(path).suffix.lower() not in CODECS

    @override
    def open(self, path: str, config: ReaderConfig, *, columns: Sequence[str] | None = None) -> RecordStream:
        return _ForwardStream(partial(self.split, path, config), finds=self.finds(path, config))

    @override
    def id_of(self, record: Record, name: str, config: ReaderConfig) -> str:
        record.checked_content()
        named = record.doc_id or f"{name}:{record.start - record.attachment}"
        return f"{named}#{record.attachment}" if record.attachment else named

    @override
    def size_of(self, record: Record, config: ReaderConfig) -> int:
        return len(record.content) if isinstance(record.content, bytes) else 1


class StreamReader(CollectionReader):
    """Reads tables: files of records with fields, one of which is the text."""

    extracts = False

    @override
    def id_of(self, record: Record, name: str, config: ReaderConfig) -> str:
        value = _value(record.checked_content(), config.id_field)
        if value is None:
            return f"{name}:{record.start}"
        if isinstance(value, str):
            return value
        if _json(value).removeprefix("-").isdigit():
            return _json(value)
        raise RecordError(
            "id_not_string",
            f"field {config.id_field!r}: expected a string or an integer, got {shown_value(value)}; "
            "set reader.id_field or fix the record",
        )

    @override
    def size_of(self, record: Record, config: ReaderConfig) -> int:
        size = len(_text(record, config).encode(errors="replace"))
        return record.end - record.start if self.unit == "byte" else size

    @override
    def extract(self, record: Record, config: ReaderConfig) -> Decoded:
        encoding, confidence = record.encoding or (None, None)
        meta, nulls = meta_of(record.checked_content(), config=config)
        found = Decoded(_text(record, config), encoding, confidence, meta=meta, replaced=record.replaced)
        return found._replace(meta_nulls=nulls)


@dataclass(eq=False)
class FunctionReader(StreamReader):
    """Reads files by the stream that a function opens, given what ``open`` is given."""

    suffixes: Sequence[str]
    open_stream: Callable[[str, ReaderConfig, Sequence[str] | None], RecordStream]
    unit: str = "byte"

    @override
    def open(self, path: str, config: ReaderConfig, *, columns: Sequence[str] | None = None) -> RecordStream:
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
    def open(self, path: str, config: ReaderConfig, *, columns: Sequence[str] | None = None) -> RecordStream:
        def numbered(start: int) -> Iterator[Record]:
            for number, fields in enumerate(self.records(path, config)):
                yield Record(number, number + 1, fields)

        return _ForwardStream(numbered, finds=False)


class _ForwardStream:
    """Records that are read forward.

    Args:
        split: returns the records from the one on that begins at a position.
        finds: whether it passes over those before it.
    """

    def __init__(self, split: Callable[[int], Iterator[Record]], *, finds: bool) -> None:
        self.position = 0
        self._split = split
        self._finds = finds
        self._records = split(0)
        self._start = 0

    def read(self) -> Record | None:
        for record in self._records:
            self.position = record.end
            if record.start >= self._start:
                return record
        return None

    def skip_to(self, position: int) -> None:
        if self._finds and position != self.position:
            self.close()
            self._records = self._split(position)
        self._start = position

    def close(self) -> None:
        if isinstance(self._records, Generator):
            self._records.close()


def _document(found: Decoded, piece: Piece, doc_id: str, position: int, digest: str | None) -> Document:
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
        meta_nulls=found.meta_nulls,
        encoding=found.encoding,
        encoding_confidence=found.confidence,
        replaced=found.replaced,
        parts=None if digest is None else found.parts or (),
        lost=lost,
        source_sha256=digest,
    )


def extract_checked(
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
    except Exception as error:  # noqa: BLE001 - whatever a library raises
        if is_short_of_memory() or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            raise MemoryError from None
        raise RecordError(
            "unreadable",
            f"expected a {kind}, got one that cannot be read ({reason_of(error)}); open it with the program "
            "that it was made with and save it again, or remove it",
        ) from None


def _text(record: Record, config: ReaderConfig) -> str:
    """Return the text of a record of a table; RecordError if it is missing or not a string."""
    fields = record.checked_content()
    value = _value(fields, config.text_field)
    if isinstance(value, str):
        return value
    if config.text_field not in fields:
        got = f"expected a field {config.text_field!r}, got only {shown_value(list(fields))}"
        raise RecordError(MISSING_TEXT, f"{got}; set reader.text_field or fix the record")
    got = f"field {config.text_field!r}: expected a string, got {shown_value(value)}"
    raise RecordError(NO_TEXT if value is None else TEXT_NOT_STRING, f"{got}; set reader.text_field or fix the record")


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
    with suppress(orjson.JSONEncodeError):
        return orjson.dumps(others, default=_json_value, option=orjson.OPT_SORT_KEYS).decode(), None
    values = dict[str, orjson.Fragment | None]()
    for key, value in others.items():
        name = key.encode(errors="backslashreplace").decode()
        values[name] = None
        with suppress(orjson.JSONEncodeError):
            values[name] = orjson.Fragment(orjson.dumps(value, default=_json_value))
    nulls = sorted(name for name, value in values.items() if value is None)
    meta = orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode()
    return meta, orjson.dumps(nulls).decode() if nulls else None


def shown_value(value: object) -> str:
    """Return the beginning of a value as JSON has it, for a message."""
    return _json(value)[:_SHOWN]


def _json(value: object) -> str:
    with suppress(TypeError):
        return orjson.dumps(value, default=_json_value).decode()
    return str(value)


def _json_value(value: object) -> object:
    if isinstance(value, RecordError):
        raise value
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def stored_meta(fields: Mapping[str, Any]) -> str | None:
    """Return what else a file says, as JSON for Document.meta: what is not empty, without what some programs add."""
    said = {
        name: value.replace("\0", "").encode(errors="replace").decode() if isinstance(value, str) else value
        for name, value in fields.items()
        if value
    }
    return orjson.dumps(said, option=orjson.OPT_SORT_KEYS).decode() if said else None
