"""Input files to documents. Everything that is wrong inside a file becomes a dead letter, never an exception."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Literal

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece
from concord.pipeline.readers.jsonl import jsonl_text_at, read_jsonl, scan_jsonl
from concord.pipeline.readers.parquet import parquet_text_at, read_parquet, scan_parquet
from concord.pipeline.readers.records import ScannedRecord
from concord.pipeline.readers.streams import CODECS
from concord.pipeline.readers.text import read_text, scan_text, whole_text
from concord.pipeline.storage.files import unreadable

Format = Literal["text", "jsonl", "parquet"]

FORMATS: dict[str, Format] = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


def format_of(name: str) -> Format | None:
    """Give the format that a file's name says it has; None for a name that says nothing."""
    suffixes = [suffix.lower() for suffix in PurePath(name).suffixes]
    if not suffixes:
        return None
    if suffixes[-1] not in CODECS:
        return FORMATS.get(suffixes[-1])
    inner = FORMATS.get(suffixes[-2]) if len(suffixes) > 1 else None
    return None if inner == "parquet" else inner


def scan_file(path: str, *, format: Format, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
    """Find a file's records, for the planner.

    Args:
        name: the file's path below the input folder.

    Raises:
        InputError: when the file cannot be opened.
    """
    try:
        match format:
            case "text":
                yield from scan_text(path, name=name)
            case "jsonl":
                yield from scan_jsonl(path, name=name, config=config)
            case "parquet":
                yield from scan_parquet(path, name=name, config=config)
    except OSError as error:
        raise unreadable(path, error) from error


def read_piece(piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
    """Read a piece's records: one document or dead letter for each that the planner counted.

    Raises:
        InputError: when the file cannot be opened, or has visibly changed since the plan was made.
        StoreError: when its disk or store fails.
    """
    try:
        match piece.format:
            case "text":
                yield from read_text(piece, config)
            case "jsonl":
                yield from read_jsonl(piece, config)
            case "parquet":
                yield from read_parquet(piece, config)
            case other:
                raise InputError(f"{piece.uri}: expected the format text, jsonl or parquet, got {other!r}")
    except OSError as error:
        raise unreadable(piece.uri, error) from error


def read_text_at(path: str, *, format: str, position: int, config: ReaderConfig) -> str:
    """Read the text of one record.

    Args:
        position: as Document.source_position.

    Raises:
        RecordError: when no text begins there.
        InputError: when the file cannot be opened.
        StoreError: when its disk or store fails.
    """
    try:
        match format:
            case "jsonl":
                return jsonl_text_at(path, position, config)
            case "parquet":
                return parquet_text_at(path, position, config)
            case _:
                return whole_text(path, config)
    except OSError as error:
        raise unreadable(path, error) from error
