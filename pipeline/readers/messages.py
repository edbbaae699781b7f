"""What an e-mail says: the text that it shows, its headers, and what it attaches.

Messages are taken apart here and not by Python's ``email``, which reads an encoding with something behind its name as
none, does not decode messages within messages, and takes time that grows with the square of a header.
"""

import re
from binascii import Error, a2b_base64, a2b_qp, a2b_uu
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import cached_property
from itertools import groupby, islice
from typing import Any
from urllib.parse import unquote_to_bytes

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.readers.base import as_record_errors
from concord.pipeline.readers.files import Decoded, decode, encoding_of
from concord.pipeline.readers.records import RecordError
from concord.pipeline.readers.web import read_page

HEADERS = ("subject", "date", "from", "to", "cc", "message_id")
MOST_DEPTH = 50
MOST_PARTS = 10_000

_KEPT = {*HEADERS, "content_type", "content_transfer_encoding", "content_disposition"}
_TEXT = "text/plain"
MESSAGES = ("message/rfc822", "message/global", "message/news")
_ENRICHED = ("text/enriched", "text/richtext")
_FILES = {
    f"text/{kind}"
    for kind in (
        "calendar",
        "css",
        "csv",
        "directory",
        "javascript",
        "rfc822-headers",
        "rtf",
        "vcard",
        "x-vcard",
        "xml",
    )
}
"""Kinds of text that mail programs do not show as they are written."""
_ENCRYPTED = ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime")
_SEALED = "-----BEGIN PGP MESSAGE-----"
_UNKNOWN = (None, "ascii", "us-ascii", "unknown-8bit")
"""Charsets that say nothing of bytes beyond ASCII."""

_HEADER = re.compile(rb"([!-9;-~]++)[ \t]*+:([^\n]*+(?:\n[ \t][^\n]*+)*+)(?:\n|\Z)")
_ENVELOPE = re.compile(rb">?From [^\n]*+\n")
_BLANK = re.compile(rb"[ \t]*+\r?\n")
_KIND = re.compile(rb"\s*+([\w!#$&^.+-]++/[\w!#$&^.+-]++)")
_PARAMETER = re.compile(rb'[;\s]([^\s=;"]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"?|([^;]*+))', re.DOTALL)
_WORD_OF = re.compile(rb"[\w-]+")
_AFTER_BOUNDARY = re.compile(rb"(--)?[ \t\r]*+(?:\n|\Z)")
_NO_QUOTED = re.compile(rb"=(?![0-9A-Fa-f]{2}|[ \t]*+\r?(?:\n|\Z))")
_BASE64 = re.compile(rb"[A-Za-z0-9+/=\s]*+")
_FOOTER = re.compile(rb"\r?\n(?=[ \t]*+\r?\n|[_-]{2})")
_UUENCODED = re.compile(rb"(?m)^begin [0-7]{3,4} ++([^\r\n]++)\r?\n((?:[ -`]{1,90}\r?\n)*+)\r?\n?end[ \t]*+\r?$")
_OTHER_LABEL = re.compile(r"(?:x-)?(?:windows|win|ms|ibm|cp)[-_]?(\d{3,4})")
_COMMAND = re.compile(r"(?i)<param>[^<]*+</param>|</?[a-z][a-z0-9-]{0,60}>|<<")
_NOTICE = re.compile(rb"(?i)\bhtml\b|\bbrowser\b|e-?mail (?:client|program|reader|software)")
_LONGEST_NOTICE = 500

_ONE_WORD = r"=\?([^?\s*]+)(?:\*[^?\s]*)?\?([bBqQ])\?([^?]*)\?="
_WORD = re.compile(_ONE_WORD)
_WORDS = re.compile(rf"{_ONE_WORD}(?:\s*{_ONE_WORD})*")


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
        found = _WORD_OF.search(self.headers.get("content_transfer_encoding", (b"",))[0])
        return found[0].decode("ascii", "replace").lower().removeprefix("x-") if found else ""

    @property
    def is_attached(self) -> bool:
        """Whether it says that it is an attachment, or a mail program would not show it."""
        disposition = _WORD_OF.search(self.headers.get("content_disposition", (b"",))[0])
        if disposition and disposition[0].lower() == b"attachment":
            return True
        is_text = self.kind.startswith("text/") and self.kind not in _FILES
        return not (is_text or self.kind in MESSAGES or self.kind.startswith("multipart/"))

    @cached_property
    def content(self) -> bytes:
        """The body as it was before it was written into a message; RecordError where it cannot be."""
        if self.encoding == "base64":
            return _from_base64(self.body, is_text=self.kind.startswith("text/"))
        if self.encoding == "quoted-printable":
            return a2b_qp(self.body)
        if self.encoding in ("uuencode", "uue") and (found := _UUENCODED.search(self.body)):
            return b"".join(map(_from_uu, found[2].splitlines()))
        return self.body


def parse(content: bytes) -> Part:
    """Return the message in the content of a file.

    Raises:
        RecordError: when it is none, or has too many parts.
    """
    content = content.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    message = _part(content if b"\n" in content else content.replace(b"\r", b"\n"), _TEXT)
    if not _HEADER.match(content, _start(content)):
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
        raise RecordError(
            "message_too_complex",
            f"expected at most {MOST_PARTS:,} parts that are nested at most {MOST_DEPTH} deep, got more; remove it",
        )
    return message


def read_message(message: Part, config: ReaderConfig) -> tuple[Decoded, dict[str, Any]]:
    """Return the text of a message, and what becomes its meta.

    Raises:
        RecordError: when a part that it shows cannot be read.
    """
    with as_record_errors("message"):
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
        return first._replace(text=whole, replaced=sum(text.replaced for text in texts)), meta


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
        raise RecordError(
            "invalid_message", f"expected the parts of a {part.kind}, found none; the message may be truncated"
        )
    return []


def name_of(part: Part, config: ReaderConfig) -> str:
    """Return the name of the file that a part is, or else its type."""
    disposition = _parameters(part.headers.get("content_disposition", (b"",))[0])
    name = disposition.get("filename") or part.parameters.get("name") or part.kind
    return _header(name.encode("utf-8", "surrogateescape"), config)


def text_of(part: Part, config: ReaderConfig) -> Decoded:
    """Return the text of a part that is shown."""
    charset = part.parameters.get("charset")
    stated = None if charset is None or charset.lower() in _UNKNOWN else _codec(charset)
    if part.kind.endswith("html"):
        decoded, _ = read_page(part.content, config, charset=stated)
        return decoded
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


_WRITTEN = {"<<": "<", "<lt>": "<", "<nl>": "\n"}
"""What commands of enriched text stand for; others are how it looks."""


def parse_headers(content: bytes) -> Part:
    """Return a message with its headers, without looking for its parts."""
    return _part(content, _TEXT)


def _part(content: bytes, default: str) -> Part:
    headers: dict[str, list[bytes]] = {}
    end = _start(content)
    while line := _HEADER.match(content, end):
        name = line[1].decode().lower().replace("-", "_")
        if name in _KEPT:
            headers.setdefault(name, []).append(line[2].replace(b"\r", b"").replace(b"\n", b"").strip())
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


def _start(content: bytes) -> int:
    """Return where the headers begin, maybe behind the line with which a mailbox separates messages."""
    envelope = _ENVELOPE.match(content)
    return envelope.end() if envelope else 0


def _children(part: Part) -> Iterator[Part]:
    if part.kind in MESSAGES:
        yield _part(_message_in(part), _TEXT)
    elif part.kind.startswith("multipart/"):
        default = MESSAGES[0] if part.kind == "multipart/digest" else _TEXT
        boundary = part.parameters.get("boundary", "").rstrip().encode("utf-8", "surrogateescape")
        for content in _split(part.body, boundary):
            yield _part(content, default)


def _message_in(part: Part) -> bytes:
    """Return the content of a message, which is not encoded although it says so where it cannot be."""
    if part.encoding == "base64" and not _BASE64.fullmatch(part.body):
        return part.body
    is_quoted = part.encoding == "quoted-printable" and not _NO_QUOTED.search(part.body)
    content = part.content if is_quoted or part.encoding == "base64" else part.body
    return content.lstrip(b"\r\n")


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
        pieces = encoded.split(b"=")
        return b"".join(a2b_base64(piece + b"==") for piece in pieces) + rest
    except Error:
        raise RecordError(
            "invalid_base64", "expected a part in base64, got other characters; fix the message"
        ) from None


def _from_uu(line: bytes) -> bytes:
    try:
        return a2b_uu(line)
    except Error:
        # Some programs write more than the length says.
        return a2b_uu(line[: (((line[0] - 32) & 63) * 4 + 5) // 3 + 1])


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
    """Return Python's name of a charset; of those of Windows also as some programs call them."""
    found = re.search(r"[\w.:+-]+", label)
    other = _OTHER_LABEL.fullmatch(found[0].lower()) if found else None
    return (codec_of(found[0]) or (codec_of(f"cp{other[1]}") if other else None)) if found else None


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
