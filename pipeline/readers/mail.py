"""E-mail: messages in files of their own (.eml) and in mailboxes (.mbox). The raw text is the body of the message.

Attachments are named in ``meta``, and are records of their own if ``reader.attachments`` asks for them. Messages are
taken apart here and not by Python's ``email``, which reads an encoding with something behind its name as none, does not
decode messages within messages, and takes time that grows with the square of a header.
"""

import re
from binascii import Error, a2b_base64, a2b_qp, a2b_uu
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import cached_property
from hashlib import sha256
from itertools import chain, groupby, islice, pairwise
from pathlib import PurePath
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.errors import InputError
from concord.pipeline.readers.base import FORMATS, ArchiveReader, FileReader, RawRecord, as_record_errors, meta_of
from concord.pipeline.readers.extraction import isolated
from concord.pipeline.readers.files import Decoded, LineStream, decode, encoding_of, read_whole, with_codecs
from concord.pipeline.readers.records import RecordError, ScannedRecord, too_large
from concord.pipeline.readers.web import read_page
from concord.pipeline.storage.atomic_writes import CODECS
from concord.pipeline.storage.files import file_state

HEADERS = ("subject", "date", "from", "to", "cc", "message_id")
MOST_DEPTH = 50
MOST_PARTS = 10_000

_KEPT = {*HEADERS, "content_type", "content_transfer_encoding", "content_disposition"}
_TEXT = "text/plain"
_MESSAGES = ("message/rfc822", "message/global", "message/news")
_ENRICHED = ("text/enriched", "text/richtext")
_FILES = re.compile(r"text/(?:calendar|css|csv|directory|javascript|rfc822-headers|rtf|(?:x-)?vcard|xml)")
"""Kinds of text that mail programs do not show as they are written."""
_ENCRYPTED = ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime")
_SEALED = "-----BEGIN PGP MESSAGE-----"
_UNKNOWN = ("ascii", "us-ascii", "unknown-8bit")
"""Charsets that say nothing of bytes beyond ASCII."""

_HEADER = re.compile(rb"([!-9;-~]++)[ \t]*+:([^\n]*+(?:\n[ \t][^\n]*+)*+)(?:\n|\Z)")
_ENVELOPE = re.compile(rb"(?:>?From [^\n]*+\n)*+")
_BLANK = re.compile(rb"[ \t]*+\r?\n")
_KIND = re.compile(rb"\s*+([\w!#$&^.+-]++/[\w!#$&^.+-]++)")
_PARAMETER = re.compile(rb'[;\s]([^\s=;"]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"?|([^;]*+))', re.DOTALL)
_AFTER_BOUNDARY = re.compile(rb"(--)?[ \t\r]*+(?:\n|\Z)")
_NO_QUOTED = re.compile(rb"=(?![0-9A-Fa-f]{2}|[ \t]*+\r?(?:\n|\Z))")
_BASE64 = re.compile(rb"[A-Za-z0-9+/=\s]*+")
_FOOTER = re.compile(rb"\r?\n(?=[ \t]*+\r?\n|[_-]{2})")
_UUENCODED = re.compile(rb"(?m)^begin [0-7]{3,4} ++([^\r\n]++)\r?\n((?:[ -`]{1,90}\r?\n)*+)\r?\n?end[ \t]*+\r?$")
_OTHER_LABEL = re.compile(r"^(?:x-)?(?:windows|win|ms|ibm|cp)[-_]?(\d{3,4})$")
_COMMAND = re.compile(r"(?i)<param>[^<]*+</param>|</?[a-z][a-z0-9-]{0,60}>|<<")
_WRITTEN = {"<<": "<", "<lt>": "<", "<nl>": "\n"}
"""What commands of enriched text stand for; others are how it looks."""
_NOTICE = re.compile(rb"(?i)\bhtml\b|\bbrowser\b|e-?mail (?:client|program|reader|software)")
_LONGEST_NOTICE = 500

_ONE_WORD = r"=\?([^?\s*]+)(?:\*[^?\s]*)?\?([bBqQ])\?([^?]*)\?="
_WORD = re.compile(_ONE_WORD)
_WORDS = re.compile(rf"{_ONE_WORD}(?:\s*{_ONE_WORD})*")

MOST_ATTACHMENTS = 1000
MOST_NESTED = 5
"""A message within so many others is read, but not what it attaches."""
_SIGNATURES = ("application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature")
_NOT_READ = ("image/", "audio/", "video/", *_SIGNATURES)
_FORMATS = {
    _TEXT: "text",
    "text/html": "html",
    **dict.fromkeys(_MESSAGES, "eml"),
    **dict.fromkeys(("message/delivery-status", "message/disposition-notification", "text/rfc822-headers"), "text"),
    "application/pdf": "pdf",
    "application/rtf": "rtf",
    "text/rtf": "rtf",
    "application/epub+zip": "epub",
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
}

_FROM = b"From "
_DATED = re.compile(rb"From .*[A-Z][a-z]{2},? +(?:[A-Z][a-z]{2} +\d{1,2}|\d{1,2} +[A-Z][a-z]{2} +\d{4}) +\d\d:\d\d")
_ADDRESS = re.compile(rb"From <?[^\s@]+@\S+")
_OF_GIT = re.compile(rb"From [0-9a-f]{40,64} Mon Sep 17 00:00:00 2001\s*\Z")
"""The line above a patch, which nobody has sent; it begins a message in files of patches alone."""
_AFTER_FROM = re.compile(rb">?From |[!-9;-~]+:")
_QUOTED_FROM = re.compile(rb"(?m)^>(>*From )")
_Line = bytes | RecordError


class _MessageReader(ArchiveReader):
    libraries = ("resiliparse",)
    used_if_there = ("lxml", "pypdfium2")
    """The packages for what may be attached: mail is read without them, but another release may find another text."""

    @override
    def extract(self, raw: RawRecord, config: ReaderConfig) -> Decoded:
        if raw.attachment:
            return read_attachment(raw.attachment, raw.content, config)
        return read_message(parse(raw.content), config)

    def records(self, message: RawRecord, config: ReaderConfig) -> Iterator[RawRecord]:
        """Yield a message, and what it attaches if that is wanted, the n-th of which is said to start n bytes later."""
        attached: list[Attachment] = []
        if config.attachments and isinstance(message.content, bytes):
            try:
                attached = isolated(attachments_of, message.content, config, config=config)
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


class MailReader(_MessageReader):
    """Reads files of one message each, and maybe what it attaches."""

    suffixes = with_codecs(".eml")
    unit = ""

    @override
    def id_of(self, raw: RawRecord, name: str) -> str:
        return f"{name}#{raw.attachment}" if raw.attachment else name

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        if config.attachments:
            yield from super().scan(path, name=name, config=config)
        else:
            yield ScannedRecord(position=0, end=1, size=file_state(path).size, doc_id=name)

    @override
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[RawRecord]:
        try:
            content: bytes | RecordError = read_whole(path, config=config)
        except RecordError as error:
            content = error
        for raw in self.records(RawRecord(0, 1, content), config):
            if raw.start >= start:
                yield raw._replace(end=raw.start + 1)


class MailboxReader(_MessageReader):
    """Reads files of many messages, each of which begins at a line ``From ...``; positions are bytes."""

    suffixes = with_codecs(".mbox")

    @override
    def finds(self, path: str, config: ReaderConfig) -> bool:
        return super().finds(path, config) and not config.attachments

    @override
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[RawRecord]:
        with closing(LineStream(path, config.model_copy(update={"encoding": "utf-8"}))) as stream:
            for begin, end, content in _messages(stream, 0 if config.attachments else start, config):
                doc_id = None
                if isinstance(content, bytes) and config.id_field in HEADERS:
                    doc_id = headers_of(_part(content, _TEXT), config).get(config.id_field)
                message = RawRecord(begin, end, content, doc_id)
                yield from (raw for raw in self.records(message, config) if raw.start >= start)


@dataclass
class Part:
    """A message, or a part of one.

    Attributes:
        headers: those that are of interest, by name, as they are written.
        kind: the content type in lower case.
        parameters: those of the content type.
        body: as it is written; nothing where there are children.
        children: the parts of a multipart, or the message that this is.
    """

    headers: Mapping[str, Sequence[bytes]]
    kind: str
    parameters: Mapping[str, str]
    body: bytes
    children: list["Part"] = field(default_factory=list)

    @property
    def encoding(self) -> str:
        """How the body is encoded, whatever is written behind it."""
        return self._first_word("content_transfer_encoding").removeprefix("x-")

    @property
    def is_attached(self) -> bool:
        """Whether it says that it is an attachment, or a mail program would not show it."""
        if self._first_word("content_disposition") == "attachment":
            return True
        return not self.kind.startswith(("text/", "multipart/", *_MESSAGES)) or bool(_FILES.fullmatch(self.kind))

    @cached_property
    def content(self) -> bytes:
        """The body as it was before it was written into a message; RecordError where it cannot be."""
        if self.encoding == "base64":
            return _from_base64(self.body, is_text=self.kind.startswith("text/"))
        if self.encoding == "quoted-printable":
            return a2b_qp(self.body)
        if self.encoding in ("uuencode", "uue") and (found := _UUENCODED.search(self.body)):
            # Some programs write more than the length of a line says.
            return b"".join(a2b_uu(line[: ((line[0] - 32 & 63) * 4 + 5) // 3 + 1]) for line in found[2].splitlines())
        return self.body

    def _first_word(self, header: str) -> str:
        found = re.search(rb"[\w-]+", self.headers.get(header, (b"",))[0])
        return found[0].decode("ascii", "replace").lower() if found else ""


def parse(content: bytes) -> Part:
    """Return the message in the content of a file.

    Raises:
        RecordError: when it is none, or has too many parts.
    """
    content = content.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    message = _part(content if b"\n" in content else content.replace(b"\r", b"\n"), _TEXT)
    if not message.headers:
        raise RecordError("invalid_message", "expected an e-mail with headers, got none; fix the file or remove it")
    level, count = [message], 1
    for _ in range(MOST_DEPTH):
        for part in level:
            part.children = list(islice(_children(part), MOST_PARTS + 1 - count))
            part.body = b"" if part.children else part.body
            count += len(part.children)
        level = [child for part in level for child in part.children]
        if count > MOST_PARTS or not level:
            break
    if level:
        reason = f"expected at most {MOST_PARTS:,} parts that are nested at most {MOST_DEPTH} deep, got more; remove it"
        raise RecordError("message_too_complex", reason)
    return message


def read_message(message: Part, config: ReaderConfig) -> Decoded:
    """Return the text of a message, with its headers and the names of its attachments as meta.

    Raises:
        RecordError: when a part that it shows cannot be read.
    """
    attached: list[Part] = []
    texts = [text_of(part, config) for part in shown(message, attached)]
    if any(text.text.lstrip().startswith(_SEALED) for text in texts) or (not texts and message.kind in _ENCRYPTED):
        raise RecordError("encrypted", "expected a message that can be read, got an encrypted one; decrypt it")
    first = next((text for text in texts if not text.text.isascii()), texts[0] if texts else Decoded("", None))
    ended = [text.text if text.text.endswith("\n") else f"{text.text}\n" for text in texts[:-1]]
    whole = "\n".join([*ended, *(text.text for text in texts[-1:])])
    meta: dict[str, Any] = headers_of(message, config)
    if attached:
        meta["attachments"] = [name_of(part, config) for part in attached]
    return _with_meta(first._replace(text=whole, replaced=sum(text.replaced for text in texts)), meta, config)


def shown(part: Part, attached: list[Part]) -> list[Part]:
    """Return the texts that a mail program shows, in order, and note what it would attach."""
    if part.is_attached:
        attached.append(part)
    elif part.kind == "multipart/alternative" and part.children:
        return _best([shown(child, attached) for child in part.children])
    elif part.children:
        return [text for child in part.children for text in shown(child, attached)]
    elif not part.kind.startswith("multipart/"):
        return [_without_files(part, attached)]
    elif part.content.strip():
        reason = f"expected the parts of a {part.kind}, found none; the message may be truncated"
        raise RecordError("invalid_message", reason)
    return []


def name_of(part: Part, config: ReaderConfig) -> str:
    """Return the name of the file that a part is, or else its type."""
    disposition = _parameters(part.headers.get("content_disposition", (b"",))[0])
    name = disposition.get("filename") or part.parameters.get("name") or part.kind
    return _header(name.encode("utf-8", "surrogateescape"), config)


def text_of(part: Part, config: ReaderConfig) -> Decoded:
    """Return the text of a part that is shown."""
    stated = _codec(part.parameters.get("charset", ""))
    if part.kind.endswith("html"):
        return read_page(part.content, config, charset=stated)[0]
    encoding = encoding_of(part.content, config.encoding, lambda: stated)
    if encoding in ("utf-8", "auto") and stated is not None and stated.startswith(("utf-16", "utf-32", "utf-7")):
        encoding = stated  # which ASCII could not state within the text
    decoded = decode(part.content, encoding=encoding, errors=config.errors)
    text = decoded.text.replace("\r\n", "\n")
    if part.kind in _ENRICHED:
        text = _COMMAND.sub(lambda command: _WRITTEN.get(command[0].lower(), ""), text)
    if part.parameters.get("format", "").lower() == "flowed":
        text = _unflowed(text, delete_space=part.parameters.get("delsp", "").lower() == "yes")
    return decoded._replace(text=text)


def headers_of(message: Part, config: ReaderConfig) -> dict[str, Any]:
    """Return the headers that become meta, decoded; an undecodable byte of theirs does not cost the message."""
    found = {name: message.headers[name] for name in HEADERS if name in message.headers}
    meta = {name: ", ".join(_header(value, config) for value in values) for name, values in found.items()}
    with suppress(KeyError, ValueError, TypeError, IndexError, OverflowError):  # else it stays as it is written
        meta["date"] = parsedate_to_datetime(meta["date"]).isoformat()
    return meta


class Attachment(NamedTuple):
    """A part that a message attaches, the headers of the message, and why it is not read."""

    part: Part
    headers: Mapping[str, Any]
    fault: RecordError | None = None


def attachments_of(content: bytes, config: ReaderConfig) -> list[Attachment]:
    """Return what a message attaches, in order, each message among it followed by its own; none if it cannot be read.

    Pictures, sounds, films and signatures are left out.
    """
    found: list[Attachment] = []
    with suppress(RecordError), as_record_errors("message"):  # the message itself is then the dead letter
        found = list(islice(_attached(parse(content), config), MOST_ATTACHMENTS + 1))
    if len(found) > MOST_ATTACHMENTS:
        reason = f"expected at most {MOST_ATTACHMENTS:,} attachments, got more; this and those after it are not read"
        found[-1] = found[-1]._replace(fault=RecordError("too_many_attachments", reason))
    return found


def read_attachment(number: int, attachment: Attachment, config: ReaderConfig) -> Decoded:
    """Return the text of an attachment; its meta is what its file says, and which message it is from.

    Raises:
        RecordError: when it cannot be read, naming it.
    """
    headers, name = attachment.headers, name_of(attachment.part, config)
    try:
        if attachment.fault is not None:
            raise attachment.fault
        with as_record_errors("attachment"):
            found = _read_file(attachment.part, config)
    except RecordError as error:
        of = headers.get("message_id") or headers.get("subject") or "without a subject"
        raise RecordError(error.code, f"attachment {number} ({name!r}) of the message {of!r}: {error}") from None
    message = {key: headers[key] for key in ("subject", "date", "from", "message_id") if key in headers}
    return _with_meta(found, orjson.loads(found.meta or "{}") | {"file": name, "message": message}, config)


def _messages(stream: LineStream, start: int, config: ReaderConfig) -> Iterator[tuple[int, int, _Line]]:
    """Yield where messages begin and end, and their content, from one that begins at ``start`` on."""
    lines = stream.lines()
    first = next(lines, (b"", 0))
    has_patches = _is_of_git(first[0])
    if start:
        stream.skip_to(start)
    taken, before, position = list[bytes](), b"\n", start
    fault: RecordError | None = None
    for (line, end), (after, _) in pairwise(chain(() if start else (first,), lines, [(b"", 0)])):
        is_from = isinstance(line, bytes) and line.startswith(_FROM)
        if is_from and position > start and (has_patches or not _is_of_git(line)) and _begins(line, after, before):
            if taken or fault:
                yield start, position, _content(taken, fault)
            taken, fault, start = [], None, position
        if isinstance(line, RecordError):
            fault = fault or line
        elif end - start > config.max_record_bytes:
            fault, before = fault or too_large(config.max_record_bytes), line
        elif taken or line.strip():
            taken.append(line)
            before = line
        position = end
    if taken or fault:
        yield start, position, _content(taken, fault)


def _content(lines: Sequence[bytes], fault: RecordError | None) -> _Line:
    if fault is None and lines and not lines[0].startswith(_FROM):
        fault = RecordError("invalid_mbox", f"expected a line that begins with 'From ', got {lines[0][:20]!r}")
    return fault or _QUOTED_FROM.sub(rb"\1", b"".join(lines[1:]))


def _begins(line: _Line, after: _Line, before: bytes) -> bool:
    """Tell whether a line begins a message: with a date, or an address after a blank line; a header follows."""
    if isinstance(line, RecordError) or isinstance(after, RecordError):
        return False
    is_sent = _DATED.match(line) or (_ADDRESS.match(line) and not before.strip())
    return bool(is_sent) and _AFTER_FROM.match(after) is not None


def _is_of_git(line: _Line) -> bool:
    return isinstance(line, bytes) and _OF_GIT.match(line) is not None


def _part(content: bytes, default: str) -> Part:
    headers: dict[str, list[bytes]] = {}
    start = _ENVELOPE.match(content)
    end = start.end() if start else 0
    while line := _HEADER.match(content, end):
        name = line[1].decode().lower().replace("-", "_")
        kept = headers.setdefault(name if name in _KEPT else "others", [])
        if name in _KEPT:
            kept.append(line[2].replace(b"\r", b"").replace(b"\n", b"").strip())
        end = line.end()
    blank = _BLANK.match(content, end)
    stated = headers.get("content_type", [b""])[0]
    kind = _KIND.match(stated)
    return Part(
        headers=headers,
        kind=kind[1].decode("ascii", "replace").lower() if kind else default,
        parameters=_parameters(stated),
        body=content[blank.end() if blank else end :],
    )


def _children(part: Part) -> Iterator[Part]:
    if part.kind in _MESSAGES:
        yield _part(_message_in(part), _TEXT)
    elif part.kind.startswith("multipart/"):
        default = _MESSAGES[0] if part.kind == "multipart/digest" else _TEXT
        boundary = part.parameters.get("boundary", "").rstrip().encode("utf-8", "surrogateescape")
        for content in _split(part.body, boundary):
            yield _part(content, default)


def _message_in(part: Part) -> bytes:
    """Return the content of a message, which is not encoded although it says so where it cannot be."""
    if part.encoding == "base64" and not _BASE64.fullmatch(part.body):
        return part.body
    if part.encoding == "quoted-printable" and _NO_QUOTED.search(part.body):
        return part.body
    return part.content.lstrip(b"\r\n")


def _split(body: bytes, boundary: bytes) -> Iterator[bytes]:
    """Yield what is between the lines of a boundary."""
    mark, start, at = b"--" + boundary, -1, -1
    while boundary and (at := body.find(mark, at + 1)) >= 0:
        end = _AFTER_BOUNDARY.match(body, at + len(mark))
        if end is None or (at and body[at - 1] != ord("\n")):
            continue
        if start >= 0:
            yield body[start:at].removesuffix(b"\n").removesuffix(b"\r")
        start = end.end()
        if end[1]:
            return
    if start >= 0:
        yield body[start:]


def _best(choices: Sequence[list[Part]]) -> list[Part]:
    """Return the one of alternative texts that is plain and more than a notice, or else one in HTML, or the last."""
    in_html = [choice for choice in choices if any(part.kind.endswith("html") for part in choice)]
    for choice in choices:
        text = b"\n".join(part.content for part in choice if part.kind == _TEXT).strip()
        if text and not (in_html and len(text) < _LONGEST_NOTICE and _NOTICE.search(text)):
            return choice
    return next(filter(None, reversed(in_html or choices)), [])


def _without_files(part: Part, attached: list[Part]) -> Part:
    """Return a text without the files that are uuencoded in it, which are attached."""
    if part.content is not part.body or not _UUENCODED.search(part.body):
        return part
    for found in _UUENCODED.finditer(part.body):
        name = found[1].decode("utf-8", "surrogateescape").strip()
        headers = {"content_transfer_encoding": (b"uuencode",)}
        attached.append(Part(headers, "application/octet-stream", {"name": name}, found[0]))
    return replace(part, body=_UUENCODED.sub(b"", part.body))


def _from_base64(body: bytes, *, is_text: bool) -> bytes:
    """Decode base64, and what a mailing list has written behind that of a text."""
    footer = _FOOTER.search(body.rstrip()) if is_text and not _BASE64.fullmatch(body) else None
    end = footer.start() if footer else len(body)
    encoded, rest = b"".join(body[:end].split()), body[end:]
    try:
        if not _BASE64.fullmatch(encoded) or (rest and (not encoded or len(encoded) % 4)):
            raise Error
        return b"".join(a2b_base64(piece + b"==") for piece in encoded.split(b"=")) + rest
    except Error:
        reason = "expected a part in base64, got other characters; fix the message"
        raise RecordError("invalid_base64", reason) from None


def _with_meta(text: Decoded, meta: Mapping[str, Any], config: ReaderConfig) -> Decoded:
    return text._replace(meta=meta_of(meta, config=config)[0])


def _attached(message: Part, config: ReaderConfig, depth: int = 0) -> Iterator[Attachment]:
    parts: list[Part] = []
    shown(message, parts)
    headers = headers_of(message, config)
    for part in parts:
        if part.kind.startswith(_NOT_READ):
            continue
        inner, fault = list[Attachment](), None
        is_message = _format_of(part, config) == "eml"
        if is_message and depth == MOST_NESTED:
            reason = f"expected messages nested at most {MOST_NESTED} deep, got more; save it as a file of its own"
            fault = RecordError("nested_too_deep", reason)
        elif is_message:
            try:
                with as_record_errors("message"):
                    inner = list(islice(_attached(_message_of(part), config, depth + 1), MOST_ATTACHMENTS))
            except RecordError as error:
                fault = error
        yield Attachment(part, headers, fault)
        yield from inner


def _message_of(part: Part) -> Part:
    """Return the message that a part is."""
    return part.children[0] if part.children else parse(part.content)


def _format_of(part: Part, config: ReaderConfig) -> str | None:
    """Return the format that the name of an attachment states, or else its type."""
    by_type, name = _FORMATS.get(part.kind), name_of(part, config)
    if PurePath(name).suffix.lower() in CODECS or part.kind.startswith("multipart/"):
        return None
    # A message is no file, and "RE: report.pdf" only what somebody calls it.
    return by_type if by_type == "eml" else FORMATS[-1].of(name) or by_type


def _read_file(part: Part, config: ReaderConfig) -> Decoded:
    format = _format_of(part, config)
    if format == "eml":
        return read_message(_message_of(part), config)
    if format in ("text", "html") and part.kind in (_TEXT, "text/html"):
        return text_of(part, config)
    try:
        reader = FORMATS[-1].reader(format) if format else None
    except InputError as error:
        raise RecordError("missing_library", f"{error}, and retry it") from None
    if not isinstance(reader, FileReader):
        reason = (
            f"expected a file whose name or type shows a format that holds one document, got {name_of(part, config)!r} "
            f"({part.kind}); save it as a file of its own if it is to be read"
        )
        raise RecordError("unknown_format", reason)
    return reader.extract_checked(part.content, config)


def _parameters(header: bytes) -> dict[str, str]:
    """Return the parameters of a header, also those that are in pieces or encoded (RFC 2231)."""
    found: dict[str, list[tuple[int, str, bool, bytes]]] = {}
    for name, quoted, plain in _PARAMETER.findall(header):
        base, _, number = name.decode("ascii", "replace").lower().partition("*")
        is_encoded, number = name.endswith(b"*"), number.removesuffix("*")
        content = re.sub(rb"\\(.)", rb"\1", quoted) if quoted else plain.strip()
        found.setdefault(base, []).append((len(number), number, not is_encoded, content))
    return {base: _joined(sorted(pieces)) for base, pieces in found.items()}


def _joined(pieces: Sequence[tuple[int, str, bool, bytes]]) -> str:
    """Return the value of a parameter: it is encoded, plain, or in numbered pieces, of which each may be encoded."""
    contents, label = list[bytes](), b""
    for _, _, is_plain, content in pieces if pieces[0][0] else pieces[:1]:
        if not is_plain and content.count(b"'") >= 2 and not contents:
            label, _, content = content.split(b"'", 2)
        contents.append(content if is_plain else unquote_to_bytes(content))
    codec = _codec(label.decode("ascii", "replace"))
    return b"".join(contents).decode(codec or "utf-8", "replace" if codec else "surrogateescape")


def _codec(label: str) -> str | None:
    """Return Python's name of a charset; those of Windows have several names, and some say nothing."""
    found = re.search(r"[\w.:+-]+", label.lower())
    if found is None or found[0] in _UNKNOWN:
        return None
    return codec_of(found[0]) or codec_of(_OTHER_LABEL.sub(r"cp\1", found[0]))


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


def _header(value: bytes, config: ReaderConfig) -> str:
    """Return the text of a header on one line, with its encoded words (RFC 2047) decoded."""
    encoding = "utf-8" if config.encoding == "auto" else config.encoding
    return " ".join(_WORDS.sub(_decoded, value.decode(encoding, "replace")).split())


def _decoded(words: re.Match[str]) -> str:
    """Decode words of which only white space is between them; a character may be split over two of one charset."""
    pieces = []
    try:
        for charset, group in groupby(_WORD.findall(words[0]), key=lambda word: str(word[0]).lower()):
            content = b"".join(
                a2b_base64(f"{text}==") if kind in "bB" else a2b_qp(text.encode(), header=True)
                for _, kind, text in group
            )
            pieces.append(content.decode(_codec(charset) or "ascii", "replace"))
    except ValueError:
        return words[0]  # stays as it is written
    return "".join(pieces)
