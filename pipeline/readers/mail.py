"""E-mail: messages in files of their own (.eml) and in mailboxes (.mbox). The raw text is the body of the message.

Plain text is preferred to HTML, and the lines of both stay as they are, quoted ones included. Attachments are named in
``meta`` and never opened.
"""

import re
from binascii import a2b_base64, a2b_qp
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from email import message_from_bytes
from email.errors import InvalidBase64LengthDefect
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import parsedate_to_datetime
from itertools import groupby
from typing import Any

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.encoding_labels import codec_of
from concord.pipeline.readers.encodings import Decoded, Encoding, decode, encoding_of
from concord.pipeline.readers.extracting import PositionedReader, as_record_errors
from concord.pipeline.readers.fields import Record
from concord.pipeline.readers.html import read_page
from concord.pipeline.readers.reader import RecordStream
from concord.pipeline.readers.records import RecordError, too_large
from concord.pipeline.readers.streams import LineStream, with_codecs
from concord.pipeline.readers.text import TextReader

_NAMES = ("subject", "date", "from", "to", "cc", "message_id")
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
_FROM = b"From "
_DATED = re.compile(rb"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]?\d \d\d:\d\d")
_HEADER = re.compile(rb"[!-9;-~]+:")
_QUOTED_FROM = re.compile(rb"(?m)^>(>*From )")


class MailReader(TextReader):
    """Reads files of one message each."""

    suffixes = with_codecs(".eml")
    libraries = ("resiliparse",)

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        text, meta = read_mail(content, config)
        return text._replace(meta=orjson.dumps(meta, option=orjson.OPT_SORT_KEYS).decode() if meta else None, parts=())


class MailboxReader(PositionedReader):
    """Reads files of many messages, each of which begins at a line ``From ...``; positions are bytes."""

    suffixes = with_codecs(".mbox")
    libraries = ("resiliparse",)

    @override
    def open(self, path: str, config: ReaderConfig, *, columns: Sequence[str] | None = None) -> RecordStream:
        return Mailbox(path, config, columns)


def read_mail(content: bytes, config: ReaderConfig) -> tuple[Decoded, dict[str, Any]]:
    """Return the text of a message, and what becomes its meta.

    Raises:
        RecordError: when it is no message, or a part that it shows cannot be read.
    """
    if _LONG.search(content) or content.count(b"\n") * min(content.count(b"boundary"), 300) > _MOST_TESTS:
        raise RecordError(
            "message_too_complex", "expected short headers and parts nested a few deep, got many more; remove it"
        )
    with as_record_errors("message"):
        content = content.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
        message = message_from_bytes(_FOLDED.sub(_with_whole_boundary, content))
        if not message.keys():
            raise RecordError("invalid_message", "expected an e-mail with headers, got none; fix the file or remove it")
        attachments: list[str] = []
        texts = [_text(part, config) for part in _shown(message, attachments, config)]
        if not texts and message.get_content_type() in _ENCRYPTED:
            raise RecordError("encrypted", "expected a message that can be read, got an encrypted one; decrypt it")
        first = next((text for text in texts if not text.text.isascii()), texts[0] if texts else Decoded("", None))
        text, replaced = "\n".join(text.text for text in texts), sum(text.replaced for text in texts)
        meta: dict[str, Any] = _meta(message, config)
        if attachments:
            meta["attachments"] = attachments
        return first._replace(text=text, replaced=replaced), meta


def _with_whole_boundary(header: re.Match[bytes]) -> bytes:
    """Return a header in one line if it states a boundary, which the email package does not find in two."""
    return re.sub(rb"\r?\n", b"", header[0]) if b"boundary" in header[0].lower() else header[0]


def _shown(part: Message, attachments: list[str], config: ReaderConfig) -> Iterator[Message]:
    """Yield the texts that a mail program shows, in order, and note the names of what it would attach."""
    kind = part.get_content_type()
    if part.get_content_disposition() == "attachment" or not (part.is_multipart() or kind in (_TEXT, _HTML)):
        if kind.startswith("multipart/") and not part.is_multipart():
            if not _content(part).strip():
                return
            raise RecordError(
                "invalid_message", f"expected the parts of a {kind}, found none; the message may be truncated"
            )
        attachments.append(_header(part.get_filename() or kind, config))
    elif kind == "multipart/alternative":
        choices = [list(_shown(child, attachments, config)) for child in _children(part)]
        yield from next(filter(_is_plain, choices), None) or next(filter(None, reversed(choices)), [])
    elif part.is_multipart():
        for child in _children(part):
            yield from _shown(child, attachments, config)
    else:
        yield part


def _children(part: Message) -> list[Any]:
    children = part.get_payload()
    return children if isinstance(children, list) else []


def _is_plain(parts: Sequence[Message]) -> bool:
    return any(part.get_content_type() == _TEXT and _content(part).strip() for part in parts)


def _content(part: Message) -> bytes:
    content = part.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""


def _text(part: Message, config: ReaderConfig) -> Decoded:
    content, charset = _content(part), part.get_content_charset()
    if any(isinstance(defect, InvalidBase64LengthDefect) for defect in part.defects):
        raise RecordError("invalid_base64", "expected a part in base64, got other characters; fix the message")
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


def _meta(message: Message, config: ReaderConfig) -> dict[str, Any]:
    """Return the headers that become meta, decoded; an undecodable byte of theirs does not cost the message."""
    found: dict[str, list[str]] = {}
    for header, value in message.raw_items():
        if (name := header.lower().replace("-", "_")) in _NAMES:
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


class Mailbox:
    """The messages of a file.

    Attributes:
        position: the byte at which the next message starts.
    """

    def __init__(self, path: str, config: ReaderConfig, columns: Sequence[str] | None) -> None:
        self.position = 0
        self._config = config
        self._with_text = columns is None or config.text_field in columns
        self._stream = LineStream(path, config.model_copy(update={"encoding": "utf-8"}))
        # Lines, or errors in place of lines, and where they end: two are read ahead.
        self._ahead: deque[tuple[bytes | RecordError, int]] = deque()

    def read(self) -> Record | None:
        """Read the next message; None at the end of the file."""
        start, lines = self.position, list[bytes]()
        fault: RecordError | None = None
        before = b"\n"
        while self._has_more() and not (self.position > start and self._is_start(before)):
            line, self.position = self._ahead.popleft()
            if isinstance(line, RecordError):
                fault = fault or line
            elif self.position - start > self._config.max_record_bytes:
                fault, before = fault or too_large(self._config.max_record_bytes), line
            else:
                lines.append(line)
                before = line
        if self.position == start:
            return None
        if fault is None and not lines[0].startswith(_FROM):
            if not any(map(bytes.strip, lines)):
                return self.read()
            fault = RecordError("invalid_mbox", f"expected a line that begins with 'From ', got {lines[0][:20]!r}")
        if fault is not None:
            return Record(start, self.position, fault, self.position - start)
        return self._record(start, b"".join(lines[1:]))

    def skip_to(self, position: int) -> None:
        """Skip forward to the start of a message."""
        if position > self.position:
            self._ahead.clear()
            self._stream.skip_to(position)
            self.position = position

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _record(self, start: int, content: bytes) -> Record:
        size = self.position - start
        content = _QUOTED_FROM.sub(rb"\1", content)
        try:
            if not self._with_text:
                is_named = self._config.id_field in _NAMES
                fields = _meta(BytesHeaderParser().parsebytes(content), self._config) if is_named else {}
                return Record(start, self.position, fields, size)
            text, meta = read_mail(content, self._config)
        except RecordError as error:
            return Record(start, self.position, error.with_traceback(None), size)
        encoding = None if text.encoding is None else Encoding(text.encoding, text.confidence)
        fields = {**meta, self._config.text_field: text.text}
        return Record(start, self.position, fields, size, encoding, text.replaced, parts=())

    def _has_more(self) -> bool:
        """Read two lines ahead; tell whether there is one."""
        while len(self._ahead) < 2:
            try:
                line: bytes | RecordError = self._stream.read_line()
            except RecordError as error:
                line = error.with_traceback(None)
            if not line:
                break
            self._ahead.append((line, self._stream.position))
        return bool(self._ahead)

    def _is_start(self, before: bytes) -> bool:
        """Tell whether a message begins at the next line: a header follows, and a blank line or its date shows it."""
        line, after = self._ahead[0][0], self._ahead[-1][0]
        if isinstance(line, RecordError) or isinstance(after, RecordError) or not line.startswith(_FROM):
            return False
        is_shown = not before.strip() or _DATED.search(line) is not None
        return is_shown and len(self._ahead) > 1 and _HEADER.match(after) is not None
