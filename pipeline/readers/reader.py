"""What a format implements to be read, and the loop that all files of many records share."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.plan import Piece
from concord.pipeline.readers.fields import ExtractedRecord, Fields, Record, build_document, record_id, record_text
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter
from concord.pipeline.storage.files import file_state, is_url


class Reader(Protocol):
    """Reads the files of one format. Its methods may raise OSError where a file cannot be read.

    Attributes:
        suffixes: how the names of its files end, in lower case, as in ``.jsonl``.
        unit: what positions in its files count, as in ``byte``.
    """

    suffixes: Sequence[str]
    unit: str

    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        """Find the records of a file, in order; a record that cannot be read is one with ``doc_id`` None.

        Args:
            name: the file's path below the input folder; names the records that have no id of their own.
        """

    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        """Read a piece of a file: one document or dead letter for each record that ``scan`` found in it.

        There are fewer when the file has changed since it was scanned.
        """

    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        """Read the text of the record that starts at a position (see Document.source_position).

        Raises:
            RecordError: when no text starts there.
        """


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

    libraries: Sequence[str] = ()
    """The packages that it needs, whose releases decide which text is found."""
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
    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        with closing(self.open(path, config, columns=(config.id_field, config.text_field))) as stream:
            while (record := stream.read()) is not None:
                doc_id, size = None, 1
                with suppress(RecordError):  # it becomes a dead letter when it is read
                    doc_id, text = record_id(record, name=name, config=config), record_text(record, config=config)
                    size = len(text.encode(errors="replace"))
                size = size if record.size is None else record.size
                loses_file = isinstance(record.fields, RecordError) and record.fields.loses_file
                yield ScannedRecord(
                    position=record.start, end=record.end, size=size, doc_id=doc_id, loses_file=loses_file
                )

    @override
    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        duplicates = frozenset(piece.duplicates)
        with self._open_at(piece.uri, piece.start, config) as stream:
            while stream.position < piece.end:
                record = stream.read()
                if record is None or record.end > piece.end:
                    return
                try:
                    yield build_document(record, piece, is_duplicate=record.start in duplicates, config=config)
                except RecordError as error:
                    yield dead_letter(error, piece=piece, position=record.start, unit=self.unit)

    @override
    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        with self._open_at(path, position, config) as stream:
            record = stream.read()
        if record is None:
            raise RecordError("no_such_record", f"expected a record at {self.unit} {position}, got the end of the file")
        return record_text(record, config=config)

    @contextmanager
    def _open_at(self, path: str, position: int, config: ReaderConfig) -> Iterator[RecordStream]:
        """Open a file at a position, going on with the stream of the last piece if possible."""
        key = (self, config, path, *file_version(path))
        stream = _parked.pop(key, None)
        if stream is not None and stream.position > position:
            stream.close()
            stream = None
        if stream is None:
            stream = self.open(path, config)
        try:
            stream.skip_to(position)
            yield stream
        except BaseException:
            stream.close()
            raise
        while _parked:
            _parked.popitem()[1].close()
        _parked[key] = stream


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
    def records(self, path: str, config: ReaderConfig) -> Iterator[Fields | ExtractedRecord | RecordError]:
        """Yield the fields of each record, or a RecordError for one that cannot be read; the same at each call.

        An exception (but an OSError of the disk) ends the file: one dead letter stands for what was not read.

        Args:
            path: of a file, or its URL; ``files.read_whole`` reads both.
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


_parked: dict[tuple[object, ...], RecordStream] = {}
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
