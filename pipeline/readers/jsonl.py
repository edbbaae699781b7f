"""JSON Lines: one object per line; positions are bytes of the decompressed stream."""

import json
from typing import Any

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.encodings import Encoding, decode_line
from concord.pipeline.readers.fields import Number, Record, by_name, type_name
from concord.pipeline.readers.reader import FunctionReader
from concord.pipeline.readers.records import RecordError
from concord.pipeline.readers.streams import LineStream, with_codecs

_DECODER = json.JSONDecoder(
    object_pairs_hook=by_name,
    # Numbers go into meta as they are written, with all their digits.
    parse_int=Number,
    parse_float=Number,
    parse_constant=lambda _: None,
)


class JsonLines(LineStream):
    """The records of a file: each non-blank line, and the position where a truncated stream breaks off."""

    def __init__(self, path: str, config: ReaderConfig) -> None:
        super().__init__(path, config)
        self._config = config if self.encoding is None else config.model_copy(update={"encoding": "utf-8"})
        self._encoding = Encoding(self.encoding or ("utf-8" if config.encoding == "auto" else config.encoding))

    def read(self) -> Record | None:
        """Read the next record; None at the end of the file."""
        while True:
            start, replaced = self.position, 0
            try:
                line = self.read_line()
                if not line:
                    return None
                text, *_, replaced = decode_line(line, encoding=self._config.encoding, errors=self._config.errors)
                if not text or text.isspace():
                    continue
                fields: dict[str, Any] | RecordError = _fields(text)
            except RecordError as error:
                fields = error.with_traceback(None)
            return Record(start, self.position, fields, self.position - start, self._encoding, replaced)


JSONL = FunctionReader(
    (*with_codecs(".jsonl"), *with_codecs(".ndjson")), lambda path, config, columns: JsonLines(path, config)
)


def _fields(line: str) -> dict[str, Any]:
    try:
        fields = _DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        hint = "fix the line" if line.endswith("\n") else "the line has no line end: the file may be truncated"
        raise RecordError("invalid_json", f"expected one JSON object, got invalid JSON ({error}); {hint}") from None
    if not isinstance(fields, dict):
        is_table = isinstance(fields, list) and all(isinstance(item, dict) for item in fields)
        raise RecordError(
            "not_an_object",
            f"expected a JSON object, got {type_name(fields)}; fix the line, or write one object a line",
            loses_file=is_table and bool(fields),
        )
    return fields
