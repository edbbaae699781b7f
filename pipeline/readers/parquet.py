"""Parquet: one record per row; positions are 0-based row numbers."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece
from concord.pipeline.readers.fields import build_document, document_id, record_text
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter
from concord.pipeline.readers.streams import cursor_at
from concord.pipeline.storage.files import open_for_arrow

_BATCH_ROWS = 64


class RowStream:
    """The rows of a Parquet file, decoded in small batches.

    Attributes:
        position: number of the next row.
        rows: how many rows its footer states.
    """

    def __init__(self, path: str, columns: Sequence[str] | None = None) -> None:
        """Open a file to read all columns, or those of the given ones that it has.

        Raises:
            RecordError: when it is not a Parquet file, or damaged.
        """
        self.position = 0
        try:
            self._file = pq.ParquetFile(open_for_arrow(path), page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            raise _damage(error) from None
        names = self._file.schema_arrow.names
        self._columns = None if columns is None else [name for name in names if name in columns]
        metadata = self._file.metadata
        groups = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        self._group_starts = list(accumulate(groups, initial=0))
        self.rows: int = self._group_starts[-1]
        self._group = -1
        self._batches: Iterator[Any] = iter(())
        self._batch_start = 0
        self._batch: list[tuple[str, Any]] = []
        self._batch_end = 0
        self._damage: RecordError | None = None

    def read_row(self) -> dict[str, Any] | None:
        """Read the next row's fields; None at the end of the file.

        Raises:
            RecordError: when the row, or its row group from there on, cannot be decoded. Position is then still
                advanced by one.
        """
        if self.position >= self.rows:
            return None
        row, self.position = self.position, self.position + 1
        if row >= self._batch_end:
            self._load(row)
        if self._damage is not None:
            raise RecordError(self._damage.code, str(self._damage))
        offset = row - self._batch_start
        try:
            return {name: column[offset].as_py() for name, column in self._batch}
        except UnicodeDecodeError as error:
            raise RecordError("invalid_utf8", f"expected strings in utf-8, got {error}; fix the row") from None
        except (ValueError, OverflowError) as error:
            raise RecordError("unstorable_field", f"expected values that can be stored, got {error}") from None

    def skip_to(self, position: int) -> None:
        """Skip forward to a row."""
        self.position = position

    def close(self) -> None:
        """Close the file."""
        self._file.close(force=True)

    def _load(self, row: int) -> None:
        group = bisect_right(self._group_starts, row) - 1
        if group != self._group:
            self._group = group
            self._batches = self._file.iter_batches(
                batch_size=_BATCH_ROWS, row_groups=[group], columns=self._columns, use_threads=False
            )
            self._batch_end = self._group_starts[group]
            self._damage = None
        while self._damage is None and row >= self._batch_end:
            self._next_batch()

    def _next_batch(self) -> None:
        try:
            batch = next(self._batches, None)
            if batch is None:
                raise pa.ArrowInvalid("the row group has fewer rows than the footer says")
        except (pa.ArrowException, OSError) as error:
            self._damage = _damage(error)
            self._batch_end = self._group_starts[self._group + 1]
            return
        self._batch = list(zip(batch.schema.names, batch.columns, strict=True))
        self._batch_start = self._batch_end
        self._batch_end += batch.num_rows


class ParquetReader:
    """Reads files of one record per row."""

    suffixes = (".parquet",)

    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        """Find the records of a file: as many rows as its footer states, or one for a file without a footer."""
        try:
            stream = RowStream(path, columns=(config.id_field, config.text_field))
        except RecordError:
            yield ScannedRecord(position=0, end=1, size=1, doc_id=None)
            return
        try:
            for row in range(stream.rows):
                doc_id, size = None, 1
                try:
                    fields = stream.read_row() or {}
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
            with cursor_at(piece.uri, piece.start, opened_by=RowStream) as stream:
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
        with cursor_at(path, position, opened_by=RowStream) as stream:
            return record_text(stream.read_row() or {}, doc_id=None, config=config)


def _damage(error: Exception) -> RecordError:
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    return RecordError("invalid_parquet", f"expected a whole Parquet file, got: {error}; write or fetch the file again")
