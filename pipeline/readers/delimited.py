"""CSV and TSV files with a header line; positions are bytes of the decompressed stream.

A field in quotes may hold line ends, so that a record may take several lines. Where its quotes are broken, only its
first line is given up, and the next line starts a record.
"""

import csv
import sys
from collections import deque
from collections.abc import Iterator
from typing import ClassVar

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece
from concord.pipeline.readers.encodings import Encoding, decode_line, encoding_of_lines
from concord.pipeline.readers.fields import build_document, document_id, record_text
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter, too_large
from concord.pipeline.readers.streams import LineStream, cursor_at, with_codecs

# A record is bounded by reader.max_record_bytes instead.
csv.field_size_limit(sys.maxsize)

Fields = dict[str, str | None]


class DelimitedStream:
    """The records of a file.

    Attributes:
        delimiter: what separates two fields.
        may_lack_quoting: whether quotes may be a part of the text.
        start: the byte at which the last record starts.
        position: the byte at which the next record starts, or blank lines before it.
        encoding: of the whole file.
    """

    delimiter: ClassVar[str]
    may_lack_quoting: ClassVar[bool]

    def __init__(self, path: str, config: ReaderConfig) -> None:
        """Open a file and read its header.

        Raises:
            RecordError: when there is no usable header.
        """
        self.start = self.position = 0
        self.encoding = _encoding(path, config)
        self._config = config
        self._stream = LineStream(path, config)
        # Lines, or errors in place of lines, and their lengths: read already, for a record that was given up.
        self._waiting: deque[tuple[bytes | RecordError, int]] = deque()
        self._is_ascii = True
        self._columns: list[str] | None = None
        try:
            self._columns = self._read_row()
            if self._columns is not None and len(set(self._columns)) < len(self._columns):
                raise RecordError("invalid_header", f"expected different names of columns, got {self._columns}")
        except BaseException:
            self.close()
            raise

    def read_record(self) -> Fields | None:
        """Read the next record's fields; None at the end of the file.

        Raises:
            RecordError: when it cannot be read.
        """
        row = self._read_row()
        if row is None:
            return None
        fields: Fields = dict(zip(self._columns or (), row, strict=True))
        # There is no other way to leave an id out.
        if not fields.get(self._config.id_field):
            fields.pop(self._config.id_field, None)
        return fields

    @property
    def used_encoding(self) -> Encoding:
        """The encoding of the last record; one of ASCII alone says nothing about it."""
        return Encoding("utf-8") if self._is_ascii else self.encoding

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

    def _read_row(self) -> list[str] | None:
        """Read the next row that is not blank; None at the end of the file."""
        while True:
            self.start = self.position
            taken: list[tuple[bytes | RecordError, int]] = []
            try:
                row = next(csv.reader(self._take_lines(taken), delimiter=self.delimiter, strict=True), None)
            except RecordError as error:
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
                # A copy: its traceback leads to this frame, which holds the original and the lines before it.
                raise RecordError(line.code, str(line))
            if not line:
                taken.pop()
                return
            size += length
            if size > self._config.max_record_bytes:
                raise too_large(self._config.max_record_bytes)
            text = line.decode(self.encoding.name, "surrogateescape")
            yield text.removeprefix("\ufeff") if self.start == 0 and len(taken) == 1 else text

    def _next_line(self) -> tuple[bytes | RecordError, int]:
        start = self._stream.position
        try:
            line: bytes | RecordError = self._stream.read_line()
        except RecordError as error:
            line = RecordError(error.code, str(error))
        return line, self._stream.position - start

    def _give_up(self, taken: list[tuple[bytes | RecordError, int]], reason: str) -> list[str]:
        """Leave all lines but the first for later, and return that one read without quotes, where this may be right."""
        line, length = taken[0]
        self._waiting.extendleft(reversed(taken[1:]))
        self.position += length
        text = decode_line(line, encoding=self.encoding.name) if isinstance(line, bytes) else ""
        row = text.rstrip("\r\n").split(self.delimiter)
        if self.may_lack_quoting and self._columns is not None and len(row) == len(self._columns):
            self._is_ascii = text.isascii()
            return row
        raise RecordError(
            "invalid_quotes",
            f"expected fields with matching quotes, got a line without ({reason}); double the quotes within a field "
            "and put it in quotes",
        )

    def _check(self, row: list[str] | None, taken: list[tuple[bytes | RecordError, int]]) -> None:
        """Check that a record can be decoded and has the columns of the header."""
        content = b"".join(line for line, _ in taken if isinstance(line, bytes))
        self._is_ascii = content.isascii()
        if not self._is_ascii:
            decode_line(content, encoding=self.encoding.name)
        if row and self._columns is not None and len(row) != len(self._columns):
            lines = f" in {len(taken)} lines" if len(taken) > 1 else ""
            raise RecordError(
                "wrong_columns",
                f"expected {len(self._columns)} columns as in the header, got {len(row)}{lines}; put fields that hold "
                f"{self.delimiter!r} in quotes",
            )


class CsvStream(DelimitedStream):
    """The records of a CSV file."""

    delimiter = ","
    may_lack_quoting = False


class TsvStream(DelimitedStream):
    """The records of a TSV file, whose fields are in quotes where they need to be, or never."""

    delimiter = "\t"
    may_lack_quoting = True


class DelimitedReader:
    """Reads files of one record per row, whose first line names the columns."""

    stream: ClassVar[type[CsvStream] | type[TsvStream]]

    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        """Find the records of a file; one for a file without a usable header."""
        try:
            stream = self.stream(path, config)
        except RecordError:
            yield ScannedRecord(position=0, end=1, size=1, doc_id=None)
            return
        try:
            while True:
                doc_id = None
                try:
                    fields = stream.read_record()
                    if fields is None:
                        return
                    doc_id = document_id(fields, name=name, position=stream.start, config=config)
                except RecordError:
                    pass
                start, end = stream.start, stream.position
                yield ScannedRecord(position=start, end=end, size=end - start, doc_id=doc_id)
        finally:
            stream.close()

    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        """Read the records that start in a piece."""
        duplicates = frozenset(piece.duplicates)
        try:
            with cursor_at(piece.uri, piece.start, opened_by=self.stream, config=config) as stream:
                while stream.position < piece.end:
                    try:
                        fields = stream.read_record()
                        if fields is None or stream.position > piece.end:
                            raise InputError(
                                f"{piece.uri}, byte {stream.start}: expected a record that ends by byte {piece.end};"
                                " the file has changed since the plan was made: run again into a new output folder"
                            )
                        encoding = stream.used_encoding
                        yield build_document(
                            fields,
                            piece=piece,
                            position=stream.start,
                            is_duplicate=stream.start in duplicates,
                            config=config,
                            encoding=encoding.name,
                            confidence=encoding.confidence,
                        )
                    except RecordError as error:
                        yield dead_letter(error, piece=piece, position=stream.start, unit="byte")
        except RecordError as error:
            yield dead_letter(error, piece=piece, position=piece.start, unit="byte")

    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        """Read the text of the record that starts at a byte of the decompressed stream."""
        with cursor_at(path, position, opened_by=self.stream, config=config) as stream:
            return record_text(stream.read_record() or {}, doc_id=None, config=config)


class CsvReader(DelimitedReader):
    """Reads CSV files."""

    suffixes = with_codecs(".csv")
    stream = CsvStream


class TsvReader(DelimitedReader):
    """Reads TSV files."""

    suffixes = with_codecs(".tsv")
    stream = TsvStream


def _encoding(path: str, config: ReaderConfig) -> Encoding:
    if config.encoding != "auto":
        return Encoding(config.encoding)
    stream = LineStream(path, config)
    try:
        return encoding_of_lines(_lines(stream))
    finally:
        stream.close()


def _lines(stream: LineStream) -> Iterator[bytes]:
    while True:
        try:
            line = stream.read_line()
        except RecordError:
            continue
        if not line:
            return
        yield line
