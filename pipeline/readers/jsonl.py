"""JSON Lines: one object per line; positions are bytes of the decompressed stream."""

import codecs
import json
from typing import Any

import orjson

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.encodings import Encoding, decode_line
from concord.pipeline.readers.fields import Record
from concord.pipeline.readers.reader import FunctionReader
from concord.pipeline.readers.records import RecordError
from concord.pipeline.readers.streams import LineStream, with_codecs


class JsonLines(LineStream):
    """The records of a file: each non-blank line, and the position where a truncated stream breaks off."""

    def __init__(self, path: str, config: ReaderConfig) -> None:
        super().__init__(path, config)
        self._config = config if self.encoding is None else config.model_copy(update={"encoding": "utf-8"})
        self._encoding = Encoding(self.encoding or ("utf-8" if config.encoding == "auto" else config.encoding))

    def read(self) -> Record | None:
        """Read the next record; None at the end of the file."""
        while True:
            start = self.position
            try:
                line = self.read_line()
                if not line:
                    return None
                if not _without_bom(line, start).strip():
                    continue
                fields: dict[str, Any] | RecordError = _fields(line, start, self._config)
            except RecordError as error:
                fields = error.with_traceback(None)
            return Record(start, self.position, fields, self.position - start, self._encoding)


JSONL = FunctionReader(
    (*with_codecs(".jsonl"), *with_codecs(".ndjson")), lambda path, config, columns: JsonLines(path, config)
)


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
    return RecordError("invalid_json", f"expected one JSON object, got invalid JSON ({error}); {hint}")
