"""JSON Lines: one object per line; positions are bytes of the decompressed stream."""

import codecs
import json
from collections.abc import Iterator
from typing import Any

import orjson

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece
from concord.pipeline.readers.encodings import decode_line, stated_encoding
from concord.pipeline.readers.fields import build_document, document_id, record_text
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter
from concord.pipeline.readers.streams import LineStream, cursor_at, with_codecs


class JsonLinesReader:
    """Reads files of one JSON object per line."""

    suffixes = (*with_codecs(".jsonl"), *with_codecs(".ndjson"))

    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        """Find the records of a file: each non-blank line, and the position where a truncated stream breaks off."""
        stream = LineStream(path, config)
        try:
            while True:
                start = stream.position
                doc_id = None
                try:
                    line = stream.read_line()
                    if not line:
                        return
                    if not _without_bom(line, start).strip():
                        continue
                    doc_id = document_id(_fields(line, start, config), name=name, position=start, config=config)
                except RecordError:
                    pass
                end = stream.position
                yield ScannedRecord(position=start, end=end, size=end - start, doc_id=doc_id)
        finally:
            stream.close()

    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        """Read the lines that start in a piece."""
        duplicates = frozenset(piece.duplicates)
        with cursor_at(piece.uri, piece.start, opened_by=LineStream, config=config) as stream:
            while (start := stream.position) < piece.end:
                try:
                    line = stream.read_line()
                    if not line or stream.position > piece.end:
                        raise InputError(
                            f"{piece.uri}, byte {start}: expected the line to end by byte {piece.end}; the file has"
                            " changed since the plan was made: run again into a new output folder"
                        )
                    if not _without_bom(line, start).strip():
                        continue
                    fields = _fields(line, start, config)
                    yield build_document(
                        fields,
                        piece=piece,
                        position=start,
                        is_duplicate=start in duplicates,
                        config=config,
                        encoding=stated_encoding(config.encoding),
                    )
                except RecordError as error:
                    yield dead_letter(error, piece=piece, position=start, unit="byte")

    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        """Read the text of the line that starts at a byte of the decompressed stream."""
        with cursor_at(path, position, opened_by=LineStream, config=config) as stream:
            line = stream.read_line()
        return record_text(_fields(line, position, config), doc_id=None, config=config)


def _without_bom(line: bytes, start: int) -> bytes:
    return line.removeprefix(codecs.BOM_UTF8) if start == 0 else line


def _fields(line: bytes, start: int, config: ReaderConfig) -> dict[str, Any]:
    content: bytes | str = _without_bom(line, start)
    if config.encoding not in ("utf-8", "auto"):
        content = decode_line(line, encoding=config.encoding)
    try:
        fields = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise _diagnosis(line, start, error, config) from None
    if not isinstance(fields, dict):
        raise RecordError(
            "not_an_object", f"expected a JSON object, got a value of type {type(fields).__name__}; fix the line"
        )
    return fields


def _diagnosis(line: bytes, start: int, error: ValueError, config: ReaderConfig) -> RecordError:
    """Distinguish invalid bytes and lone surrogates, which JSON allows, from malformed JSON."""
    try:
        text = decode_line(line, encoding=config.encoding)
    except RecordError as undecodable:
        return undecodable
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return RecordError(
            "lone_surrogate",
            f"expected whole characters, got the escape of half a surrogate pair ({error}), which no text can"
            " hold; fix the line",
        )
    except (ValueError, RecursionError):
        pass
    hint = "fix the line" if line.endswith(b"\n") else "the line has no line end: the file may be truncated"
    return RecordError("invalid_json", f"expected one JSON object, got a line that is none ({error}); {hint}")
