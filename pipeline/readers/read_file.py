"""Input files to documents, by the reader of their format.

Whatever is wrong inside a file becomes a dead letter, never an exception. A file that cannot be opened raises an
InputError, one whose disk or store fails a StoreError.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import PurePath
from typing import Protocol

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece
from concord.pipeline.readers.jsonl import JsonLinesReader
from concord.pipeline.readers.parquet import ParquetReader
from concord.pipeline.readers.records import ScannedRecord
from concord.pipeline.readers.text import TextReader
from concord.pipeline.storage.files import read_error

logger = logging.getLogger(__name__)


class Reader(Protocol):
    """Reads the files of one format. Its methods may raise OSError where a file cannot be read."""

    @property
    def suffixes(self) -> Sequence[str]:
        """How the names of its files end, in lower case, as in ``.jsonl``."""

    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        """Find the records of a file, in order; a record that cannot be read is one with ``doc_id`` None.

        Args:
            name: the file's path below the input folder; names the records that have no id of their own.
        """

    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        """Read a piece of a file: one document or dead letter for each record that ``scan`` found in it.

        Raises:
            InputError: when the file has visibly changed since it was scanned.
        """

    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        """Read the text of the record that starts at a position (see Document.source_position).

        Raises:
            RecordError: when no text starts there.
        """


ENTRY_POINTS = "concord.readers"


@cache
def readers() -> Mapping[str, Reader]:
    """Return the readers by the name of their format: the bundled ones, and entry points of other packages.

    An entry point that cannot be loaded is left out with a warning, since the files of other formats do not need it.
    """
    found: dict[str, Reader] = {"text": TextReader(), "jsonl": JsonLinesReader(), "parquet": ParquetReader()}
    for plugin in entry_points(group=ENTRY_POINTS):
        try:
            reader: Reader = plugin.load()()
            tuple(reader.suffixes)
        except Exception as error:  # noqa: BLE001 - the code of another package
            logger.warning("%s: cannot be used as the reader of the format %s: %s", plugin.value, plugin.name, error)
        else:
            found.setdefault(plugin.name, reader)
    return found


def reader_for(format: str, *, where: str = "reader.format") -> Reader:
    """Return the reader of a format; an InputError that names what asks for it if there is none."""
    reader = readers().get(format)
    if reader is None:
        raise InputError(f"{where}: expected one of the formats {', '.join(readers())}, got {format!r}")
    return reader


def format_of(name: str) -> str | None:
    """Return the format that a file's suffixes name, None if no reader knows them."""
    suffix = "".join(PurePath(name).suffixes[-2:]).lower()
    return next((format for format, reader in readers().items() if suffix.endswith(tuple(reader.suffixes))), None)


def scan_file(path: str, *, format: str, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
    """Find a file's records, for the planner; arguments as for ``Reader.scan``."""
    try:
        yield from reader_for(format, where=path).scan(path, name=name, config=config)
    except OSError as error:
        raise read_error(path, error) from error


def read_piece(piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
    """Read a piece's records: one document or dead letter for each that the planner counted.

    Raises:
        InputError: when the file has visibly changed since the plan was made.
    """
    try:
        yield from reader_for(piece.format, where=piece.uri).read(piece, config)
    except OSError as error:
        raise read_error(piece.uri, error) from error


def read_text_at(path: str, *, format: str, position: int, config: ReaderConfig) -> str:
    """Read the text of one record; arguments and RecordError as for ``Reader.text_at``."""
    try:
        return reader_for(format, where=path).text_at(path, position, config)
    except OSError as error:
        raise read_error(path, error) from error
