"""What a format implements to be read, and how its files become documents.

There are four kinds: a ``FileReader`` for files of one document, an ``ArchiveReader`` for files of many, whose texts
are extracted, a ``StreamReader`` for tables, and a ``RecordReader`` for files that are read from their beginning.
"""

import errno
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path, PurePath
from typing import NamedTuple, Protocol, cast

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import NO_TEXT, DeadLetter, Document
from concord.pipeline.plan import Piece
from concord.pipeline.readers.extraction import Mark, begin, is_short_of_memory
from concord.pipeline.readers.fields import (
    ExtractedRecord,
    Fields,
    Record,
    build_document,
    duplicate_id,
    lost_with_text,
    record_id,
    record_text,
)
from concord.pipeline.readers.files import Decoded, read_whole
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter, reason_of, too_large
from concord.pipeline.storage.atomic_writes import CODECS
from concord.pipeline.storage.files import file_state, is_url


class Reader(Protocol):
    """Reads the files of one format. Its methods may raise OSError where a file cannot be read.

    Attributes:
        suffixes: how the names of its files end, in lower case, as in ``.jsonl``.
        extracts: whether texts are extracted, by code that a file may break: in a process of its own. Such texts are
            always stored, and their documents compared by the bytes that they are extracted from.
        unit: what positions in its files count, as in ``byte``; empty where a file is one document.
        libraries: the packages that it needs, whose releases decide which text is found.
    """

    suffixes: Sequence[str]
    extracts: bool
    unit: str
    libraries: Sequence[str] = ()

    def opens_to_scan(self, config: ReaderConfig) -> bool:
        """Tell whether files must be opened to find their records."""
        return True

    def scan(self, path: str, *, name: str, config: ReaderConfig, start: int = 0) -> Iterator[ScannedRecord]:
        """Find the records of a file, in order; a record that cannot be read is one with ``doc_id`` None.

        Args:
            name: the file's path below the input folder; names the records that have no id of their own.
            start: where the first record begins that is wanted.
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
        return _checked(lambda: self.extract(content, config), f"{self.suffixes[0]} file", config)

    @override
    def opens_to_scan(self, config: ReaderConfig) -> bool:
        return False

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig, start: int = 0) -> Iterator[ScannedRecord]:
        size = file_state(path).size
        yield ScannedRecord(position=0, end=size, size=int(size * self.text_share), doc_id=name)

    @override
    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        begin(Mark(piece.start, piece.end, piece.name))
        try:
            if piece.duplicates:
                raise duplicate_id(piece.name)
            content = read_whole(piece.uri, expected_size=piece.end, config=config)
            found = self.extract_checked(content, config)
            document = _document(found, piece, piece.name, 0)
            if self.extracts:
                document = replace(document, parts=found.parts or (), source_sha256=sha256(content).hexdigest())
            if self.needs_text and any(lost.error == NO_TEXT for lost in document.lost):
                raise RecordError(NO_TEXT, "; ".join(lost.message for lost in reversed(document.lost)))
            yield document
        except RecordError as error:
            error.doc_id = piece.name
            yield dead_letter(error, piece=piece, position=0, unit="")


class RawRecord(NamedTuple):
    """A record of an archive, before its text is extracted.

    Attributes:
        start, end: half-open, in the reader's unit.
        content: its bytes, or why it cannot be read.
        doc_id: None where it has none; its place then names it.
        attachment: its number in the message that has this id, or starts so many bytes before; else 0.
    """

    start: int
    end: int
    content: bytes | RecordError
    doc_id: str | None = None
    attachment: int = 0

    @property
    def source_sha256(self) -> str | None:
        """See Document."""
        if isinstance(self.content, RecordError):
            return None
        whole = _sha256(self.content)
        return sha256(b"%s#%d" % (whole.encode(), self.attachment)).hexdigest() if self.attachment else whole


@lru_cache(maxsize=1)
def _sha256(content: bytes) -> str:
    # Kept, since a message may attach a thousand files.
    return sha256(content).hexdigest()


class ArchiveReader(Reader):
    """Reads files of many records whose texts are extracted, each from its own bytes."""

    extracts = True
    unit = "byte"

    @abstractmethod
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[RawRecord]:
        """Find the records of a file from the one on that begins at ``start``, the same ones wherever it starts.

        It calls ``begin`` where it passes over much that is no record.
        """

    @abstractmethod
    def extract(self, raw: RawRecord, config: ReaderConfig) -> Decoded:
        """Return the text of a record with content; as ``FileReader.extract``."""

    def finds(self, path: str, config: ReaderConfig) -> bool:
        """Tell whether ``split`` begins anywhere in a file without reading what is before."""
        return PurePath(path).suffix.lower() not in CODECS

    def id_of(self, raw: RawRecord, name: str) -> str:
        """Return the id of a record's document, in the file of a name."""
        named = raw.doc_id or f"{name}:{raw.start - raw.attachment}"
        return f"{named}#{raw.attachment}" if raw.attachment else named

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig, start: int = 0) -> Iterator[ScannedRecord]:
        begin(Mark(start))
        for raw in self.split(path, config, start):
            begin(Mark(raw.start, raw.end))
            fault = raw.content if isinstance(raw.content, RecordError) else None
            yield ScannedRecord(
                position=raw.start,
                end=raw.end,
                size=1 if raw.attachment or isinstance(raw.content, RecordError) else len(raw.content),
                doc_id=None if fault else self.id_of(raw, name),
                loses_file=fault is not None and fault.loses_file,
                source_sha256=raw.source_sha256,
            )
            begin(Mark(raw.end))

    @override
    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        duplicates = frozenset(piece.duplicates)
        begin(Mark(piece.start))
        with self._records(piece, config) as records:
            for raw in records:
                begin(Mark(raw.start, raw.end, self.id_of(raw, piece.name)))
                yield self._outcome(raw, piece, config, is_duplicate=raw.start in duplicates)
                begin(Mark(raw.end))

    def _outcome(
        self, raw: RawRecord, piece: Piece, config: ReaderConfig, *, is_duplicate: bool
    ) -> Document | DeadLetter:
        doc_id: str | None = None
        try:
            if isinstance(raw.content, RecordError):
                raise raw.content.with_traceback(None)
            doc_id = self.id_of(raw, piece.name)
            if is_duplicate:
                raise duplicate_id(doc_id)
            found = _checked(lambda: self.extract(raw, config), "record", config)
        except RecordError as error:
            error.doc_id = doc_id
            return dead_letter(error, piece=piece, position=raw.start, unit=self.unit)
        return replace(
            _document(found, piece, doc_id, raw.start), parts=found.parts or (), source_sha256=raw.source_sha256
        )

    @contextmanager
    def _records(self, piece: Piece, config: ReaderConfig) -> Iterator[Iterator[RawRecord]]:
        """Provide the records of a piece, going on with those of the last piece if possible."""
        key = (self, config, piece.uri, *file_version(piece.uri))
        parked = _parked.pop(key, None)
        is_near = isinstance(parked, _Parked) and (
            parked.position == piece.start or (parked.position < piece.start and not self.finds(piece.uri, config))
        )
        if parked is not None and not is_near:
            parked.close()
        split = (
            parked if isinstance(parked, _Parked) and is_near else _Parked(self.split(piece.uri, config, piece.start))
        )
        try:
            yield split.take(piece)
        except BaseException:
            split.close()
            raise
        _park(key, split)


class _Parked:
    """The records of an archive that have not been read yet."""

    def __init__(self, records: Iterator[RawRecord]) -> None:
        self.position = 0
        self._records = records

    def take(self, piece: Piece) -> Iterator[RawRecord]:
        while self.position < piece.end:
            raw = next(self._records, None)
            if raw is None or raw.end > piece.end:
                return
            self.position = raw.end
            if raw.start >= piece.start:
                yield raw

    def close(self) -> None:
        if isinstance(self._records, Generator):
            self._records.close()


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


class StreamReader(Reader):
    """Reads files of many records, each of which can be reached by its position."""

    extracts = False
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

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig, start: int = 0) -> Iterator[ScannedRecord]:
        columns = None if self.extracts else (config.id_field, config.text_field)
        with closing(self.open(path, config, columns=columns)) as stream:
            stream.skip_to(start)
            while (record := self._next(stream)) is not None:
                doc_id, size = None, 1
                with suppress(RecordError):  # it becomes a dead letter when it is read
                    doc_id, text = record_id(record, name=name, config=config), record_text(record, config=config)
                    size = len(text.encode(errors="replace"))
                size = size if record.size is None else record.size
                loses_file = isinstance(record.fields, RecordError) and record.fields.loses_file
                yield ScannedRecord(
                    position=record.start,
                    end=record.end,
                    size=size,
                    doc_id=doc_id,
                    loses_file=loses_file,
                    source_sha256=_digest(record) if self.extracts else None,
                )

    @override
    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        duplicates = frozenset(piece.duplicates)
        with self._open_at(piece.uri, piece.start, config) as stream:
            while stream.position < piece.end:
                record = self._next(stream)
                if record is None or record.end > piece.end:
                    return
                try:
                    is_duplicate = record.start in duplicates
                    document = build_document(record, piece, is_duplicate=is_duplicate, config=config)
                    if self.extracts:
                        document = replace(document, parts=record.parts or (), source_sha256=_digest(record))
                    yield document
                except RecordError as error:
                    yield dead_letter(error, piece=piece, position=record.start, unit=self.unit)

    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        """Read the text of the record that starts at a position (see Document.source_position).

        Raises:
            RecordError: when no text starts there.
        """
        with self._open_at(path, position, config) as stream:
            record = stream.read()
        if record is None:
            raise RecordError("no_such_record", f"expected a record at {self.unit} {position}, got the end of the file")
        return record_text(record, config=config)

    def _next(self, stream: RecordStream) -> Record | None:
        """Read the next record, and say which it is where code that it may break has read it."""
        if not self.extracts:
            return stream.read()
        begin(Mark(stream.position, stream.position + 1 if isinstance(stream, _NumberedRecords) else None))
        record = stream.read()
        if record is not None:
            begin(Mark(record.start, record.end))
        return record

    @contextmanager
    def _open_at(self, path: str, position: int, config: ReaderConfig) -> Iterator[RecordStream]:
        """Open a file at a position, going on with the stream of the last piece if possible."""
        key = (self, config, path, *file_version(path))
        parked = _parked.pop(key, None)
        if parked is not None and parked.position > position:
            parked.close()
            parked = None
        stream = self.open(path, config) if parked is None else cast(RecordStream, parked)
        try:
            stream.skip_to(position)
            yield stream
        except BaseException:
            stream.close()
            raise
        _park(key, stream)


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

    extracts = True

    @abstractmethod
    def records(self, path: str, config: ReaderConfig) -> Iterator[Fields | ExtractedRecord | RecordError]:
        """Yield the fields of each record, or a RecordError for one that cannot be read; the same at each call.

        An exception (but an OSError of the disk) ends the file: one dead letter stands for what was not read.

        Args:
            path: of a file, or its URL; ``streams.read_whole`` reads both.
        """

    @override
    def open(self, path: str, config: ReaderConfig, *, columns: Sequence[str] | None = None) -> RecordStream:
        return _NumberedRecords(self.records(path, config), config)


class _NumberedRecords:
    def __init__(self, records: Iterator[Fields | ExtractedRecord | RecordError], config: ReaderConfig) -> None:
        self.position = 0
        self._records = records
        self._config = config

    def read(self) -> Record | None:
        for fields in self._records:
            self.position += 1
            place = self.position - 1, self.position
            if isinstance(fields, ExtractedRecord):
                return Record(*place, fields.fields(self._config), parts=fields.parts)
            return Record(*place, fields)
        return None

    def skip_to(self, position: int) -> None:
        while self.position < position and self.read() is not None:
            pass

    def close(self) -> None:
        self._records = iter(())


def _document(found: Decoded, piece: Piece, doc_id: str, position: int) -> Document:
    return Document(
        doc_id=doc_id,
        text=found.text,
        source_uri=piece.uri,
        source_position=position,
        meta=found.meta,
        encoding=found.encoding,
        encoding_confidence=found.confidence,
        replaced=found.replaced,
        parts=found.parts,
        lost=lost_with_text(found.text, found.lost),
    )


def _digest(record: Record) -> str:
    """Return the SHA-256 of what another package found in a record."""
    fields = record.fields if isinstance(record.fields, RecordError) else sorted(record.fields.items(), key=str)
    return sha256(repr((fields, record.parts)).encode(errors="backslashreplace")).hexdigest()


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


def _checked(extract: Callable[[], Decoded], kind: str, config: ReaderConfig) -> Decoded:
    """Return a text that can be stored; RecordError for everything else."""
    with as_record_errors(kind):
        found = extract()
        found.text.encode()
    if len(found.text) > config.max_record_bytes:
        raise too_large(config.max_record_bytes)
    return found


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


class _Closable(Protocol):
    position: int

    def close(self) -> None: ...


def _park(key: tuple[object, ...], stream: _Closable) -> None:
    while _parked:
        _parked.popitem()[1].close()
    _parked[key] = stream


_parked: dict[tuple[object, ...], _Closable] = {}
"""The stream of the last piece that was read to its end, which the next piece usually continues.

If a compressed file (or a large Parquet row group) were opened again for each piece, reading it would take time that
grows with the square of its size.
"""


def file_version(path: str) -> tuple[object, ...]:
    """Return what distinguishes a file from an earlier one of the same name."""
    if is_url(path):
        return file_state(path)
    status = Path(path).stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
