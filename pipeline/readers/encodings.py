"""Decode bytes to text.

A leading byte order mark belongs to the encoding, not to the text: it is removed, and offsets count from the code point
after it. Nothing else is changed.
"""

import codecs

import charset_normalizer

from concord.models.config import ConfigError
from concord.pipeline.readers.records import RecordError

# Longer marks first: that of UTF-32 starts like that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def check_encoding(encoding: str, *, line_based: bool) -> None:
    """Check that an encoding exists and, for line-based files, that lines can be found in its bytes.

    Raises:
        ConfigError: naming the key.
    """
    if encoding == "auto":
        return
    try:
        line_end = "\n".encode(encoding)
    except LookupError:
        raise ConfigError(
            f"reader.encoding: expected auto or an encoding of Python such as utf-8 or cp1252, got {encoding!r}"
        ) from None
    if line_based and not line_end.endswith(b"\n"):
        raise ConfigError(
            f"reader.encoding: the lines of jsonl files in {encoding} cannot be found; convert them to utf-8"
        )


def decode(content: bytes, *, encoding: str) -> tuple[str, str | None]:
    """Decode a whole text file; return its text, and the name of the encoding if it was guessed.

    Raises:
        RecordError: naming the first invalid byte.
    """
    marked = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    if encoding != "auto":
        return _decode_as(content, encoding, hint=_hint(encoding, marked)), None
    if marked is not None:
        return _decode_as(content, marked, hint="convert the file to utf-8"), None
    try:
        return content.decode("utf-8-sig"), None
    except UnicodeDecodeError:
        best = charset_normalizer.from_bytes(content).best()
    hint = "set reader.encoding or convert the file"
    if best is None:
        raise RecordError("invalid_encoding", f"expected text, and no encoding fits the bytes; {hint}")
    return _decode_as(content, best.encoding, hint=f"{hint} to utf-8"), best.encoding


def decode_line(line: bytes, *, encoding: str) -> str:
    """Decode one line of a file; raises what ``decode`` raises."""
    stated = "utf-8" if encoding == "auto" else encoding
    return _decode_as(line, stated, hint=_hint(stated, None))


def _decode_as(content: bytes, encoding: str, *, hint: str) -> str:
    name = codecs.lookup(encoding).name
    try:
        text = content.decode(name)
        # Some codecs (utf-7) accept lone surrogates, which no output can store.
        text.encode("utf-8")
    except UnicodeDecodeError as error:
        code = "invalid_utf8" if name.startswith("utf-8") else "invalid_encoding"
        raise RecordError(
            code,
            f"expected {encoding}, got byte 0x{content[error.start]:02x} at offset {error.start} of the record"
            f" ({error.reason}); {hint}",
        ) from None
    except UnicodeEncodeError as error:
        raise RecordError(
            "lone_surrogate", f"expected characters, got half of a surrogate pair at {error.start}; {hint}"
        ) from None
    return text.removeprefix("\ufeff")


def _hint(encoding: str, marked: str | None) -> str:
    if marked is not None and marked != encoding:
        return f"it begins with the byte order mark of {marked}: set reader.encoding to {marked} or auto"
    return "fix the bytes or set reader.encoding"
