"""Parquet files and Arrow streams (as in the ``datasets`` folders of Hugging Face): one record per row.

Positions are 0-based row numbers.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, count
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from concord.models.errors import ConcordError
from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece
from concord.pipeline.readers.fields import build_document, document_id, record_text
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter
from concord.pipeline.readers.streams import cursor_at
from concord.pipeline.storage.files import open_for_arrow

_BATCH_ROWS = 64
_PLAUSIBLE_ROWS = 1_000_000
_PLAUSIBLE_ROWS_PER_BYTE = 100
"""A damaged footer may claim any number of rows; one of more than both of these is not believed."""

_ARROW_FILE = b"ARROW1"
_ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class RowStream(ABC):
    """The rows of a file, decoded in batches.

    Attributes:
        position: number of the next row.
    """

    def __init__(self, columns: Sequence[str] | None) -> None:
        """Prepare to read all columns, or those of the given ones that the file has."""
        self.position = 0
        self._columns = columns
        self._batch: list[tuple[str, Any]] = []
        self._batch_start = 0
        self._batch_end = 0
        self._damage: RecordError | None = None

    def read_row(self) -> dict[str, Any] | None:
        """Read the next row's fields; None at the end of the file.

        Raises:
            RecordError: when the row, or its batch from there on, cannot be decoded. Position is then still advanced by
                one.
        """
        row = self.position
        if row >= self._batch_end and not self._load(row):
            return None
        self.position += 1
        if self._damage is not None:
            raise RecordError(self._damage.code, str(self._damage))
        offset = row - self._batch_start
        try:
            return {name: column[offset].as_py() for name, column in self._batch}
        except UnicodeDecodeError as error:
            raise RecordError("invalid_utf8", f"expected strings in utf-8, got {error}; fix the row") from None
        except Exception as error:  # noqa: BLE001 - each type of column has errors of its own
            raise RecordError("unstorable_field", f"expected values that can be stored, got {error}") from None

    def skip_to(self, position: int) -> None:
        """Skip forward to a row."""
        self.position = position

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    @abstractmethod
    def _load(self, row: int) -> bool:
        """Decode the batch that holds a row, or set ``_damage`` for its rows; False past the last row."""

    def _take(self, batch: pa.RecordBatch, rows: int) -> None:
        """Make a batch the current one; without columns it does not know its number of rows."""
        self._batch = list(zip(batch.schema.names, batch.columns, strict=True))
        self._batch_start = self._batch_end
        self._batch_end += rows

    def _wanted(self, names: Sequence[str]) -> list[str] | None:
        return None if self._columns is None else [name for name in names if name in self._columns]


class ParquetStream(RowStream):
    """The rows of a Parquet file."""

    def __init__(self, path: str, config: ReaderConfig, columns: Sequence[str] | None = None) -> None:
        """Open a file.

        Raises:
            RecordError: when it is not a Parquet file, or damaged.
        """
        super().__init__(columns)
        try:
            source = open_for_arrow(path)
            self._file = pq.ParquetFile(source, page_checksum_verification=True)
            self._names = self._wanted(self._file.schema_arrow.names)
            self._group_starts = _group_starts(self._file.metadata, source.size())
        except Exception as error:  # noqa: BLE001 - flipped bytes of a footer raise whatever its strings and numbers do
            raise _damage(error, "Parquet") from None
        self._group = -1
        self._batches: Iterator[Any] = iter(())

    @override
    def close(self) -> None:
        self._file.close(force=True)

    @override
    def _load(self, row: int) -> bool:
        if row >= self._group_starts[-1]:
            return False
        group = bisect_right(self._group_starts, row) - 1
        if group != self._group:
            self._group = group
            self._batch_end = self._group_starts[group]
            self._damage = None
            self._batches = self._read_group(group)
        while self._damage is None and row >= self._batch_end:
            self._next_batch()
        return True

    def _read_group(self, group: int) -> Iterator[Any]:
        yield from self._file.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=[group], columns=self._names, use_threads=False
        )

    def _next_batch(self) -> None:
        try:
            batch = next(self._batches, None)
            if batch is None:
                raise pa.ArrowInvalid("the row group has fewer rows than the footer says")
        except Exception as error:  # noqa: BLE001 - as above, of pages
            self._damage = _damage(error, "Parquet")
            self._batch_end = self._group_starts[self._group + 1]
            return
        self._take(batch, batch.num_rows)


class ArrowStream(RowStream):
    """The rows of an Arrow IPC stream, or of an Arrow IPC file."""

    def __init__(self, path: str, config: ReaderConfig, columns: Sequence[str] | None = None) -> None:
        """Open a file.

        Raises:
            RecordError: when it is not an Arrow file, or its schema is damaged.
        """
        super().__init__(columns)
        self._is_over = False
        try:
            self._source = open_for_arrow(path)
            self._size: int = self._source.size()
            is_file = self._source.read(len(_ARROW_FILE)) == _ARROW_FILE
            self._source.seek(0)
            reader = pa.ipc.open_file(self._source) if is_file else pa.ipc.open_stream(self._source)
            self._names = self._wanted(reader.schema.names)
            self._batches = _read_file(reader) if is_file else self._read_stream(reader)
        except Exception as error:  # noqa: BLE001 - flipped bytes of a schema raise whatever its strings do
            raise _damage(error, "Arrow") from None

    @override
    def close(self) -> None:
        self._source.close()

    @override
    def _load(self, row: int) -> bool:
        while row >= self._batch_end:
            if self._is_over:
                return False
            self._next_batch()
        return True

    def _next_batch(self) -> None:
        rows: int | None = None
        self._damage = None
        try:
            batch = next(self._batches, None)
            if batch is None:
                self._is_over = True
                return
            _check_rows(batch.num_rows, self._size)
            rows = batch.num_rows
            wanted = batch if self._names is None else batch.select(self._names)
            # Arrow trusts the offsets in a file; reading by wrong ones ends the process.
            wanted.validate(full=True)
        except Exception as error:  # noqa: BLE001 - as above, of batches
            self._damage = _damage(error, "Arrow")
            # Where a batch cannot be read, the one after it cannot be found; one record stands for the rest.
            self._is_over = rows is None
            self._batch_end += 1 if rows is None else rows
            return
        self._take(wanted, rows)

    def _read_stream(self, reader: Any) -> Iterator[Any]:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            yield batch
        # A stream that is cut between two batches, or whose next length has become zero, ends without an error.
        is_whole = self._source.tell() == self._size
        self._source.seek(max(self._size - len(_ARROW_END), 0))
        if not is_whole or self._source.read() != _ARROW_END:
            raise RecordError("truncated_stream", "the stream has no end; what follows was not read")


class _RowReader(ABC):
    """Reads files of one record per row."""

    stream: ClassVar[type[ParquetStream] | type[ArrowStream]]

    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        """Find the records of a file; one for a file that cannot be opened."""
        try:
            stream = self.stream(path, config, columns=(config.id_field, config.text_field))
        except RecordError:
            yield ScannedRecord(position=0, end=1, size=1, doc_id=None)
            return
        try:
            for row in count():
                doc_id, size = None, 1
                try:
                    fields = stream.read_row()
                    if fields is None:
                        return
                    doc_id = document_id(fields, name=name, position=row, config=config)
                    size = len(fields[config.text_field].encode())
                except RecordError:
                    pass
                yield ScannedRecord(position=row, end=row + 1, size=size, doc_id=doc_id)
        finally:
            stream.close()

    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        """Read the rows of a piece."""
        duplicates = frozenset(piece.duplicates)
        try:
            with cursor_at(piece.uri, piece.start, opened_by=self.stream, config=config) as stream:
                while (row := stream.position) < piece.end:
                    try:
                        fields = stream.read_row()
                        if fields is None:
                            raise InputError(
                                f"{piece.uri}: expected at least {piece.end} rows, got {row}; the file has changed"
                                " since the plan was made: run again into a new output folder"
                            )
                        yield build_document(
                            fields, piece=piece, position=row, is_duplicate=row in duplicates, config=config
                        )
                    except RecordError as error:
                        yield dead_letter(error, piece=piece, position=row, unit="row")
        except RecordError as error:
            yield dead_letter(error, piece=piece, position=piece.start, unit="row")

    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        """Read the text of a row."""
        with cursor_at(path, position, opened_by=self.stream, config=config) as stream:
            return record_text(stream.read_row() or {}, doc_id=None, config=config)


class ParquetReader(_RowReader):
    """Reads Parquet files."""

    suffixes = (".parquet",)
    stream = ParquetStream


class ArrowReader(_RowReader):
    """Reads Arrow files, such as the ``data-*.arrow`` of a ``datasets`` folder."""

    suffixes = (".arrow",)
    stream = ArrowStream


def _group_starts(metadata: Any, size: int) -> list[int]:
    """Return the first row of each row group, and the number of all rows."""
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if sum(groups) != metadata.num_rows or min(groups, default=0) < 0:
        raise pa.ArrowInvalid(f"the footer counts {metadata.num_rows} rows, its row groups {sum(groups)}")
    _check_rows(metadata.num_rows, size)
    return list(accumulate(groups, initial=0))


def _check_rows(rows: int, size: int) -> None:
    if rows > max(_PLAUSIBLE_ROWS, _PLAUSIBLE_ROWS_PER_BYTE * size):
        raise pa.ArrowInvalid(f"{rows} rows in a file of {size} bytes")


def _read_file(reader: Any) -> Iterator[Any]:
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def _damage(error: Exception, format: str) -> RecordError:
    """Return the fault of a damaged file; raise errors of the disk or store again."""
    if isinstance(error, ConcordError) or (isinstance(error, OSError) and error.errno is not None):
        raise error
    if isinstance(error, RecordError):
        return error
    return RecordError(
        f"invalid_{format.lower()}", f"expected a whole {format} file, got: {error}; write or fetch the file again"
    )
