"""E-mail: messages in files of their own (.eml) and in mailboxes (.mbox). The raw text is the body of the message.

Attachments are named in ``meta``, and are records of their own if ``reader.attachments`` asks for them.
"""

import re
from binascii import a2b_base64, a2b_qp
from codecs import decode as decode_by
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from email.utils import parsedate_to_datetime
from functools import partial
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import PurePath
from typing import Any, NamedTuple, cast

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.errors import InputError
from concord.pipeline.readers.base import ArchiveReader, FileReader, Reader, Record, as_record_errors, meta_of
from concord.pipeline.readers.extraction import EXTRACTION, outcome
from concord.pipeline.readers.files import Decoded, LineStream, decode, encoding_of, read_whole, with_codecs
from concord.pipeline.readers.records import RecordError, ScannedRecord, too_large
from concord.pipeline.readers.web import read_page
from concord.pipeline.storage.files import file_state

HEADERS = ("subject", "date", "from", "to", "cc", "message_id")
_MOST_DEPTH = 20

_MESSAGES = ("message/rfc822", "message/global", "message/news")
_FILES = re.compile(r"text/(?:calendar|css|csv|directory|javascript|rfc822-headers|rtf|(?:x-)?vcard|xml)")
"""Kinds of text that mail programs do not show as they are written."""
_NOT_READ = re.compile(r"(?:image|audio|video)/|application/(?:pgp|(?:x-)?pkcs7)-signature|text/rfc822-headers")

_ENVELOPE = re.compile(rb"\s*+(?:>?From [^\n]*+\n)*+")
_HEADER = re.compile(rb"([!-9;-~]*+)[ \t]*+:([^\n]*+(?:\n[ \t][^\n]*+)*+)\n?")
_ENRICHED = re.compile(r"(?i)<param>[^<]*+</param>|</?[a-z-]++>|<(?=<)")
_FLOWED = re.compile(r"(?m)^(>*+)(?! ?-- $).*(?:(?<=[^>\n] )\n\1(?!>) ?+(?!-- $).*)+")
_WORD = r"=\?[^?\s]+\?[bBqQ]\?[^?]*\?="
_WORDS = re.compile(rf"{_WORD}(?:\s*{_WORD})*")

_DATED = re.compile(rb"From .*[A-Z][a-z]{2},? +(?:[A-Z][a-z]{2} +\d{1,2}|\d{1,2} +[A-Z][a-z]{2} +\d{4}) +\d\d:\d\d")
_OF_GIT = re.compile(rb"From [0-9a-f]{40,64} Mon Sep 17 00:00:00 2001\s*\Z")
"""The line above a patch, which nobody has sent; it begins a message in files of patches alone."""
_AFTER_FROM = re.compile(rb">?From |[!-9;-~]+:")
_QUOTED_FROM = re.compile(rb"\n>(>*From )")
_Content = bytes | RecordError


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

    def __init__(self, format_of: Callable[[str], str | None], reader_for: Callable[[str], Reader]) -> None:
        self._by_name = format_of
        self._reader_for = reader_for

    @override
    def extract(self, record: Record, config: ReaderConfig) -> Decoded:
        if not record.attachment:
            return read_message(record.content, config)
        attachment: Attachment = record.content
        try:
            with as_record_errors(f"file of the type {attachment.kind}"):
                found = self._read_attachment(attachment, config)
        except RecordError as error:
            raise RecordError(error.code, f"attachment {record.attachment} ({attachment.name!r}): {error}") from None
        meta = orjson.loads(found.meta or "{}") | {"file": attachment.name, "message": attachment.message}
        return found._replace(meta=meta_of(meta, config=config)[0])

    def records(self, message: Record, config: ReaderConfig, first: int) -> Iterator[Record]:
        """Yield those from ``first`` on of a message and, if that is wanted, what it attaches, each a byte later."""
        attached: list[Attachment] | RecordError = []
        if config.attachments and isinstance(message.content, bytes):
            (attached,) = EXTRACTION.each(take_apart, [(message.content, config)], config=config)
        if isinstance(attached, RecordError):
            message, attached = message._replace(content=attached), []
        digest = message.source_sha256
        for number, content in enumerate([message.content, *attached]):
            start = message.start + number
            end = start + 1 if number < len(attached) else max(message.end, start + 1)
            source = sha256(f"{digest}#{number}".encode()).hexdigest() if number else digest
            if start >= first:
                yield message._replace(start=start, end=end, content=content, attachment=number, digest=source)

    def _read_attachment(self, attachment: Attachment, config: ReaderConfig) -> Decoded:
        content, format = attachment.content, self._format_of(attachment)
        if isinstance(content, RecordError):
            raise content
        if format == "eml":
            return read_message(content, config)
        if format in ("text", "html"):
            return _decoded(content, f"text/{format}", attachment.charset, config)
        try:
            reader = self._reader_for(format) if format else None
        except InputError as error:
            raise RecordError("missing_library", f"{error}, and retry it") from None
        if not isinstance(reader, FileReader):
            reason = f"expected a file of a format that holds one document, got {attachment.kind}; save it as a file"
            raise RecordError("unknown_format", reason)
        return reader.extract(content, config)

    def _format_of(self, attachment: Attachment) -> str | None:
        """Return the format that the name of an attachment states, or else its type."""
        kind = attachment.kind
        if kind in _MESSAGES:  # which is no file: "RE: report.pdf" is only what somebody calls it
            return "eml"
        is_text = kind.startswith(("text/", "message/")) and not _FILES.match(kind)
        # Only the last suffix of the name, since a compressed file is not read.
        names = PurePath(attachment.name).suffix, f".{kind.partition('/')[2].partition('+')[0]}"
        return self._by_name(f"a{names[0]}") or self._by_name(f"a{names[1]}") or ("text" if is_text else None)


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
        content = outcome(partial(read_whole, config=config), path)
        yield from self.records(Record(0, 1, content), config, start)


class MailboxReader(_MessageReader):
    """Reads files of many messages, each of which begins at a line ``From ...``; positions are bytes."""

    suffixes = with_codecs(".mbox")

    @override
    def finds(self, path: str, config: ReaderConfig) -> bool:
        return super().finds(path, config) and not config.attachments

    @override
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[Record]:
        with closing(LineStream(path, config.model_copy(update={"encoding": "utf-8"}))) as lines:
            for message in split_mailbox(lines, 0 if config.attachments else start, config):
                if isinstance(message.content, bytes) and config.id_field in HEADERS:
                    headers = headers_of(_parse(message.content, config))
                    message = message._replace(doc_id=headers.get(config.id_field))
                yield from self.records(message, config, start)


def split_mailbox(stream: LineStream, start: int, config: ReaderConfig) -> Iterator[Record]:
    """Yield messages, from one that begins at ``start`` on."""
    lines = stream.lines()
    first = next(lines, (b"", 0))
    has_patches = isinstance(first[0], bytes) and _OF_GIT.match(first[0]) is not None
    if start:
        stream.skip_to(start)
    taken, position = list[_Content](), start
    for (line, end), (after, _) in pairwise(chain(() if start else (first,), lines, [(b"", 0)])):
        if isinstance(line, bytes) and line.startswith(b"From ") and _begins(line, after, has_patches):
            yield from _whole(start, position, taken)
            taken, start = [], position
        if end - start > config.max_record_bytes:
            taken, line = [], too_large(config.max_record_bytes)
        taken.append(line)
        position = end
    yield from _whole(start, position, taken)


def read_message(content: bytes, config: ReaderConfig) -> Decoded:
    """Return the text of a message, with its headers and the names of its attachments as meta."""
    message, attached = _parse(content, config), list[_Part]()
    if not message.keys():
        raise RecordError("invalid_message", "expected an e-mail with headers, got none; fix the file or remove it")
    texts = [_shown_text(part) for part in _shown(message, attached)]
    is_sealed = any(text.text.lstrip().startswith("-----BEGIN PGP MESSAGE-----") for text in texts)
    if is_sealed or (not texts and message.kind.endswith(("/encrypted", "pkcs7-mime"))):
        raise RecordError("encrypted", "expected a message that can be read, got an encrypted one; decrypt it")
    first = max(texts, key=lambda text: not text.text.isascii(), default=Decoded("", None))
    ended = (text.text.removesuffix("\n") + "\n\n" for text in texts[:-1])
    whole = "".join([*ended, *(text.text for text in texts[-1:])])
    meta: dict[str, Any] = headers_of(message)
    if attached:
        meta["attachments"] = [part.name for part in attached]
    replaced = sum(text.replaced for text in texts)
    return first._replace(text=whole, replaced=replaced, meta=meta_of(meta, config=config)[0])


def headers_of(message: Message) -> dict[str, Any]:
    """Return the headers that become meta, decoded."""
    found = {name: message.get_all(name.replace("_", "-"), []) for name in HEADERS}
    meta = {name: _on_one_line(", ".join(values)) for name, values in found.items() if values}
    with suppress(KeyError, ValueError, TypeError, IndexError, OverflowError):  # else it stays as it is written
        meta["date"] = parsedate_to_datetime(meta["date"]).isoformat()
    return meta


def take_apart(content: bytes, config: ReaderConfig, depth: int = 0) -> list[Attachment]:
    """Return what a message attaches, in order, each message among it followed by its own; none if it cannot be read.

    Pictures, sounds, films and signatures are left out.
    """
    parts, found = list[_Part](), list[Attachment]()
    with suppress(RecordError), as_record_errors("message"):  # the message itself is then the dead letter
        message = _parse(content, config, depth)
        _shown(message, parts)
        headers = headers_of(message)
        for part in parts:
            if not _NOT_READ.match(part.kind):
                attached = outcome(part.content)
                found.append(Attachment(part.name, part.kind, part.get_content_charset(), attached, headers))
                if part.kind in _MESSAGES and isinstance(attached, bytes):
                    found += take_apart(attached, config, part.depth + 1)
    return found


def _whole(start: int, end: int, lines: Sequence[_Content]) -> Iterator[Record]:
    """Yield a message of such lines, or why it cannot be read; nothing for blank lines."""
    fault = next((line for line in lines if isinstance(line, RecordError)), None)
    content = b"" if fault else b"".join(cast(Sequence[bytes], lines)).lstrip()
    if fault is None and content and not content.startswith(b"From "):
        fault = RecordError("invalid_mbox", f"expected a line that begins with 'From ', got {content[:20]!r}")
    if fault or content:
        yield Record(start, end, fault or _QUOTED_FROM.sub(rb"\n\1", content))


def _begins(line: bytes, after: _Content, has_patches: bool) -> bool:
    """Tell whether a line begins a message: it has a date, and a header follows."""
    is_followed = isinstance(after, bytes) and _AFTER_FROM.match(after)
    return bool(is_followed and _DATED.match(line)) and (has_patches or not _OF_GIT.match(line))


class _Part(Message):
    """A message or a part of one; ``written`` is what follows its headers."""

    def __init__(self, content: bytes, config: ReaderConfig, depth: int) -> None:
        if depth > _MOST_DEPTH:
            reason = f"expected parts that are nested at most {_MOST_DEPTH} deep, got deeper ones; remove the message"
            raise RecordError("message_too_complex", reason)
        super().__init__()
        encoding = "utf-8" if config.encoding == "auto" else config.encoding
        end = 0
        while header := _HEADER.match(content, end):
            end, name = header.end(), header[1].decode()
            value = header[2].translate(None, b"\r\n").strip().decode(encoding, "replace")
            if name.lower().startswith("content-"):
                value = ";".join(value.split(";", 100)[:100])  # Python takes time that grows with their square
            self[name] = value
        self.kind = self.get_content_type().split()[0]
        self.written = content[end:].removeprefix(b"\r").removeprefix(b"\n")
        self.config, self.depth = config, depth

    @property
    def name(self) -> str:
        """That of its file, or else its kind."""
        return _on_one_line(self.get_filename() or self.kind)

    def parts(self) -> list["_Part"]:
        """Return what is between the boundaries of a multipart, in which other parts may be."""
        mark, found = f"\n--{self.get_boundary()}".encode(), list[bytes]()
        for piece in (b"\n" + self.written).split(mark)[1:]:
            behind, _, part = piece.partition(b"\n")
            if behind.strip() == b"--":
                break
            if not behind.strip():
                found.append(part)
            elif found:  # another boundary, which begins like this one
                found[-1] += mark + piece
        return [_Part(part.removesuffix(b"\r"), self.config, self.depth + 1) for part in found]

    def content(self) -> bytes:
        """Return what it was before it was written; RecordError where that cannot be told."""
        # Only the name of the encoding counts, whatever is before and behind it.
        encoding = re.sub(r"^\W*([\w-]*).*", r"\1", self.get("content-transfer-encoding", "").lower())
        if encoding == "quoted-printable":
            return a2b_qp(self.written)
        try:
            if "uu" in encoding:
                return decode_by(self.written, "uu")
            if encoding == "base64":
                # Python passes over what is no base64, and over all that is behind the first padding.
                pieces = filter(None, b"".join(self.written.split()).split(b"="))
                return b"".join(a2b_base64(piece + b"=" * (-len(piece) % 4), strict_mode=True) for piece in pieces)
        except ValueError:
            if self.kind not in _MESSAGES:  # which may not be encoded although they say so
                reason = f"expected a part in {encoding}, got other characters; fix the message"
                raise RecordError("invalid_base64", reason) from None
        return self.written


def _parse(content: bytes, config: ReaderConfig, depth: int = 0) -> _Part:
    """Return a message."""
    if b"\n" not in content:
        content = content.replace(b"\r", b"\n")
    return _Part(_ENVELOPE.sub(b"", content.removeprefix(b"\xef\xbb\xbf"), count=1), config, depth)


def _shown(part: _Part, attached: list[_Part]) -> list[_Part]:
    """Return the texts that a mail program shows, in order, and note what it would attach."""
    is_shown = part.kind.startswith(("text/", "multipart/", *_MESSAGES)) and not _FILES.fullmatch(part.kind)
    if not is_shown or part.get_content_disposition() == "attachment":
        attached.append(part)
        return []
    if part.kind in _MESSAGES:
        return _shown(_parse(part.content(), part.config, part.depth + 1), attached)
    if not part.kind.startswith("multipart/"):
        return [part]
    choices = [_shown(child, attached) for child in part.parts()]
    if not choices and part.written.strip():
        reason = f"expected the parts of a {part.kind}, found none; the message may be truncated"
        raise RecordError("invalid_message", reason)
    return _best(choices) if part.kind == "multipart/alternative" else list(chain.from_iterable(choices))


def _best(choices: Sequence[list[_Part]]) -> list[_Part]:
    """Return the one of alternative texts that is plain and not blank, or else the last."""
    plain = (
        choice for choice in choices if any(part.kind == "text/plain" and part.content().strip() for part in choice)
    )
    return next(plain, None) or next(filter(None, reversed(choices)), [])


def _shown_text(part: _Part) -> Decoded:
    decoded = _decoded(part.content(), part.kind, part.get_content_charset(), part.config)
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


def _codec(label: str) -> str | None:
    """Return Python's name of a charset; some say nothing of bytes beyond ASCII."""
    found = re.search(r"[\w.:+-]+", label.lower())
    return None if found is None or found[0] in ("ascii", "us-ascii", "unknown-8bit") else codec_of(found[0])


def _unflowed(text: str, *, delete_space: bool) -> str:
    """Join lines that end in a space (RFC 3676) with those after them that are quoted as often."""
    end = " \n" if delete_space else "\n"
    joined = _FLOWED.sub(lambda lines: re.sub(f"{end}{lines[1]} ?", "", lines[0]), text)
    return re.sub("(?m)^ ", "", joined)


def _on_one_line(value: str) -> str:
    """Return the text of a header, with its encoded words (RFC 2047) decoded."""
    return " ".join(_WORDS.sub(_decoded_words, value).split())


def _decoded_words(words: re.Match[str]) -> str:
    """Decode words of which only white space is between them; a character may be split over two of one charset."""
    with suppress(HeaderParseError):  # else they stay as they are written
        return "".join(
            content.decode(_codec(str(charset).partition("*")[0]) or "ascii", "replace")
            for content, charset in decode_header(words[0])
        )
    return words[0]
