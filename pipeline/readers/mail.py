"""E-mail: messages in files of their own (.eml) and in mailboxes (.mbox). The raw text is the body of the message.

Attachments are named in ``meta``, and are records of their own if ``reader.attachments`` asks for them.
"""

import re
from binascii import Error, a2b_base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from email.parser import BytesFeedParser, BytesHeaderParser
from email.policy import Compat32
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import PurePath
from typing import Any, NamedTuple, cast

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.errors import InputError
from concord.pipeline.readers.base import ArchiveReader, FileReader, Reader, Record, as_record_errors, meta_of
from concord.pipeline.readers.extraction import isolated
from concord.pipeline.readers.files import Decoded, LineStream, decode, encoding_of, read_whole, with_codecs
from concord.pipeline.readers.records import RecordError, ScannedRecord, too_large
from concord.pipeline.readers.web import read_page
from concord.pipeline.storage.atomic_writes import CODECS
from concord.pipeline.storage.files import file_state

HEADERS = ("subject", "date", "from", "to", "cc", "message_id")
_MOST_DEPTH = 20
_MOST_PARTS = 10_000
_TOO_COMPLEX = f"expected at most {_MOST_PARTS:,} parts that are nested at most {_MOST_DEPTH} deep, got more; remove it"
_MOST_PARAMETERS = 100  # of a header, since Python takes time that grows with the square of them

_TEXT = "text/plain"
_MESSAGES = ("message/rfc822", "message/global", "message/news")
_FILES = re.compile(r"text/(?:calendar|css|csv|directory|javascript|rfc822-headers|rtf|(?:x-)?vcard|xml)")
"""Kinds of text that mail programs do not show as they are written."""
_ENCRYPTED = ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime")
_SEALED = "-----BEGIN PGP MESSAGE-----"
_NOT_READ = re.compile(r"(?:image|audio|video)/|application/(?:pgp|(?:x-)?pkcs7)-signature|text/rfc822-headers")

_ENVELOPE = re.compile(rb"\s*+(?:>?From [^\n]*+\n)*+")
_BLANK = re.compile(rb"\n\r?\n")
_SPACED = re.compile(rb"(?m)^([!-9;-~]++)[ \t]++:")
_ENRICHED = re.compile(r"(?i)<param>[^<]*+</param>|</?[a-z-]++>|<(?=<)")
_WORD = r"=\?[^?\s]+\?[bBqQ]\?[^?]*\?="
_WORDS = re.compile(rf"{_WORD}(?:\s*{_WORD})*")

_DATED = re.compile(rb"From .*[A-Z][a-z]{2},? +(?:[A-Z][a-z]{2} +\d{1,2}|\d{1,2} +[A-Z][a-z]{2} +\d{4}) +\d\d:\d\d")
_ADDRESS = re.compile(rb"From <?[^\s@]+@\S+")
_OF_GIT = re.compile(rb"From [0-9a-f]{40,64} Mon Sep 17 00:00:00 2001\s*\Z")
"""The line above a patch, which nobody has sent; it begins a message in files of patches alone."""
_AFTER_FROM = re.compile(rb">?From |[!-9;-~]+:")
_QUOTED_FROM = re.compile(rb"(?m)^>(>*From )")
_Content = bytes | RecordError
_FormatOf = Callable[[str], str | None]


class Attachment(NamedTuple):
    """What a message attaches, with the headers of that message."""

    name: str
    kind: str
    charset: str | None
    content: _Content
    message: Mapping[str, Any]


class _MessageReader(ArchiveReader):
    libraries = ("resiliparse",)
    used_if_there = ("lxml", "pypdfium2")
    """The packages for what may be attached: mail is read without them, but another release may find another text."""

    def __init__(self, format_of: _FormatOf, reader_for: Callable[[str], Reader]) -> None:
        """Prepare to read attachments, whose formats and readers two functions know."""
        self._format_of = format_of
        self._reader_for = reader_for

    @override
    def extract(self, raw: Record, config: ReaderConfig) -> Decoded:
        if raw.attachment:
            return self._read_attachment(raw.attachment, raw.content, config)
        return read_message(raw.content, config)

    def records(self, message: Record, config: ReaderConfig) -> Iterator[Record]:
        """Yield a message, and what it attaches if that is wanted, the n-th of which is said to start n bytes later."""
        attached: list[Attachment] = []
        if config.attachments and isinstance(message.content, bytes):
            try:
                attached = isolated(take_apart, message.content, config, config=config)
            except RecordError as error:
                message = message._replace(content=error)
        digest = message.source_sha256
        for number, content in enumerate([message.content, *attached]):
            yield message._replace(
                start=message.start + number,
                end=message.end if number == len(attached) else message.start + number + 1,
                content=content,
                attachment=number,
                digest=sha256(f"{digest}#{number}".encode()).hexdigest() if number else digest,
            )

    def _read_attachment(self, number: int, attachment: Attachment, config: ReaderConfig) -> Decoded:
        """Return the text of an attachment; its meta is what its file says, and which message it is from."""
        try:
            with as_record_errors("attachment"):
                found = self._read_file(attachment, config)
        except RecordError as error:
            raise RecordError(error.code, f"attachment {number} ({attachment.name!r}): {error}") from None
        meta = orjson.loads(found.meta or "{}") | {"file": attachment.name, "message": attachment.message}
        return found._replace(meta=meta_of(meta, config=config)[0])

    def _read_file(self, attachment: Attachment, config: ReaderConfig) -> Decoded:
        content, format = attachment.content, _format_of(attachment, self._format_of)
        if isinstance(content, RecordError):
            raise content
        if format == "eml":
            return read_message(content, config)
        if format in ("text", "html") and attachment.kind in (_TEXT, "text/html"):
            return _decoded(content, attachment.kind, attachment.charset, config)
        try:
            reader = self._reader_for(format) if format else None
        except InputError as error:
            raise RecordError("missing_library", f"{error}, and retry it") from None
        if not isinstance(reader, FileReader):
            reason = f"expected a file of a format that holds one document, got {attachment.kind}; save it as a file"
            raise RecordError("unknown_format", reason)
        return reader.extract(content, config)


class MailReader(_MessageReader):
    """Reads files of one message each, and maybe what it attaches."""

    suffixes = with_codecs(".eml")
    unit = ""

    @override
    def id_of(self, record: Record, name: str, config: ReaderConfig) -> str:
        return super().id_of(record._replace(doc_id=name), name, config)

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        if config.attachments:
            yield from super().scan(path, name=name, config=config)
        else:
            yield ScannedRecord(position=0, end=1, size=file_state(path).size, doc_id=name)

    @override
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[Record]:
        try:
            content: bytes | RecordError = read_whole(path, config=config)
        except RecordError as error:
            content = error
        for raw in self.records(Record(0, 1, content), config):
            if raw.start >= start:
                yield raw._replace(end=raw.start + 1)


class MailboxReader(_MessageReader):
    """Reads files of many messages, each of which begins at a line ``From ...``; positions are bytes."""

    suffixes = with_codecs(".mbox")

    @override
    def finds(self, path: str, config: ReaderConfig) -> bool:
        return super().finds(path, config) and not config.attachments

    @override
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[Record]:
        with closing(LineStream(path, config.model_copy(update={"encoding": "utf-8"}))) as lines:
            for begin, end, content in split_mailbox(lines, 0 if config.attachments else start, config):
                doc_id = None
                if isinstance(content, bytes) and config.id_field in HEADERS:
                    headers = BytesHeaderParser(_Part, policy=_POLICY).parsebytes(content)
                    doc_id = headers_of(headers, config).get(config.id_field)
                message = Record(begin, end, content, doc_id=doc_id)
                yield from (raw for raw in self.records(message, config) if raw.start >= start)


def split_mailbox(stream: LineStream, start: int, config: ReaderConfig) -> Iterator[tuple[int, int, _Content]]:
    """Yield where messages begin and end, and their content, from one that begins at ``start`` on."""
    lines = stream.lines()
    first = next(lines, (b"", 0))
    has_patches = isinstance(first[0], bytes) and _OF_GIT.match(first[0]) is not None
    if start:
        stream.skip_to(start)
    taken, position, is_apart = list[_Content](), start, True
    for (line, end), (after, _) in pairwise(chain(() if start else (first,), lines, [(b"", 0)])):
        if position > start and _begins(line, after, is_apart=is_apart, has_patches=has_patches):
            if taken:
                yield start, position, _whole(taken)
            taken, start = [], position
        is_apart = isinstance(line, bytes) and not line.strip()
        if end - start > config.max_record_bytes:
            taken = [too_large(config.max_record_bytes)]
        elif taken or not is_apart:
            taken.append(line)
        position = end
    if taken:
        yield start, position, _whole(taken)


def read_message(content: bytes, config: ReaderConfig) -> Decoded:
    """Return the text of a message, with its headers and the names of its attachments as meta."""
    message, attached = _parse(content), list[_Part]()
    if not message.keys():
        raise RecordError("invalid_message", "expected an e-mail with headers, got none; fix the file or remove it")
    texts = [_shown_text(part, config) for part in _shown(message, attached)]
    if any(text.text.lstrip().startswith(_SEALED) for text in texts) or (not texts and message.kind in _ENCRYPTED):
        raise RecordError("encrypted", "expected a message that can be read, got an encrypted one; decrypt it")
    first = max(texts, key=lambda text: not text.text.isascii(), default=Decoded("", None))
    ended = [text.text if text.text.endswith("\n") else f"{text.text}\n" for text in texts[:-1]]
    whole = "\n".join([*ended, *(text.text for text in texts[-1:])])
    meta: dict[str, Any] = headers_of(message, config)
    if attached:
        meta["attachments"] = [_name_of(part, config) for part in attached]
    replaced = sum(text.replaced for text in texts)
    return first._replace(text=whole, replaced=replaced, meta=meta_of(meta, config=config)[0])


def headers_of(message: Message, config: ReaderConfig) -> dict[str, Any]:
    """Return the headers that become meta, decoded; an undecodable byte of theirs does not cost the message."""
    found: dict[str, list[str]] = {}
    for header, value in message.items():
        if (name := header.lower().replace("-", "_")) in HEADERS:
            found.setdefault(name, []).append(_header(value, config))
    meta = {name: ", ".join(values) for name, values in found.items()}
    with suppress(KeyError, ValueError, TypeError, IndexError, OverflowError):  # else it stays as it is written
        meta["date"] = parsedate_to_datetime(meta["date"]).isoformat()
    return meta


def take_apart(content: bytes, config: ReaderConfig) -> list[Attachment]:
    """Return what a message attaches, in order, each message among it followed by its own; none if it cannot be read.

    Pictures, sounds, films and signatures are left out.
    """
    with suppress(RecordError), as_record_errors("message"):  # the message itself is then the dead letter
        return list(_attached(_parse(content), config))
    return []


def _whole(lines: Sequence[_Content]) -> _Content:
    for line in lines:
        if isinstance(line, RecordError):
            return line
    content = b"".join(cast(Sequence[bytes], lines))
    if not content.startswith(b"From "):
        return RecordError("invalid_mbox", f"expected a line that begins with 'From ', got {content[:20]!r}")
    return _QUOTED_FROM.sub(rb"\1", content[len(cast(bytes, lines[0])) :])


def _begins(line: _Content, after: _Content, *, is_apart: bool, has_patches: bool) -> bool:
    """Tell whether a line begins a message: with a date, or an address after a blank line; a header follows."""
    if not (isinstance(line, bytes) and line.startswith(b"From ") and isinstance(after, bytes)):
        return False
    is_sent = _DATED.match(line) or (is_apart and _ADDRESS.match(line))
    return bool(is_sent and _AFTER_FROM.match(after)) and (has_patches or not _OF_GIT.match(line))


class _Policy(Compat32):
    """Reads headers in one line, and only the name of an encoding. Python's own policies fail at some real headers."""

    @override
    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, _, value = "".join(sourcelines).replace("\r", "").replace("\n", "").partition(":")
        if name.lower() == "content-transfer-encoding":
            word = re.search(r"[\w-]+", value)
            value = word[0].lower() if word else ""
        if name.lower() in ("content-type", "content-disposition"):
            value = ";".join(value.split(";", _MOST_PARAMETERS)[:_MOST_PARAMETERS])
        return name, value.strip()

    @override
    def header_fetch_parse(self, name: str, value: str) -> str:
        return value


_POLICY = _Policy()


class _Part(Message):
    """A message or a part of one. Messages within it are not taken apart, since they may be encoded."""

    def __init__(self, policy: Compat32 = _POLICY, depth: int = 0) -> None:
        super().__init__(policy)
        self.depth = depth

    @cached_property
    def kind(self) -> str:
        """The content type."""
        return super().get_content_type().split()[0]

    @override
    def get_content_type(self) -> str:
        return self.kind.replace("message/", "text/")

    @override
    def attach(self, payload: Any) -> None:
        super().attach(payload)
        payload.depth = self.depth + 1
        if payload.depth > _MOST_DEPTH or len(cast(list[_Part], self.get_payload())) > _MOST_PARTS:
            raise RecordError("message_too_complex", _TOO_COMPLEX)


def _parse(content: bytes, depth: int = 0) -> _Part:
    """Return a message; RecordError where it has too many parts."""
    if depth > _MOST_DEPTH:
        raise RecordError("message_too_complex", _TOO_COMPLEX)
    content = _ENVELOPE.sub(b"", content.removeprefix(b"\xef\xbb\xbf"), count=1)
    end = blank.end() if (blank := _BLANK.search(content)) else len(content)
    head = _SPACED.sub(rb"\1:", content[:end])
    message = _parsed(head, depth)
    if message.get_payload() or message.kind.startswith("multipart/"):
        return _parsed(head + content[end:], depth)
    message.set_payload(content[end:].decode("ascii", "surrogateescape"))  # much faster than line by line
    return message


def _parsed(content: bytes, depth: int) -> _Part:
    parser = BytesFeedParser(partial(_Part, depth=depth), policy=_POLICY)
    parser.feed(content)
    return cast(_Part, parser.close())


def content_of(part: _Part) -> bytes:
    """Return the content of a part as it was before it was written; RecordError where it cannot be."""
    if part["content-transfer-encoding"] != "base64":
        return cast(bytes, part.get_payload(decode=True))
    # Python passes over what is no base64, and over all that is behind the first padding.
    written = str(part.get_payload()).encode()
    pieces = b"".join(written.split()).split(b"=")
    try:
        return b"".join(a2b_base64(piece + b"=" * (-len(piece) % 4), strict_mode=True) for piece in pieces if piece)
    except Error:
        if part.kind in _MESSAGES:  # which is not encoded although it says so
            return written
        reason = "expected a part in base64, got other characters; fix the message"
        raise RecordError("invalid_base64", reason) from None


def _shown(part: _Part, attached: list[_Part]) -> list[_Part]:
    """Return the texts that a mail program shows, in order, and note what it would attach."""
    is_shown = part.kind.startswith(("text/", "multipart/", *_MESSAGES)) and not _FILES.fullmatch(part.kind)
    if not is_shown or part.get_content_disposition() == "attachment":
        attached.append(part)
    elif part.kind in _MESSAGES:
        return _shown(_parse(content_of(part), part.depth + 1), attached)
    elif not part.kind.startswith("multipart/"):
        return [part]
    elif part.is_multipart():
        choices = [_shown(child, attached) for child in cast(list[_Part], part.get_payload())]
        return _best(choices) if part.kind == "multipart/alternative" else list(chain.from_iterable(choices))
    elif content_of(part).strip():
        reason = f"expected the parts of a {part.kind}, found none; the message may be truncated"
        raise RecordError("invalid_message", reason)
    return []


def _best(choices: Sequence[list[_Part]]) -> list[_Part]:
    """Return the one of alternative texts that is plain and not blank, or else the last."""
    plain = (choice for choice in choices if any(part.kind == _TEXT and content_of(part).strip() for part in choice))
    return next(plain, None) or next(filter(None, reversed(choices)), [])


def _shown_text(part: _Part, config: ReaderConfig) -> Decoded:
    decoded = _decoded(content_of(part), part.kind, part.get_content_charset(), config)
    if str(part.get_param("format", "")).lower() == "flowed":
        text = _unflowed(decoded.text, delete_space=str(part.get_param("delsp", "")).lower() == "yes")
        return decoded._replace(text=text)
    return decoded


def _decoded(content: bytes, kind: str, charset: str | None, config: ReaderConfig) -> Decoded:
    stated = _codec(charset or "")
    if kind.endswith("html"):
        return read_page(content, config, charset=stated)[0]
    encoding = encoding_of(content, config.encoding, lambda: stated)
    if encoding in ("utf-8", "auto") and stated is not None and stated.startswith(("utf-16", "utf-32", "utf-7")):
        encoding = stated  # which ASCII could not state within the text
    decoded = decode(content, encoding=encoding, errors=config.errors)
    text = decoded.text.replace("\r\n", "\n")
    return decoded._replace(text=_ENRICHED.sub("", text) if kind in ("text/enriched", "text/richtext") else text)


def _name_of(part: _Part, config: ReaderConfig) -> str:
    return _header(part.get_filename() or part.kind, config)


def _attached(message: _Part, config: ReaderConfig) -> Iterator[Attachment]:
    parts: list[_Part] = []
    _shown(message, parts)
    headers = headers_of(message, config)
    for part in parts:
        if _NOT_READ.match(part.kind):
            continue
        found = Attachment(_name_of(part, config), part.kind, part.get_content_charset(), b"", headers)
        inner: list[Attachment] = []
        try:
            content = content_of(part)
            found = found._replace(content=content)
            if part.kind in _MESSAGES:
                inner = list(_attached(_parse(content, part.depth + 1), config))
        except RecordError as error:
            found = found._replace(content=error)
        yield from (found, *inner)


def _format_of(attachment: Attachment, of: _FormatOf) -> str | None:
    """Return the format that the name of an attachment states, or else its type."""
    kind = attachment.kind
    if kind in _MESSAGES:  # which is no file: "RE: report.pdf" is only what somebody calls it
        return "eml"
    if PurePath(attachment.name).suffix.lower() in CODECS:
        return None
    by_type = of(f"a.{kind.partition('/')[2].partition('+')[0]}")
    is_text = kind.startswith(("text/", "message/")) and not _FILES.match(kind)
    return of(attachment.name) or by_type or ("text" if is_text else None)


def _codec(label: str) -> str | None:
    """Return Python's name of a charset; some say nothing of bytes beyond ASCII."""
    found = re.search(r"[\w.:+-]+", label.lower())
    return None if found is None or found[0] in ("ascii", "us-ascii", "unknown-8bit") else codec_of(found[0])


def _unflowed(text: str, *, delete_space: bool) -> str:
    """Join the lines that end in a space (RFC 3676), at most with those that are quoted as often."""
    pieces: list[str] = []
    goes_on: int | None = None
    for line in text.split("\n"):
        depth = len(line) - len(line.lstrip(">"))
        content = line[depth:].removeprefix(" ")
        is_signature = content.rstrip("\r") == "-- "
        if goes_on != depth or is_signature:
            pieces.append(f"\n{line[: len(line) - len(content)] if depth else ''}")
        goes_on = depth if content.endswith(" ") and not is_signature else None
        pieces.append(content[:-1] if delete_space and goes_on is not None else content)
    return "".join(pieces)[1:]


def _header(value: str, config: ReaderConfig) -> str:
    """Return the text of a header on one line, with its encoded words (RFC 2047) decoded."""
    encoding = "utf-8" if config.encoding == "auto" else config.encoding
    text = value.encode("utf-8", "surrogateescape").decode(encoding, "replace")
    return " ".join(_WORDS.sub(_decoded_words, text).split())


def _decoded_words(words: re.Match[str]) -> str:
    """Decode words of which only white space is between them; a character may be split over two of one charset."""
    with suppress(HeaderParseError):  # else they stay as they are written
        return "".join(
            content.decode(_codec(str(charset).partition("*")[0]) or "ascii", "replace")
            for content, charset in decode_header(words[0])
        )
    return words[0]
