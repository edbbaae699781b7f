"""What an e-mail says: the text that it shows, its headers, and what it attaches.

Plain text is preferred to HTML, and the lines of both stay as they are, quoted ones included.
"""

import re
from binascii import a2b_base64, a2b_qp
from collections.abc import Iterator, Sequence
from contextlib import suppress
from email import message_from_bytes
from email.errors import InvalidBase64LengthDefect
from email.message import Message
from email.utils import parsedate_to_datetime
from itertools import groupby
from typing import Any

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.readers.extracting import as_record_errors
from concord.pipeline.readers.files import Decoded, decode, encoding_of
from concord.pipeline.readers.html import read_page
from concord.pipeline.readers.records import RecordError

HEADERS = ("subject", "date", "from", "to", "cc", "message_id")
_TEXT, _HTML = "text/plain", "text/html"
_UNKNOWN = (None, "ascii", "us-ascii", "unknown-8bit")
"""Charsets that say nothing of bytes beyond ASCII."""
_ENCRYPTED = ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime")

_FOLDED = re.compile(rb"(?im)^content-type:[^\n]*(?:\n[ \t][^\n]*)+")

# The email package takes time that grows with the square of these.
_LONG = re.compile(rb"(?im)^content-(?:type|disposition):(?:[^\n]|\n[ \t]){10000}")
_MOST_TESTS = 30_000_000
"""Each line is compared with the boundaries of all parts around it."""

_ONE_WORD = r"=\?([^?\s*]+)(?:\*[^?\s]*)?\?([bBqQ])\?([^?]*)\?="
_WORD = re.compile(_ONE_WORD)
_WORDS = re.compile(rf"{_ONE_WORD}(?:\s*{_ONE_WORD})*")


def parse(content: bytes) -> Message:
    """Return the message in the content of a file.

    Raises:
        RecordError: when it is none.
    """
    if _LONG.search(content) or content.count(b"\n") * min(content.count(b"boundary"), 300) > _MOST_TESTS:
        raise RecordError(
            "message_too_complex", "expected short headers and parts nested a few deep, got many more; remove it"
        )
    content = content.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    message = message_from_bytes(_FOLDED.sub(_with_whole_boundary, content))
    if not message.keys():
        raise RecordError("invalid_message", "expected an e-mail with headers, got none; fix the file or remove it")
    return message


def read_message(message: Message, config: ReaderConfig) -> tuple[Decoded, dict[str, Any]]:
    """Return the text of a message, and what becomes its meta.

    Raises:
        RecordError: when a part that it shows cannot be read.
    """
    with as_record_errors("message"):
        attached: list[Message] = []
        texts = [text_of(part, config) for part in shown(message, attached)]
        if not texts and message.get_content_type() in _ENCRYPTED:
            raise RecordError("encrypted", "expected a message that can be read, got an encrypted one; decrypt it")
        first = next((text for text in texts if not text.text.isascii()), texts[0] if texts else Decoded("", None))
        text, replaced = "\n".join(text.text for text in texts), sum(text.replaced for text in texts)
        meta: dict[str, Any] = headers_of(message, config)
        if attached:
            meta["attachments"] = [name_of(part, config) for part in attached]
        return first._replace(text=text, replaced=replaced), meta


def _with_whole_boundary(header: re.Match[bytes]) -> bytes:
    """Return a header in one line if it states a boundary, which the email package does not find in two."""
    return re.sub(rb"\r?\n", b"", header[0]) if b"boundary" in header[0].lower() else header[0]


def shown(part: Message, attached: list[Message]) -> Iterator[Message]:
    """Yield the texts that a mail program shows, in order, and note what it would attach."""
    kind = part.get_content_type()
    if part.get_content_disposition() == "attachment" or not (part.is_multipart() or kind in (_TEXT, _HTML)):
        if kind.startswith("multipart/") and not part.is_multipart():
            if not content_of(part).strip():
                return
            raise RecordError(
                "invalid_message", f"expected the parts of a {kind}, found none; the message may be truncated"
            )
        attached.append(part)
    elif kind == "multipart/alternative":
        choices = [list(shown(child, attached)) for child in _children(part)]
        yield from next(filter(_is_plain, choices), None) or next(filter(None, reversed(choices)), [])
    elif part.is_multipart():
        for child in _children(part):
            yield from shown(child, attached)
    else:
        yield part


def _children(part: Message) -> list[Any]:
    children = part.get_payload()
    return children if isinstance(children, list) else []


def _is_plain(parts: Sequence[Message]) -> bool:
    return any(part.get_content_type() == _TEXT and content_of(part).strip() for part in parts)


def content_of(part: Message) -> bytes:
    """Return the content of a part as it was before it was written into a message."""
    content = part.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""


def check_base64(part: Message) -> None:
    """Raise a RecordError if the content of a part, which was decoded before, is no base64 although it states so."""
    if any(isinstance(defect, InvalidBase64LengthDefect) for defect in part.defects):
        raise RecordError("invalid_base64", "expected a part in base64, got other characters; fix the message")


def name_of(part: Message, config: ReaderConfig) -> str:
    """Return the name of the file that a part is, or else its type."""
    return _header(part.get_filename() or part.get_content_type(), config)


def text_of(part: Message, config: ReaderConfig) -> Decoded:
    """Return the text of a part that is plain text or HTML."""
    content, charset = content_of(part), part.get_content_charset()
    check_base64(part)
    label = None if charset in _UNKNOWN else charset
    if part.get_content_type() == _HTML:
        decoded, _ = read_page(content, config, charset=label)
    else:
        stated = codec_of(label) if label else None
        encoding = encoding_of(content, config.encoding, lambda: stated)
        if encoding in ("utf-8", "auto") and stated is not None and stated.startswith(("utf-16", "utf-32", "utf-7")):
            encoding = stated  # which ASCII could not state within the text
        decoded = decode(content, encoding=encoding, errors=config.errors)
    return decoded._replace(text=decoded.text.replace("\r\n", "\n"))


def headers_of(message: Message, config: ReaderConfig) -> dict[str, Any]:
    """Return the headers that become meta, decoded; an undecodable byte of theirs does not cost the message."""
    found: dict[str, list[str]] = {}
    for header, value in message.raw_items():
        if (name := header.lower().replace("-", "_")) in HEADERS:
            found.setdefault(name, []).append(_header(str(value), config))
    meta = {name: ", ".join(values) for name, values in found.items()}
    with suppress(KeyError, ValueError, TypeError, IndexError, OverflowError):  # else it stays as it is written
        meta["date"] = parsedate_to_datetime(meta["date"]).isoformat()
    return meta


def _header(value: str, config: ReaderConfig) -> str:
    """Return the text of a header on one line, with its encoded words (RFC 2047) decoded."""
    encoding = "utf-8" if config.encoding == "auto" else config.encoding
    return " ".join(_WORDS.sub(_decoded, _plain(value, encoding)).split())


def _decoded(words: re.Match[str]) -> str:
    """Decode words of which only white space is between them; a character may be split over two of one charset."""
    pieces = []
    try:
        for charset, group in groupby(_WORD.findall(words[0]), key=lambda word: str(word[0]).lower()):
            content = b"".join(
                a2b_base64(f"{text}==") if kind in "bB" else a2b_qp(text.encode(), header=True)
                for _, kind, text in group
            )
            pieces.append(content.decode(codec_of(charset) or "ascii", "replace"))
    except ValueError:
        return words[0]  # stays as it is written
    return "".join(pieces)


def _plain(value: str, encoding: str = "utf-8") -> str:
    """Return a value of a header; the email package makes a surrogate of each byte that is not ASCII."""
    with suppress(UnicodeEncodeError):
        value.encode()
        return value
    return value.encode("utf-8", "surrogateescape").decode(encoding, "replace")
