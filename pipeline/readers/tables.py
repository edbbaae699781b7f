"""Texts and tables: files that are one text each (.txt), and those of records with fields.

JSON Lines have one object a line, CSV and TSV a header line and perhaps records of several lines, since a field in
quotes may hold line ends; positions are bytes of the decompressed stream. Parquet files and Arrow streams (as in the
``datasets`` folders of Hugging Face) have one record a row; positions are 0-based row numbers.
"""

import csv
import json
import re
import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import override

from concord.models.errors import ConcordError
from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers import files
from concord.pipeline.readers.base import Fields, FileReader, FunctionReader, Record, shown_value
from concord.pipeline.readers.records import RecordError, ScannedRecord, too_large
from concord.pipeline.storage.files import open_for_arrow


def check_names(names: Sequence[str], *, error: str = "invalid_header") -> None:
    """Raise RecordError if two columns of a table, or keys of an object, have one name: one would hide the other."""
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise RecordError(
            error,
            f"expected different names, got {twice!r} twice among {shown_value(names)}; rename or drop one of them",
        )


def _by_name(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        check_names([name for name, _ in pairs], error="duplicate_key")
    return fields


_DECODER = json.JSONDecoder(
    object_pairs_hook=_by_name,
    # Numbers go into meta as they are written, with all their digits.
    parse_int=orjson.Fragment,
    parse_float=orjson.Fragment,
    parse_constant=lambda _: None,
)

_DEEPEST = 500
"""Lists and objects within one another; some processes could read no more than twice as many."""
_QUOTED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
# A record is bounded by reader.max_record_bytes instead.
csv.field_size_limit(sys.maxsize)

_BATCH_ROWS = 64
_STRINGS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_ARROW_FILE = b"ARROW1"
_ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_Line = tuple[bytes | RecordError, int]
"""A line, or why it cannot be read, and where it ends."""


class TextReader(FileReader):
    """Reads text files."""

    suffixes = files.with_codecs(".txt")
    extracts = False

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> files.Decoded:
        return files.decode(content, encoding=config.encoding, errors=config.errors)


class JsonLines(files.LineStream):
    """The records of a file: each non-blank line, and the position where a truncated stream breaks off."""

    def __init__(self, path: str, config: ReaderConfig) -> None:
        super().__init__(path, config)
        self._errors = config.errors
        self._encoding = files.Encoding(self.encoding or ("utf-8" if config.encoding == "auto" else config.encoding))
        self._read_as = self._encoding.name if self.encoding is None else "utf-8"

    def read(self) -> Record | None:
        """Read the next record; None at the end of the file."""
        while True:
            start, replaced = self.position, 0
            line = self.read_line()
            if not line:
                return None
            fields: dict[str, Any] | RecordError
            try:
                if isinstance(line, RecordError):
                    raise line
                text, *_, replaced = files.decode_as(line, self._read_as, errors=self._errors)
                if not text or text.isspace():
                    continue
                fields = _fields(text)
            except RecordError as error:
                fields = error.with_traceback(None)
            return Record(start, self.position, fields, self._encoding, replaced)


JSONL = FunctionReader(
    (*files.with_codecs(".jsonl"), *files.with_codecs(".ndjson")), lambda path, config, columns: JsonLines(path, config)
)


def _fields(line: str) -> dict[str, Any]:
    if line.count("[") + line.count("{") > _DEEPEST:
        steps = (1 if bracket in "[{" else -1 for bracket in re.findall("[][{}]", _QUOTED.sub("", line)))
        if max(accumulate(steps), default=0) > _DEEPEST:
            message = f"expected at most {_DEEPEST} lists and objects within one another, got more; write them flat"
            raise RecordError("nested_too_deep", message)
    try:
        fields = _DECODER.decode(line)
    except ValueError as error:
        hint = "fix the line" if line.endswith("\n") else "the line has no line end: the file may be truncated"
        raise RecordError("invalid_json", f"expected one JSON object, got invalid JSON ({error}); {hint}") from None
    if not isinstance(fields, dict):
        is_table = isinstance(fields, list) and all(isinstance(item, dict) for item in fields)
        raise RecordError(
            "not_an_object",
            f"expected a JSON object, got {shown_value(fields)}; fix the line, or write one object a line",
            loses_file=is_table and bool(fields),
        )
    return fields


class DelimitedStream:
    """The records of a file whose header names their columns; of fields in quotes or, in TSV, perhaps with quotes."""

    def __init__(self, path: str, config: ReaderConfig, delimiter: str) -> None:
        """Open a file and read its header; RecordError when there is none that can be used."""
        self.position = 0
        self._start = 0
        self._delimiter = delimiter
        self._config = config
        self._stream = files.LineStream(path, config)
        self._lines = self._stream.lines()
        transcoded = self._stream.encoding
        self._encoding = files.Encoding(transcoded) if transcoded else files.encoding_of_lines(path, config)
        self._read_as = "utf-8" if transcoded else self._encoding.name
        # Lines, or errors in place of lines, and where they end: read already, for a record that was given up.
        self._waiting: deque[_Line] = deque()
        self._replaced = 0
        self._columns: list[str] | None = None
        try:
            header = self._read_row()
            self._columns = None if header is None else [*_named(header)]
            check_names(self._columns or ())
        except BaseException:
            self.close()
            raise

    def read(self) -> Record | None:
        """Read the next record; None at the end of the file."""
        try:
            row = self._read_row()
            if row is None:
                return None
            values = dict(zip(self._columns or (), row, strict=True))
            # There is no other way to leave an id out.
            if not values.get(self._config.id_field):
                values.pop(self._config.id_field, None)
            fields: Fields | RecordError = values
        except RecordError as error:
            fields = error.with_traceback(None)
        return Record(self._start, self.position, fields, self._encoding, self._replaced)

    def skip_to(self, position: int) -> None:
        """Skip forward to the start of a record."""
        if self.position < position:
            self._waiting.clear()
            self._stream.skip_to(position)
            self.position = self._stream.position

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _read_row(self) -> list[str] | None:
        """Read the next row that is not blank; None at the end of the file."""
        while True:
            self._start, self._replaced = self.position, 0
            taken: list[_Line] = []
            try:
                row = next(csv.reader(self._take_lines(taken), delimiter=self._delimiter, strict=True), None)
            except (RecordError, csv.Error, MemoryError) as error:
                # An error in place of the first line is that of the record; a later one cuts the record off.
                self.position = taken[0][1]
                if isinstance(error, RecordError) and len(taken) == 1:
                    raise error.with_traceback(None) from None  # which leads to this frame and its lines
                row = self._give_up(taken, str(error) or type(error).__name__)
            else:
                self.position = taken[-1][1] if taken else self.position
                self._check(row, taken)
            if row != []:
                return row

    def _take_lines(self, taken: list[_Line]) -> Iterator[str]:
        """Yield the next lines, for as long as a record goes on, whatever bytes they hold, and note them."""
        while following := self._waiting.popleft() if self._waiting else next(self._lines, None):
            taken.append(following)
            line, end = following
            if isinstance(line, RecordError):
                raise line
            if end - self._start > self._config.max_record_bytes:
                raise too_large(self._config.max_record_bytes)
            text, _ = files.decode_leniently(line, self._read_as)
            yield text.removeprefix("\ufeff") if self._start == 0 and len(taken) == 1 else text

    def _give_up(self, taken: list[_Line], reason: str) -> list[str]:
        """Leave all lines but the first for later, and return that one read without quotes, where this may be right."""
        self._waiting.extendleft(reversed(taken[1:]))
        row = self._decode(taken[:1]).rstrip("\r\n").split(self._delimiter)
        if self._delimiter == "\t" and self._columns is not None and len(row) == len(self._columns):
            return row
        raise RecordError(
            "invalid_quotes",
            f"expected fields with matching quotes, got a line without ({reason}); double the quotes within a field "
            "and put it in quotes",
        )

    def _decode(self, lines: Iterable[_Line]) -> str:
        content = b"".join(line for line, _ in lines if isinstance(line, bytes))
        text, *_, self._replaced = files.decode_as(content, self._read_as, errors=self._config.errors)
        return text

    def _check(self, row: list[str] | None, taken: list[_Line]) -> None:
        """Check that a record can be decoded and has the columns of the header."""
        if row and "\ufffd" in "".join(row):
            self._decode(taken)
        if row and self._columns is not None and len(row) != len(self._columns):
            raise RecordError(
                "wrong_columns",
                f"expected {len(self._columns)} columns as in the header, got {len(row)}; write all of them, those "
                f"without a value too, and put fields that hold {self._delimiter!r} or line ends in quotes",
            )


CSV = FunctionReader(files.with_codecs(".csv"), lambda path, config, columns: DelimitedStream(path, config, ","))
TSV = FunctionReader(files.with_codecs(".tsv"), lambda path, config, columns: DelimitedStream(path, config, "\t"))


def _named(columns: Sequence[str]) -> Iterator[str]:
    """Yield the names of columns; one without a name has that which pandas gives it, as in ``Unnamed: 0``."""
    for place, column in enumerate(columns):
        name = column if column.strip() else f"Unnamed: {place}"
        while name != column and name in columns:
            name += ".1"
        yield name


class Batch(NamedTuple):
    """Rows that are decoded together: their columns by name, or why they, or one of them, cannot be."""

    rows: int
    columns: Sequence[tuple[str, Any]] | RecordError


class RowStream(ABC):
    """The rows of a file, decoded in batches; positions are numbers of rows."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        """Prepare to read all columns, or those of the given ones that the file has."""
        self.position = 0
        self._size = 0
        self._columns = columns
        self._batches: Iterator[Batch] = iter(())
        self._batch = Batch(0, [])
        self._batch_end = 0

    def read(self) -> Record | None:
        """Read the next row; None at the end of the file."""
        row = self.position
        while row >= self._batch_end:
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._batch = batch
            self._batch_end += batch.rows
        self.position += 1
        # Of the batch, the row is counted from its end.
        columns, offset = self._batch.columns, row - self._batch_end
        if isinstance(columns, RecordError):
            return Record(row, row + 1, columns)
        return Record(row, row + 1, {name: _value(column, offset) for name, column in columns})

    def skip_to(self, position: int) -> None:
        """Skip forward to a row."""
        self.position = position

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def check_unpacked(self) -> None:
        """Raise RecordError if a file unpacks too far that was just opened: few bytes may hold gigabytes of values."""
        most, unpacked = files.most_unpacked(self._size), 0
        for batch in self._batches:
            if not isinstance(batch.columns, RecordError):
                unpacked += sum(_unpacked_bytes(column) for _, column in batch.columns)
            if unpacked > most:
                raise files.unpacks_too_far(self._size, most, loses_file=True)

    def _chosen(self, names: Sequence[str]) -> list[str] | None:
        return None if self._columns is None else [name for name in names if name in self._columns]


class ParquetStream(RowStream):
    """The rows of a Parquet file."""

    def __init__(self, path: str, columns: Sequence[str] | None) -> None:
        """Open a file; RecordError when it is not a Parquet file, or damaged."""
        super().__init__(columns)
        try:
            source = open_for_arrow(path)
            self._file = pq.ParquetFile(source, page_checksum_verification=True)
            self._size = source.size()
            self._group_starts = _group_starts(self._file.metadata, self._size)
            _check_columns(self._file.schema_arrow)
            self._names = self._chosen(self._file.schema_arrow.names)
        except Exception as error:  # noqa: BLE001 - flipped bytes of a footer raise whatever its strings and numbers do
            raise _damage(error, "Parquet") from None
        self._group = 0
        self._batches = self._read_groups(0)

    @override
    def skip_to(self, position: int) -> None:
        super().skip_to(position)
        group = bisect_right(self._group_starts, position) - 1
        if group > self._group:
            self._batch_end = self._group_starts[group]
            self._batches = self._read_groups(group)

    @override
    def close(self) -> None:
        self._file.close(force=True)

    @override
    def check_unpacked(self) -> None:
        most, metadata = files.most_unpacked(self._size), self._file.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        columns = [list(map(group.column, range(group.num_columns))) for group in groups]
        # Each value, even null, counts as one.
        stated = [sum(max(chunk.total_uncompressed_size, chunk.num_values) for chunk in group) for group in columns]
        if sum(stated) > most:
            raise files.unpacks_too_far(self._size, most, loses_file=True)
        # No value is longer than its row group, so that no batch is much larger than what is allowed.
        self._batches = self._read_groups(0, rows=min(max(most // max([1, *stated]), 1), 4 * _BATCH_ROWS))
        super().check_unpacked()

    def _read_groups(self, first: int, *, rows: int = _BATCH_ROWS) -> Iterator[Batch]:
        for group in range(first, len(self._group_starts) - 1):
            self._group = group
            rest = self._group_starts[group + 1] - self._group_starts[group]
            batches = self._file.iter_batches(
                batch_size=rows, row_groups=[group], columns=self._names, use_threads=False
            )
            while rest:
                try:
                    batch = next(batches, None)
                    if batch is None:
                        raise pa.ArrowInvalid("the row group has fewer rows than the footer says")
                except Exception as error:  # noqa: BLE001 - as above, of pages
                    yield Batch(rest, _damage(error, "Parquet"))
                    break
                batch = batch.slice(0, rest)
                rest -= batch.num_rows
                yield Batch(batch.num_rows, list(zip(batch.schema.names, batch.columns, strict=True)))


class ArrowStream(RowStream):
    """The rows of an Arrow IPC stream, or of an Arrow IPC file."""

    def __init__(self, path: str, columns: Sequence[str] | None) -> None:
        """Open a file; RecordError when it is not an Arrow file, or its schema is damaged."""
        super().__init__(columns)
        try:
            self._source = open_for_arrow(path)
            self._size = self._source.size()
            is_file = self._source.read(len(_ARROW_FILE)) == _ARROW_FILE
            self._source.seek(0)
            reader = pa.ipc.open_file(self._source) if is_file else pa.ipc.open_stream(self._source)
            _check_columns(reader.schema)
            names = self._chosen(reader.schema.names)
        except Exception as error:  # noqa: BLE001 - flipped bytes of a schema raise whatever its strings do
            raise _damage(error, "Arrow") from None
        of_file = map(reader.get_batch, range(reader.num_record_batches)) if is_file else self._read_stream(reader)
        self._batches = self._read(of_file, names)

    @override
    def close(self) -> None:
        self._source.close()

    def _read(self, batches: Iterator[pa.RecordBatch], names: Sequence[str] | None) -> Iterator[Batch]:
        while True:
            rows = 0
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                _check_rows(batch.num_rows, self._size)
                rows = batch.num_rows
                batch = batch if names is None else batch.select(names)
                batch.validate()
                columns = [(name, _checked(batch[name])) for name in batch.schema.names]
            except Exception as error:  # noqa: BLE001 - as above, of batches
                # Where a batch cannot be read, the one after it cannot be found; one record stands for the rest.
                fault = _damage(error, "Arrow")
                fault.loses_file = not rows
                yield Batch(max(rows, 1), fault)
                if not rows:
                    return
            else:
                yield Batch(rows, columns)

    def _read_stream(self, reader: Any) -> Iterator[Any]:
        yield from reader
        # A stream that is cut between two batches, or whose next length has become zero, ends without an error.
        is_whole = self._source.tell() == self._size
        self._source.seek(max(self._size - len(_ARROW_END), 0))
        if not is_whole or self._source.read() != _ARROW_END:
            raise RecordError("truncated_stream", "the stream has no end; what follows was not read")


class RowReader(FunctionReader):
    """Reads files of columns, unless they unpack too far; one that does is lost as a whole."""

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        with closing(self.open(path, config)) as stream:
            if isinstance(stream, RowStream):
                stream.check_unpacked()
        yield from super().scan(path, name=name, config=config)


PARQUET = RowReader((".parquet",), lambda path, config, columns: ParquetStream(path, columns), unit="row")
ARROW = RowReader((".arrow",), lambda path, config, columns: ArrowStream(path, columns), unit="row")


def _check_columns(fields: Iterable[Any]) -> None:
    """Check that no two columns, or fields of a struct in one, have one name; raise RecordError as ``check_names``."""
    fields = list(fields)
    check_names([field.name for field in fields])
    for field in fields:
        kind = field.type
        if pa.types.is_nested(kind) and not pa.types.is_union(kind):
            _check_columns(kind.field(number) for number in range(kind.num_fields))


def _checked(column: Any) -> Any:
    """Return a column, or the fault of one whose content is damaged; the others can be read all the same."""
    try:
        # Arrow trusts the offsets in a file; reading by wrong ones ends the process.
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        return _damage(error, "Arrow")
    return column


def _value(column: Any, offset: int) -> Any:
    """Return one value of a column; a RecordError for one that Python cannot hold."""
    if isinstance(column, RecordError):
        return column
    try:
        return column[offset].as_py()
    except UnicodeDecodeError as error:
        return RecordError("invalid_utf8", f"expected a string in utf-8, got {error}; fix the row")
    except Exception as error:  # noqa: BLE001 - each type of column has errors of its own
        return RecordError("unstorable_field", f"expected a value that can be stored, got {error}; fix or drop it")


def _unpacked_bytes(column: Any) -> int:
    """Return how many bytes the values of a column have, each counted as often as it stands there."""
    if isinstance(column, RecordError):
        return 0
    kind = column.type
    if pa.types.is_dictionary(kind) and kind.value_type in _STRINGS:
        return pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    if pa.types.is_dictionary(kind):
        return _unpacked_bytes(column.dictionary_decode())
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # A view has sixteen bytes, of which the first four are its length.
        views = np.frombuffer(column.buffers()[1], np.int32)[::4]
        return int(views[column.offset : column.offset + len(column)].sum(dtype=np.int64))
    if pa.types.is_struct(kind):
        return sum(map(_unpacked_bytes, column.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _unpacked_bytes(column.flatten())
    return max(int(column.nbytes), len(column))


def _group_starts(metadata: Any, size: int) -> list[int]:
    """Return the first row of each row group, and the number of all rows."""
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if sum(groups) != metadata.num_rows or min(groups, default=0) < 0:
        raise pa.ArrowInvalid(f"the footer counts {metadata.num_rows} rows, its row groups {sum(groups)}")
    _check_rows(metadata.num_rows, size)
    return list(accumulate(groups, initial=0))


def _check_rows(rows: int, size: int) -> None:
    # A damaged footer may claim any number.
    if rows > max(1_000_000, 100 * size):
        raise pa.ArrowInvalid(f"{rows} rows in a file of {size} bytes")


def _damage(error: Exception, format: str) -> RecordError:
    """Return the fault of a damaged file; raise errors of the disk or store again."""
    if isinstance(error, ConcordError) or (isinstance(error, OSError) and error.errno is not None):
        raise error
    if isinstance(error, RecordError):
        return error.with_traceback(None)
    return RecordError(
        f"invalid_{format.lower()}", f"expected a whole {format} file, got: {error}; write or fetch the file again"
    )
