"""HTML files (.html) and web archives (.warc): each page is one document, whose raw text is what the page shows.

Resiliparse (extra ``html``) parses a page as browsers do. What is not shown is taken out of the tree, and the tags of
the page that is written from it are replaced by what they stand for.

Of an archive, the pages that servers sent and those that are resources count. Positions are bytes of the file, at which
a record is found without reading those before it: also where each record is compressed by itself, as is usual
(.warc.gz). Of a file that is compressed as a whole, they are those of its content.
"""

import io
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from html import escape
from itertools import chain, pairwise, repeat
from pathlib import PurePath
from typing import Any, BinaryIO

from typing_extensions import override

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.readers.base import ArchiveReader, FileReader, RawRecord, meta_of, stored_meta
from concord.pipeline.readers.files import (
    Decoded,
    DerivedStream,
    decode,
    encoding_of,
    most_unpacked,
    open_stream,
    read_at_most,
    unpacks_too_far,
    with_codecs,
)
from concord.pipeline.readers.records import RecordError, too_large
from concord.pipeline.readers.text import is_note_mark
from concord.pipeline.storage.files import open_file

_XML = re.compile(rb"""\s*<\?xml\b[^>]*?encoding\s*=\s*["']([^"'>]+)""")
_CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([^\s;"'>]+)""", re.IGNORECASE)
_CLOSED = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr)\b)([A-Za-z][\w:.-]*)(\s[^<>]*|)/>"
)
"""Elements of XHTML that are closed at once, which HTML does not know."""
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_MOST_DEPTH = 1000
"""Browsers stop at about 500; finding the main content takes time that grows with its square."""
_TOO_DEEP = ">".join("*" * (_MOST_DEPTH + 1))

_NOT_SHOWN = (
    "script,style,template,noscript,iframe,noframes,noembed,object,video,audio,canvas,datalist,head,title,metadata,"
    "desc,rt,rp,annotation,annotation-xml,[hidden],[popover],dialog:not([open]),"
    # Of a list that opens on a click, the choice.
    "select:not([multiple],[size]) option:not([selected]),[role=doc-noteref],[epub\\:type~=noteref]"
)
_HIDES = re.compile(
    r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\s*(?:!\s*important\s*)?(?:;|$)",
    re.IGNORECASE,
)
_SET_APART = re.compile(
    r"(?i)(?:^|;)\s*display\s*:\s*(?:block|flex|grid|table|list-item|inline-(?:block|flex|grid|table))"
)
_KEEPS = re.compile(r"(?i)(?:^|;)\s*white-space(?:-collapse)?\s*:\s*(?:pre|break-spaces)")
_NOTE_LINKS = 'sup:has(a[href*="#"]),a[href*="#"]>sup'

# What tags stand for, in characters that no text may contain.
_BLOCK, _LINE, _LINK, _LINK_END, _RAISED, _RAISED_END, _KEPT, _KEPT_END = map(chr, range(0xFDD0, 0xFDD8))
_TO_ASCII = {0xFDD0 + number: 0x0E + number for number in range(8)}
"""Resiliparse finds no content in other characters that stand alone."""
_AS_WRITTEN = str.maketrans({" ": "\ufdd8", "\t": "\ufdd9", "\n": _LINE})
_BLOCKS = (
    *("address", "article", "aside", "blockquote", "body", "button", "caption", "center", "dd", "details", "dialog"),
    *("dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5"),
    *("h6", "header", "hgroup", "hr", "label", "legend", "li", "listing", "main", "menu", "nav", "ol", "optgroup"),
    *("option", "p", "pre", "search", "section", "select", "summary", "table", "tbody", "td", "text"),
    *("textarea", "tfoot", "th", "thead", "tr", "ul"),
)
_MEANING = (
    {f"{end}{name}": _BLOCK for name in _BLOCKS for end in ("", "/")}
    | {"br": _LINE, "a": _LINK, "/a": _LINK_END, "sup": _RAISED, "/sup": _RAISED_END}
    | dict.fromkeys(("pre", "textarea", "listing"), _BLOCK + _KEPT)
    | {f"/{name}": _KEPT_END + _BLOCK for name in ("pre", "textarea", "listing")}
    | dict.fromkeys(("img", "input", "embed", "svg"), " ")
)
_TAG = re.compile(r"<(/?[a-z][^\s>]*)[^>]*>|<!--.*?-->", re.DOTALL)
_WRITTEN = re.compile(f"{_KEPT}(.*?){_KEPT_END}", re.DOTALL)
_ONLY_LINKS = re.compile(f"(?:{_LINK}[^{_LINK_END}]*{_LINK_END}[^\\w{_LINK}]*){{2,}}")
_NEIGHBOURS = re.compile(f"{_LINK_END}{_LINK}")
_HAS_SPACES = re.compile(r"[0-9A-Za-z\xc0-\u0dff]")
"""Letters of scripts that have spaces between words."""
_MARKED = re.compile(rf"{_RAISED}([^\ufdd0-\ufdd9]*){_RAISED_END}")
_BLANKS = " \xa0\ufdd8\ufdd9"
_BLANK_LINES = re.compile(f"(?:{_LINE}[{_BLANKS}]*){{2,}}")
_BORDERS = re.compile(rf"{_BLOCK}[ {_BLOCK}]*")
_LEAST_WIDTH = 50
"""Lines that are filled have so many characters."""

_HEAD_BYTES = 1 << 16
"""In so many bytes of a record stands what it is."""
_CHUNK_BYTES = 1 << 14
_READ_BYTES = 1 << 20
_LEAST_BYTES = 1 << 10
_MOST_SKIPPED = 1 << 40
"""File systems cannot go much further than this."""
_ADVICE = "fetch the file again and repeat the run"
_VERSION = b"WARC/"
_START = re.compile(rb"WARC/\d\.\d\r\n")
_MEMBER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n")
_BLANK = b"\r\n\r\n"
_PAGES = ("text/html", "application/xhtml+xml")
_TEXT = "text/plain"
"""What crawlers make of pages (WET files)."""
_LIKE_PAGE = re.compile(rb"(?i)[\s\xef\xbb\xbf]*(?:<!--.{0,500}?-->\s*)?<(?:!doctype html|html)\b", re.DOTALL)
_META = {"url": "warc-target-uri", "date": "warc-date", "truncated": "warc-truncated"}
_FIELD = re.compile(rb"(?m)^([!-9;-~]++)[ \t]*+:([^\n]*+(?:\n[ \t][^\n]*+)*+)")
_STATUS = re.compile(rb"HTTP/\d[^ \n]*+ ++(\d{3})\b")
_END_OF_HTTP = re.compile(rb"\n\r?\n|\Z")
"""Lines of its header may end in a line feed alone, as in ClueWeb."""


class HtmlReader(FileReader):
    """Reads files of one page each."""

    suffixes = (*with_codecs(".html"), *with_codecs(".htm"))
    libraries = ("resiliparse",)
    text_share = 0.3

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        decoded, title = read_page(content, config, main_content=config.main_content)
        return decoded._replace(meta=stored_meta({"title": title}))


def read_page(
    content: bytes,
    config: ReaderConfig,
    *,
    charset: str | None = None,
    main_content: bool = False,
    is_xml: bool = False,
) -> tuple[Decoded, str]:
    """Return the text and the title of a page.

    Args:
        charset: what the page's server or message says of its encoding, which comes before what the page says.
        is_xml: whether an element without content may be closed at once, as ``<title/>``.

    Raises:
        RecordError: when it cannot be decoded, or would take very long.
    """
    # Importing it takes a while.
    from resiliparse.parse.html import HTMLTree

    decoded = decode(
        content,
        encoding=encoding_of(content, config.encoding, lambda: _declared(content, charset)),
        errors=config.errors,
    )
    page = decoded.text
    if is_xml:
        page = _CDATA.sub(lambda found: escape(found[1]), _CLOSED.sub(r"<\1\2></\1>", page))
    tree: Any = HTMLTree.parse(page)
    title = (tree.title or "").strip()
    _remove_hidden(tree)
    text = _main_content(tree) if main_content else _without_tags((tree.body or tree.document).html)
    return decoded._replace(text=_laid_out(text)), title


def _declared(content: bytes, charset: str | None) -> str | None:
    """Return ``charset`` or the encoding that a page declares, wherever it does; None for what browsers ignore."""
    from resiliparse.parse.html import HTMLTree

    tree: Any = HTMLTree.parse(content.decode("latin-1"))
    declarations = tree.document.query_selector_all("meta[charset], meta[http-equiv=content-type i]").values()
    labels = [label for meta in declarations for label in _CHARSET.findall(meta.html)]
    if in_xml := _XML.match(content):
        labels.append(in_xml[1].decode("latin-1"))
    for label in (charset, *labels) if charset else labels:
        name = "cp1252" if label.strip().lower() == "x-user-defined" else codec_of(label)
        if name is not None:
            return name
    return None


def _remove_hidden(tree: Any) -> None:
    """Take out what a page does not show, and links to notes; mark what its own style makes a block, or keeps."""

    def found(selectors: str) -> list[Any]:
        # Iterating over the collection itself takes quadratic time.
        return list(tree.document.query_selector_all(selectors).values())

    for element in found(_NOT_SHOWN):
        element.remove()
    for element in found("[style]"):
        style = element.getattr("style")
        # A page that hides itself is shown by its scripts.
        if _HIDES.search(style) and element.tag not in ("html", "body"):
            element.remove()
        for pattern, start, end in ((_SET_APART, _BLOCK, _BLOCK), (_KEEPS, _KEPT, _KEPT_END)):
            if pattern.search(style):
                element.prepend(tree.create_text_node(start))
                element.append(tree.create_text_node(end))
    for element in found(_NOTE_LINKS):
        if is_note_mark(element.text.strip(), "word"):
            element.remove()


def _without_tags(markup: str) -> str:
    """Return the text of a page that was written from its tree, with what its tags stand for."""
    # Faster than a function that is called for each tag.
    pieces = _TAG.split(markup)
    pieces[1::2] = map(_MEANING.get, pieces[1::2], repeat(""))
    return "".join(pieces).replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\xa0").replace("&amp;", "&")


def _main_content(tree: Any) -> str:
    """Return what resiliparse takes for the article of a page, with what tags stand for."""
    from resiliparse.extract.html2text import extract_plain_text

    if tree.document.query_selector(_TOO_DEEP) is not None:
        raise RecordError(
            "nested_too_deep", f"expected elements nested at most {_MOST_DEPTH} deep, got more; repair the page"
        )
    for element in tree.document.query_selector_all(",".join((*_BLOCKS, "sup"))).values():
        for tag, add in ((element.tag, element.prepend), (f"/{element.tag}", element.append)):
            add(tree.create_text_node(_MEANING[tag].translate(_TO_ASCII)))
    for element in tree.document.query_selector_all("br").values():
        element.before(tree.create_text_node(_LINE.translate(_TO_ASCII)))
    text: str = extract_plain_text(
        tree, preserve_formatting=True, main_content=True, list_bullets=False, alt_texts=False
    )
    return text.translate({ascii: mark for mark, ascii in _TO_ASCII.items()})


def _laid_out(text: str) -> str:
    """Return a text in which white space is as it is shown, and blocks are set apart."""
    text = _WRITTEN.sub(lambda found: found[1].strip("\n").translate(_AS_WRITTEN), text)
    text = text.replace(_KEPT, "").replace(_KEPT_END, "")
    # Bytes are split at the white space of HTML alone.
    text = b" ".join(text.encode().split()).decode().replace("\u00ad", "")
    text = _NEIGHBOURS.sub(_between_links, text)
    if _RAISED in text:
        text = _MARKED.sub(_with_raised, text).replace(_RAISED, "").replace(_RAISED_END, "")
    text = "\n\n".join(chain.from_iterable(map(_shown, _BORDERS.split(text))))
    return text.replace("\ufdd8", " ").replace("\ufdd9", "\t")


def _shown(block: str) -> Iterator[str]:
    """Yield a block, or several where it is a list of links, or of lines."""
    is_menu = _LINE not in block and _ONLY_LINKS.fullmatch(block.strip(_BLANKS))
    for item in block.split(_LINK_END) if is_menu else [block]:
        text = item.replace(_LINK, "").replace(_LINK_END, "").strip(_BLANKS + _LINE)
        if text:
            yield from map(_with_line_ends, _BLANK_LINES.split(text)) if _LINE in text else [text]


def _between_links(found: re.Match[str]) -> str:
    """Return what separates two links without white space between them, as in a menu."""
    before, after = found.string[found.start() - 1], found.string[found.end() : found.end() + 1]
    is_apart = _HAS_SPACES.match(before) and _HAS_SPACES.match(after) and not after.islower()
    return f"{_LINK_END}{_BLOCK}{_LINK}" if is_apart else ""


def _with_raised(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - 8) : found.start()]
    return f" {found[1]}" if is_note_mark(found[1].strip(), before) else found[1]


def _with_line_ends(paragraph: str) -> str:
    """Return lines, each a block of its own unless it is filled, or the next one goes on with a small letter."""
    lines = [line.strip(_BLANKS) for line in paragraph.split(_LINE)]
    width = max(map(len, lines))
    fills = [len(line) + len(after.partition(" ")[0]) >= width for line, after in pairwise(lines)]
    is_filled = width >= _LEAST_WIDTH and len(fills) > 1 and 2 * sum(fills) > len(fills)
    text = lines[:1]
    for fill, line in zip(fills, lines[1:], strict=True):
        text += ("\n" if line[:1].islower() or (fill and is_filled) else "\n\n", line)
    return "".join(text)


class WarcReader(ArchiveReader):
    """Reads the pages of archives."""

    suffixes = with_codecs(".warc")
    libraries = ("fastwarc", "resiliparse")

    @override
    def finds(self, path: str, config: ReaderConfig) -> bool:
        return super().finds(path, config) or _has_members(path)

    @override
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[RawRecord]:
        with closing(_Archive(path, config)) as archive:
            for begins, end, content in archive.pages(start):
                doc_id = None
                if config.id_field in _META and isinstance(content, bytes):
                    doc_id = _Head(content).meta.get(config.id_field)
                yield RawRecord(begins, end, content, doc_id)

    @override
    def extract(self, raw: RawRecord, config: ReaderConfig) -> Decoded:
        head = _Head(raw.content)
        if head.is_broken_http:
            raise RecordError("invalid_http", "expected a server's answer of HTTP, got something else")
        payload = _payload(raw.content, config)
        if head.media == _TEXT:
            page, title = decode(payload, encoding=config.encoding, errors=config.errors), ""
        else:
            page, title = read_page(
                payload,
                config,
                charset=head.charset,
                main_content=config.main_content,
                is_xml=head.media == _PAGES[1],
            )
        return page._replace(meta=meta_of({**head.meta, **({"title": title} if title else {})}, config=config)[0])


class _Head:
    """What the header of a record says, and that of HTTP behind it.

    Attributes:
        is_page: whether it is a page, or must be read to know what is wrong with it.
        is_broken_http: whether it says that it is an answer of HTTP, and is none.
        media, charset: of its content.
        meta: what becomes that of its document.
    """

    def __init__(self, content: bytes) -> None:
        end, _ = _header_of(content)
        fields = _fields(content, 0, end)
        self.meta = {name: fields[key].strip("<>") for name, key in _META.items() if fields.get(key)}
        kind, is_http = fields.get("warc-type", ""), fields.get("content-type", "").startswith("application/http")
        status = _STATUS.match(content, end) if is_http else None
        self.is_broken_http = is_http and status is None and len(content) > end
        if status is not None and (blank := _END_OF_HTTP.search(content, end)):
            fields, end = _fields(content, end, blank.start()), blank.end()
        stated, _, parameters = fields.get("content-type", "").partition(";")
        charset = _CHARSET.search(parameters)
        self.media, self.charset = stated.strip().lower(), charset[1] if charset else None
        if kind == "conversion":
            self.is_page = self.media == _TEXT
            return
        is_like_page = not self.media and _LIKE_PAGE.match(content, end, end + 1000) is not None
        is_answer = kind == "resource" or (kind == "response" and status is not None and status[1].startswith(b"2"))
        is_page = is_answer and (self.media in _PAGES or is_like_page)
        self.is_page = is_page or (kind == "response" and self.is_broken_http)


def _fields(content: bytes, start: int, end: int) -> dict[str, str]:
    """Return the fields of a header by their names in small letters; of several of one name the first."""
    found: dict[str, str] = {}
    for name, value in _FIELD.findall(content, start, end):
        found.setdefault(name.decode("ascii", "replace").lower(), " ".join(value.decode("utf-8", "replace").split()))
    return found


class _Archive:
    """A file of records, or of gzip members that hold a record each."""

    def __init__(self, path: str, config: ReaderConfig) -> None:
        self._most = config.max_record_bytes
        self._has_members = _has_members(path)
        self._file, self._damage = (open_file(path), None) if self._has_members else open_stream(path)

    def pages(self, start: int) -> Iterator[tuple[int, int, bytes | RecordError]]:
        """Yield where each page from a position on begins and ends, and its record, or why it cannot be read."""
        while True:
            self._file.seek(start)
            try:
                content, end = self._next(start), self._file.tell()
            except EOFError:
                return
            except RecordError as error:
                content, end = error, self._find(start + 1)
                if end < 0:
                    error.loses_file = True
                    yield start, max(self._file.tell(), start + 1), error
                    return
            if content is not None:
                yield start, end, content
            start = end

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _next(self, start: int) -> bytes | RecordError | None:
        """Return the record that begins here, None in place of one that is no page.

        Raises:
            RecordError: when its end is not found.
            EOFError: when there is none.
        """
        if self._has_members:
            return self._next_member(start)
        try:
            return _next_record(self._file, self._most, is_alone=False)
        except (RecordError, EOFError) as error:
            raise (self._damage and self._damage.error) or error from None

    def _next_member(self, start: int) -> bytes | RecordError | None:
        while not (ahead := self._file.read(_LEAST_BYTES)).strip(b"\0"):
            if not ahead:
                raise EOFError
        self._file.seek(start)
        member = _Member(self._file)
        stream, content = io.BufferedReader(member, _CHUNK_BYTES), None
        try:
            content = _next_record(stream, self._most, is_alone=True)
        except EOFError:
            content = _invalid("a record", b"")
        except RecordError as error:
            content = error
        while rest := stream.read(_READ_BYTES):
            if (isinstance(content, bytes) and rest.strip()) or (content is None and _START.search(rest)):
                content = _invalid("the end of a gzip member", rest)
        self._file.seek(-member.bytes_ahead, io.SEEK_CUR)
        return content

    def _find(self, offset: int) -> int:
        """Return where the next record begins from an offset on; -1 where none does."""
        pattern, before = _MEMBER if self._has_members else _START, b""
        # What is compressed as a whole cannot be read again.
        offset = self._file.tell() if self._damage else self._file.seek(offset)
        while chunk := self._file.read(_CHUNK_BYTES):
            content = before + chunk
            for found in pattern.finditer(content):
                start = found.start()
                if not self._has_members or _begins_record(content[start : start + _LEAST_BYTES]):
                    return offset - len(before) + start
            offset += len(chunk)
            # Whatever begins there is looked at again, with what follows it.
            before = content[-_LEAST_BYTES:]
        return -1


class _Member(DerivedStream):
    """What the gzip member unpacks to that begins where a file is.

    Attributes:
        bytes_ahead: bytes behind it that were read of the file.
    """

    bytes_ahead = 0

    @override
    def _restart(self) -> None:
        self._decoder = zlib.decompressobj(wbits=31)
        self._start = self._source.tell()

    @override
    def _produce(self, size: int) -> bytes:
        content = b""
        while not (content or self._decoder.eof):
            packed = self._decoder.unconsumed_tail or self._source.read(_CHUNK_BYTES)
            try:
                content = self._decoder.decompress(packed, size)
            except zlib.error as error:
                raise RecordError("corrupt_stream", f"expected a gzip member, got {error}; {_ADVICE}") from None
            if not (packed or content or self._decoder.eof):
                raise RecordError("truncated_stream", f"the file ends within a record; {_ADVICE}")
        self.bytes_ahead, taken = len(self._decoder.unused_data), self._source.tell() - self._start
        if self._position + len(content) > most_unpacked(taken):
            raise unpacks_too_far(taken, most_unpacked(taken))
        return content

    @override
    def close(self) -> None:
        """Leave the file open."""


def _next_record(stream: BinaryIO, most: int, *, is_alone: bool) -> bytes | RecordError | None:
    """Read the next record, and return it, or None in place of one that is no page.

    Args:
        is_alone: whether the stream ends with it, so that one that is no page may be broken.
    """
    header = bytearray()
    while len(header) < _HEAD_BYTES and not header.endswith(_BLANK):
        line = stream.readline(_HEAD_BYTES)
        header += line if header or line.strip() else b""
        # Another record's first line is no header of this one.
        if not line or (line != header and line.startswith(_VERSION)):
            break
    if not header:
        raise EOFError
    _, length = _header_of(header)
    content = bytes(header) + stream.read(min(length, _HEAD_BYTES))
    taken: bytes | RecordError | None = None
    if _Head(content).is_page:
        taken = too_large(most)
        if length <= most:
            taken = content = content + read_at_most(stream, length - min(length, _HEAD_BYTES))
    if is_alone and taken is None:
        return None
    if rest := len(header) + length - len(content):
        stream.seek(min(rest - 1, _MOST_SKIPPED), io.SEEK_CUR)
        if not stream.read(1):
            code = "invalid_warc" if is_alone else "truncated_stream"
            raise RecordError(code, f"expected a record of {length:,} bytes, got fewer; {_ADVICE}")
    blank = stream.read(len(_BLANK))
    if blank.strip():
        raise _invalid(f"the end of a record {length:,} bytes after its header", blank)
    return taken


def _opened(content: bytes, auto_decode: Any = "none") -> Any:
    """Return FastWARC's record for the bytes of one, or for its first bytes.

    Raises:
        RecordError: when they do not begin with the header of a record.
    """
    from fastwarc.warc import WarcRecord

    header, length = _header_of(content)
    if length != len(content) - header:
        # FastWARC takes as much memory as the header states.
        whole = _LENGTH.sub(b"\r\nContent-Length: %d\r\n" % (len(content) - header), content[:header], count=1)
        content = whole + content[header:]
    record = WarcRecord.from_bytes(content)
    if record.is_http:
        # In quirks mode lines may end in a line feed alone, as in ClueWeb.
        record.parse_http(auto_decode=auto_decode, quirks_mode=True)
    return record


def _header_of(content: bytes | bytearray) -> tuple[int, int]:
    """Return the length of a record's header, and that of what follows it as the header states it."""
    end = content.find(_BLANK)
    stated = _LENGTH.search(content, 0, end + 2) if end >= 0 else None
    if stated is None or not content.startswith(_VERSION):
        raise _invalid("the header of a record", content)
    return end + len(_BLANK), int(stated[1])


def _invalid(expected: str, found: bytes | bytearray) -> RecordError:
    return RecordError("invalid_warc", f"expected {expected}, got {bytes(found[:20])!r}; {_ADVICE}")


def _payload(content: bytes, config: ReaderConfig) -> bytes:
    """Return the page within a record. Some archives store it decoded, and its headers say otherwise."""
    most = min(most_unpacked(len(content)), config.max_record_bytes)
    try:
        page: bytes = _opened(content, "all").reader.read(most + 1)
    except OSError as error:
        page = _opened(content).reader.read(most + 1)
        if not page.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            raise RecordError(
                "invalid_http", f"expected a page that can be decoded, got one that cannot ({error})"
            ) from None
    if len(page) > most:
        raise too_large(most) if most == config.max_record_bytes else unpacks_too_far(len(content), most)
    return page


def _begins_record(member: bytes) -> bool:
    try:
        return zlib.decompressobj(wbits=31).decompress(member, len(_VERSION)) == _VERSION
    except zlib.error:
        return False


def _has_members(path: str) -> bool:
    """Tell whether each record of a file is compressed by itself, as the first one is."""
    if PurePath(path).suffix.lower() != ".gz":
        return False
    with open_file(path) as file:
        try:
            content = zlib.decompressobj(wbits=31).decompress(file.read(_HEAD_BYTES), _READ_BYTES)
            header, length = _header_of(content)
        except (zlib.error, RecordError):
            return False
    return not content[header + length :].strip()
