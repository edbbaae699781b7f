"""Bytes to text. A leading byte order mark is a sign of the encoding, not text: it is taken away, and offsets
count from the code point behind it. Everything else stays as it is."""

import codecs
from dataclasses import dataclass

import charset_normalizer

from concord.models.config import ConfigError
from concord.pipeline.readers.records import RecordError

# The longer marks first: UTF-32's begins like UTF-16's.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """Text without its byte order mark; ``guessed`` names an encoding that nobody stated."""

    text: str
    guessed: str | None = None


def check_encoding(encoding: str, *, line_based: bool) -> None:
    """Refuse what is no encoding of text, or one whose lines cannot be found in the bytes.

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


def decode(content: bytes, *, encoding: str) -> Decoded:
    """Decode a whole text file.

    Raises:
        RecordError: naming the first byte that does not fit.
    """
    marked = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    if encoding != "auto":
        return Decoded(text=_decode_as(content, encoding, hint=_hint(encoding, marked)))
    if marked is not None:
        return Decoded(text=_decode_as(content, marked, hint="convert the file to utf-8"))
    try:
        return Decoded(text=content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return _guess(content)


def decode_line(line: bytes, *, encoding: str) -> str:
    """Decode one line of a file.

    Raises:
        RecordError: naming the first byte that does not fit.
    """
    stated = "utf-8" if encoding == "auto" else encoding
    return _decode_as(line, stated, hint=_hint(stated, None))


def _decode_as(content: bytes, encoding: str, *, hint: str) -> str:
    name = codecs.lookup(encoding).name
    try:
        text = content.decode(name)
        # Some codecs (utf-7) let through lone surrogates, which nothing later can store.
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
    return "mend the bytes or set reader.encoding"


def _guess(content: bytes) -> Decoded:
    best = charset_normalizer.from_bytes(content).best()
    if best is None:
        raise RecordError(
            "invalid_encoding", "expected text, and no encoding fits the bytes; set reader.encoding or convert the file"
        )
    hint = "set reader.encoding or convert the file to utf-8"
    return Decoded(text=_decode_as(content, best.encoding, hint=hint), guessed=best.encoding)
