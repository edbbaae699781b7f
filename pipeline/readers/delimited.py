"""CSV and TSV files with a header line; positions are bytes of the decompressed stream.

A field in quotes may hold line ends, so that a record may take several lines. Where its quotes are broken, only its
first line is given up, and the next line starts a record.
"""

import csv
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.encodings import KEEP_INVALID, Encoding, decode_line, encoding_of_lines
from concord.pipeline.readers.fields import Fields, Record, check_names
from concord.pipeline.readers.reader import FunctionReader
from concord.pipeline.readers.records import RecordError, too_large
from concord.pipeline.readers.streams import LineStream, with_codecs

_KEPT = re.compile("[\udc80-\udcff]")
# A record is bounded by reader.max_record_bytes instead.
csv.field_size_limit(sys.maxsize)


class DelimitedStream:
    """The records of a file.

    Attributes:
        position: the byte at which the next record starts, or blank lines before it.
    """

    def __init__(self, path: str, config: ReaderConfig, *, delimiter: str, may_lack_quoting: bool) -> None:
        """Open a file and read its header.

        Args:
            may_lack_quoting: whether quotes may be a part of the text.

        Raises:
            RecordError: when there is no usable header.
        """
        self.position = 0
        self._start = 0
        self._delimiter = delimiter
        self._may_lack_quoting = may_lack_quoting
        self._config = config
        self._stream = LineStream(path, config)
        self._encoding = Encoding("utf-8") if self._stream.encoding is not None else _encoding(path, config)
        # Lines, or errors in place of lines, and their lengths: read already, for a record that was given up.
        self._waiting: deque[tuple[bytes | RecordError, int]] = deque()
        self._is_ascii, self._replaced = True, 0
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
            fields: Fields | RecordError = self._fields(row)
        except RecordError as error:
            fields = error.with_traceback(None)
        # A record of ASCII alone says nothing about the encoding of the file.
        encoding = Encoding("utf-8") if self._is_ascii else self._encoding
        if self._stream.encoding is not None:
            encoding = Encoding(self._stream.encoding)
        return Record(self._start, self.position, fields, self.position - self._start, encoding, self._replaced)

    def skip_to(self, position: int) -> None:
        """Skip forward to the start of a record."""
        while self._waiting and self.position < position:
            self.position += self._waiting.popleft()[1]
        if self.position < position:
            self._stream.skip_to(position)
            self.position = self._stream.position

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _fields(self, row: list[str]) -> Fields:
        fields = dict(zip(self._columns or (), row, strict=True))
        # There is no other way to leave an id out.
        if not fields.get(self._config.id_field):
            fields.pop(self._config.id_field, None)
        return fields

    def _read_row(self) -> list[str] | None:
        """Read the next row that is not blank; None at the end of the file."""
        while True:
            self._start, self._replaced = self.position, 0
            taken: list[tuple[bytes | RecordError, int]] = []
            try:
                row = next(csv.reader(self._take_lines(taken), delimiter=self._delimiter, strict=True), None)
            except RecordError as error:
                error.with_traceback(None)  # which leads to this frame and its lines
                # An error in place of the first line is that of the record; a later one cuts the record off.
                if len(taken) > 1:
                    row = self._give_up(taken, str(error))
                else:
                    self.position += sum(length for _, length in taken)
                    raise
            except (csv.Error, MemoryError) as error:
                row = self._give_up(taken, str(error) or type(error).__name__)
            else:
                self.position += sum(length for _, length in taken)
                self._check(row, taken)
                if self._replaced:
                    row = [_KEPT.sub("\ufffd", value) for value in row or ()]
            if row != []:
                return row

    def _take_lines(self, taken: list[tuple[bytes | RecordError, int]]) -> Iterator[str]:
        """Yield the next lines, for as long as a record goes on, and note them.

        Bytes that cannot be decoded are kept, so that they do not hide where the record ends.
        """
        size = 0
        while True:
            taken.append(self._waiting.popleft() if self._waiting else self._next_line())
            line, length = taken[-1]
            if isinstance(line, RecordError):
                raise line
            if not line:
                taken.pop()
                return
            size += length
            if size > self._config.max_record_bytes:
                raise too_large(self._config.max_record_bytes)
            text = line.decode(self._encoding.name, KEEP_INVALID)
            yield text.removeprefix("\ufeff") if self._start == 0 and len(taken) == 1 else text

    def _next_line(self) -> tuple[bytes | RecordError, int]:
        start = self._stream.position
        try:
            line: bytes | RecordError = self._stream.read_line()
        except RecordError as error:
            line = error.with_traceback(None)
        return line, self._stream.position - start

    def _give_up(self, taken: list[tuple[bytes | RecordError, int]], reason: str) -> list[str]:
        """Leave all lines but the first for later, and return that one read without quotes, where this may be right."""
        line, length = taken[0]
        self._waiting.extendleft(reversed(taken[1:]))
        self.position += length
        text = self._decode(line) if isinstance(line, bytes) else ""
        row = text.rstrip("\r\n").split(self._delimiter)
        if self._may_lack_quoting and self._columns is not None and len(row) == len(self._columns):
            self._is_ascii = text.isascii()
            return row
        raise RecordError(
            "invalid_quotes",
            f"expected fields with matching quotes, got a line without ({reason}); double the quotes within a field "
            "and put it in quotes",
        )

    def _decode(self, content: bytes) -> str:
        text, *_, self._replaced = decode_line(content, encoding=self._encoding.name, errors=self._config.errors)
        return text

    def _check(self, row: list[str] | None, taken: list[tuple[bytes | RecordError, int]]) -> None:
        """Check that a record can be decoded and has the columns of the header."""
        content = b"".join(line for line, _ in taken if isinstance(line, bytes))
        self._is_ascii = content.isascii()
        if not self._is_ascii:
            self._decode(content)
        if row and self._columns is not None and len(row) != len(self._columns):
            lines = f" in {len(taken)} lines" if len(taken) > 1 else ""
            raise RecordError(
                "wrong_columns",
                f"expected {len(self._columns)} columns as in the header, got {len(row)}{lines}; put fields that hold "
                f"{self._delimiter!r} in quotes",
            )


CSV = FunctionReader(
    with_codecs(".csv"),
    lambda path, config, columns: DelimitedStream(path, config, delimiter=",", may_lack_quoting=False),
)
TSV = FunctionReader(
    with_codecs(".tsv"),
    lambda path, config, columns: DelimitedStream(path, config, delimiter="\t", may_lack_quoting=True),
)
"""Reads files whose fields are in quotes where they need to be, or never."""


def _named(columns: Sequence[str]) -> Iterator[str]:
    """Yield the names of columns; one without a name has that which pandas gives it, as in ``Unnamed: 0``."""
    taken = set(columns)
    for place, column in enumerate(columns):
        name = column if column.strip() else f"Unnamed: {place}"
        while name != column and name in taken:
            name += ".1"
        taken.add(name)
        yield name


def _encoding(path: str, config: ReaderConfig) -> Encoding:
    if config.encoding != "auto":
        return Encoding(config.encoding)
    with closing(LineStream(path, config)) as stream:
        return encoding_of_lines(_lines(stream))


def _lines(stream: LineStream) -> Iterator[bytes]:
    while True:
        try:
            line = stream.read_line()
        except RecordError:
            continue
        if not line:
            return
        yield line
