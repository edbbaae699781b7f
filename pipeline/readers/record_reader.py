"""The base of a reader for files that are read from the first record to the last, as readers of other packages are."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece
from concord.pipeline.readers.fields import build_document, document_id, record_text
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter

Record = Mapping[str, Any] | RecordError


class RecordReader(ABC):
    """Reads files as sequences of records with named fields; positions are 0-based numbers of records.

    A subclass says how the file names end and yields the records. To read a shard all records before it are read as
    well; a format in which a record can be found by its position deserves a ``Reader`` of its own.
    """

    suffixes: Sequence[str]
    """How the names of its files end, in lower case, as in ``.csv``."""

    @abstractmethod
    def records(self, path: str, config: ReaderConfig) -> Iterator[Record]:
        """Yield the fields of each record, or a RecordError for one that cannot be read; the same at each call.

        An exception (but an OSError of the disk) ends the file: one dead letter stands for what was not read.

        Args:
            path: of a file, or its URL; ``streams.read_whole`` reads both.
        """

    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        """Find the records of a file."""
        for number, record in enumerate(self.records(path, config)):
            doc_id, size = None, 1
            try:
                fields = _fields(record)
                size = sum(len(value.encode(errors="replace")) for value in fields.values() if isinstance(value, str))
                doc_id = document_id(fields, name=name, position=number, config=config)
            except RecordError:
                pass  # it becomes a dead letter when it is read
            yield ScannedRecord(position=number, end=number + 1, size=size, doc_id=doc_id)

    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        """Read the records of a piece."""
        number = piece.start
        for record in islice(self.records(piece.uri, config), piece.start, piece.end):
            try:
                fields, is_duplicate = _fields(record), number in piece.duplicates
                yield build_document(fields, piece=piece, position=number, is_duplicate=is_duplicate, config=config)
            except RecordError as error:
                yield dead_letter(error, piece=piece, position=number, unit="record")
            number += 1
        if number < piece.end:
            raise InputError(
                f"{piece.uri}: expected {piece.end} records, got {number}; the file has changed, run again"
            )

    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        """Read the text of a record."""
        record = next(islice(self.records(path, config), position, None), None)
        if record is None:
            raise RecordError("no_such_record", f"expected a record {position}, got a file of fewer")
        return record_text(_fields(record), doc_id=None, config=config)


def _fields(record: Record) -> Mapping[str, Any]:
    if isinstance(record, RecordError):
        raise record
    return record
