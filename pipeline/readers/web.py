"""HTML files (.html) and web archives (.warc): each page is one document, whose raw text is what the page shows.

Resiliparse (extra ``html``) parses a page as browsers do. What is not shown is taken out of the tree, and the tags of
the page that is written from it are replaced by what they stand for. Positions in an archive are bytes of the file,
also where each record is compressed by itself (.warc.gz); of a file that is compressed as a whole, of its content.
"""

import io
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from html import escape, unescape
from itertools import pairwise, repeat
from pathlib import PurePath
from typing import Any, NamedTuple

from typing_extensions import override

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.readers.base import ArchiveReader, FileReader, Record, meta_of, stored_meta
from concord.pipeline.readers.files import (
    Decoded,
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

_NOT_SHOWN = (
    "script,style,template,noscript,iframe,object,video,audio,canvas,datalist,title,desc,rt,rp,annotation,[hidden],"
    "[popover],dialog:not([open]),[role=doc-noteref],[epub\\:type~=noteref],"
    # Of a list that opens on a click, the choice.
    "select:not([multiple],[size]) option:not([selected])"
)
_HIDES = re.compile(
    r"(?i)(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\s*(?:!\s*important\s*)?(?:;|$)"
)
_NOTE_LINKS = 'sup:has(a[href*="#"]),a[href*="#"]>sup'

# What tags stand for. Those of ASCII make short strings, and resiliparse takes the first six for content.
_BLOCK, _LINE, _RAISED, _RAISED_END, _KEPT, _KEPT_END, _LINK, _LINK_END, _SPAN, _END, _KEPT_SPACE, _KEPT_TAB = map(
    chr, range(0x0E, 0x1A)
)
_AS_WRITTEN = str.maketrans({" ": _KEPT_SPACE, "\t": _KEPT_TAB, "\n": _LINE})
_BLOCKS = (
    "address article aside blockquote body button caption center dd details dialog dir div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr label legend li listing main menu nav ol optgroup option p "
    "pre search section select summary table tbody td text textarea tfoot th thead tr ul"
)
_MEANING = (
    {f"{end}{name}": _BLOCK for name in _BLOCKS.split() for end in ("", "/")}
    | {"br": _LINE, "a": _LINK, "/a": _END + _LINK_END, "sup": _RAISED, "/sup": _RAISED_END}
    | {"span": _SPAN, "/span": _END}
    | dict.fromkeys(("pre", "textarea", "listing"), _BLOCK + _KEPT)
    | dict.fromkeys(("/pre", "/textarea", "/listing"), _KEPT_END + _BLOCK)
    | dict.fromkeys(("img", "input", "embed", "svg"), " ")
)
# Patterns that begin with one letter are found fast.
_TAG = re.compile(r"<(?:(/?[a-z][^ >]*)[^>]*|!--.*?--)>", re.DOTALL)
_WRITTEN = re.compile(f"{_KEPT}([^{_KEPT_END}]*){_KEPT_END}")
_MENU = re.compile(
    f"{_BLOCK} *(?:{_LINK}[^{_BLOCK}{_LINE}{_LINK_END}]*{_LINK_END}[^\\w{_BLOCK}{_LINE}{_LINK}]*){{2,}}(?={_BLOCK})"
)
"""A block of links alone."""
_NEIGHBOURS = re.compile(f"{_END}[{_LINK}-{_END}]*[{_LINK}{_SPAN}](?=(.))")
_HAS_SPACES = re.compile(r"[0-9A-Za-z\xc0-\u0dff]")
"""Letters of scripts that have spaces between words."""
_MARKED = re.compile(rf"{_RAISED}([^{_BLOCK}-{_KEPT_TAB}]*){_RAISED_END}")
_BLANKS = f" \xa0{_KEPT_SPACE}{_KEPT_TAB}"
_SPACES = re.compile("  +")
_FILLED = 50
"""Lines of so many characters are often ended by the layout."""

_HEAD_BYTES = 1 << 16
"""In so many bytes of a record stands what it is."""
_CHUNK_BYTES = 1 << 14
_LEAST_BYTES = 1 << 10
_ADVICE = "fetch the file again and repeat the run"
_VERSION, _BLANK = b"WARC/", b"\r\n\r\n"
_START = re.compile(rb"WARC/\d\.\d\r\n")
_MEMBER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n")
_HEADER_END = re.compile(rb"\n\r?\n")
_STATUS = re.compile(rb"HTTP/[\d.]+[ \t]+(\d)")
_PAGES = ("text/html", "application/xhtml+xml")
_TEXT = "text/plain"
"""What crawlers make of pages (WET files)."""
_LIKE_PAGE = re.compile(rb"(?i)[\s\xef\xbb\xbf]*(?:<!--.{0,500}?-->\s*)?<(?:!doctype html|html)\b", re.DOTALL)
_META = {"url": "warc-target-uri", "date": "warc-date", "truncated": "warc-truncated"}


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
    """
    from resiliparse.parse.html import HTMLTree

    encoding = encoding_of(content, config.encoding, lambda: _declared(content, charset))
    decoded = decode(content, encoding=encoding, errors=config.errors)
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
    declarations = _found(tree, "meta[charset], meta[http-equiv=content-type i]")
    labels = [label for meta in declarations for label in _CHARSET.findall(meta.html)]
    for label in (charset, *labels) if charset else labels:
        name = "cp1252" if label.strip().lower() == "x-user-defined" else codec_of(label)
        if name is not None:
            return name
    return encoding_of_xml(content)


def encoding_of_xml(content: bytes) -> str | None:
    """Return the encoding that the first line of XML declares."""
    declaration = _XML.match(content)
    return codec_of(declaration[1].decode("latin-1")) if declaration else None


def _remove_hidden(tree: Any) -> None:
    """Take out what a page does not show, and links to notes."""

    for element in _found(tree, _NOT_SHOWN):
        element.remove()
    # A page that hides itself is shown by its scripts.
    for element in _found(tree, "[style]:not(html, body)"):
        if _HIDES.search(element.getattr("style")):
            element.remove()
    for element in _found(tree, _NOTE_LINKS):
        if is_note_mark(element.text.strip(), "word"):
            element.remove()


def _found(tree: Any, selectors: str) -> list[Any]:
    # Iterating over the collection itself takes quadratic time.
    return list(tree.document.query_selector_all(selectors).values())


def _without_tags(markup: str) -> str:
    """Return the text of a page that was written from its tree, with what its tags stand for."""
    # Faster than a function that is called for each tag.
    pieces = _TAG.split(markup)
    pieces[1::2] = map(_MEANING.get, pieces[1::2], repeat(""))
    return unescape("".join(pieces))


def _main_content(tree: Any) -> str:
    """Return what resiliparse takes for the article of a page, with what tags stand for."""
    from resiliparse.extract.html2text import extract_plain_text

    for element in _found(tree, ",".join((*_BLOCKS.split(), "sup"))):
        element.prepend(tree.create_text_node(_MEANING[element.tag]))
        element.append(tree.create_text_node(_MEANING[f"/{element.tag}"]))
    for element in _found(tree, "br"):
        element.before(tree.create_text_node(_LINE))
    text: str = extract_plain_text(tree, main_content=True, list_bullets=False, alt_texts=False)
    return text


def _laid_out(text: str) -> str:
    """Return a text in which white space is as it is shown, and blocks are set apart."""
    text = _WRITTEN.sub(lambda found: found[1].strip("\n").translate(_AS_WRITTEN), text)
    text = _NEIGHBOURS.sub(_between_neighbours, text)
    for mark in (_KEPT, _KEPT_END, _SPAN, _END, "\u00ad"):
        text = text.replace(mark, "")
    for blank in "\t\n\f\r":
        text = text.replace(blank, " ")
    text = _MARKED.sub(_with_raised, text)
    text = _MENU.sub(lambda found: found[0].replace(_LINK_END, _BLOCK), f"{_BLOCK}{text}{_BLOCK}")
    for mark in (_RAISED, _RAISED_END, _LINK, _LINK_END):
        text = text.replace(mark, "")
    written = filter(None, text.split(_BLOCK))
    blocks = (_with_line_ends(block) if _LINE in block else block.strip(_BLANKS) for block in written)
    text = _SPACES.sub(" ", "\n\n".join(filter(None, blocks)))
    return text.replace(_KEPT_SPACE, " ").replace(_KEPT_TAB, "\t")


def _between_neighbours(found: re.Match[str]) -> str:
    """Return what is between elements without white space between: links as in a menu, or words in columns."""
    before, after = found.string[max(found.start() - 1, 0)], found[1]
    if not (_LINK_END in found[0] and _LINK in found[0]):
        return _BLOCK + found[0] if before.islower() and after.isupper() else found[0]
    is_apart = _HAS_SPACES.match(before) and _HAS_SPACES.match(after) and not after.islower()
    return f"{_LINK_END}{_BLOCK}{_LINK}" if is_apart else ""


def _with_raised(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - 8) : found.start()]
    return f" {found[1]}" if is_note_mark(found[1].strip(), before) else found[1]


def _with_line_ends(paragraph: str) -> str:
    """Return lines, each a block of its own unless it is filled, or the next one goes on with a small letter."""
    lines = [_SPACES.sub(" ", line.strip(_BLANKS)) for line in paragraph.split(_LINE)]
    pieces: list[str] = []
    for before, line in pairwise(("", *lines)):
        if line:
            goes_on = before and (len(before) >= _FILLED or line[0].islower())
            pieces += ("\n" if goes_on else "\n\n", line)
    return "".join(pieces[1:])


class WarcReader(ArchiveReader):
    """Reads the pages of archives."""

    suffixes = with_codecs(".warc")
    libraries = ("fastwarc", "resiliparse")

    @override
    def finds(self, path: str, config: ReaderConfig) -> bool:
        return super().finds(path, config) or _has_members(path)

    @override
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[Record]:
        archive = (_Members if _has_members(path) else _Records)(path, config)
        with closing(archive.file):
            archive.go_to(start)
            for begins, end, content in archive.pages():
                page = _page_of(content) if isinstance(content, bytes) and config.id_field in _META else None
                yield Record(begins, end, content, doc_id=page.meta.get(config.id_field) if page else None)

    @override
    def extract(self, raw: Record, config: ReaderConfig) -> Decoded:
        page: Any = _page_of(raw.content)
        content = _decoded(raw.content, page, config) if page.is_encoded else raw.content[page.start :]
        if page.media == _TEXT:
            found = decode(content, encoding=config.encoding, errors=config.errors)
        else:
            is_xml, main_content = page.media == _PAGES[1], config.main_content
            found, title = read_page(content, config, charset=page.charset, main_content=main_content, is_xml=is_xml)
            page.meta.update({"title": title} if title else {})
        return found._replace(meta=meta_of(page.meta, config=config)[0])


class _Page(NamedTuple):
    """What the headers of a record say of its page, which begins at ``start``."""

    start: int
    media: str
    charset: str | None
    is_encoded: bool
    meta: dict[str, str]


class _Records:
    """The records of a file, perhaps compressed as a whole, which are read forward."""

    are_members = False

    def __init__(self, path: str, config: ReaderConfig) -> None:
        self.file, self._packed = (open_file(path), None) if self.are_members else open_stream(path)
        self.position = 0 if self._packed else self.file.seek(0, io.SEEK_END)
        self._size = sys.maxsize if self._packed else self.position
        self._most = config.max_record_bytes
        self._ahead = b""

    def go_to(self, position: int) -> None:
        if 0 <= position - self.position <= len(self._ahead):
            self._ahead = self._ahead[position - self.position :]
        else:
            position, self._ahead = self.file.seek(position), b""
        self.position = position

    def pages(self) -> Iterator[tuple[int, int, bytes | RecordError]]:
        """Yield where each page begins and ends, and its record, or why it cannot be read."""
        is_lost = False
        while not is_lost:
            start, content = self.position, None
            try:
                content = self._next()
            except (EOFError, RecordError) as error:
                fault = (self._packed and self._packed.error) or error
                if isinstance(fault, EOFError):
                    return
                is_lost = fault.loses_file = not self._find(start)
                content = fault
            if content is not None:
                yield start, max(self.position, start + 1), content

    def _see(self, size: int) -> bytes:
        """Return the next bytes, at least so many unless the file ends."""
        if len(self._ahead) < size:
            self._ahead += read_at_most(self.file, size - len(self._ahead))
        return self._ahead

    def _next(self) -> bytes | RecordError | None:
        """Return the record that begins here, None in place of one that is no page; EOFError where there is none."""
        if not (content := self._see(_HEAD_BYTES)):
            raise EOFError
        size, page = _length_of(content), _page_of(content)
        end = self.position + size
        found: bytes | RecordError | None = None
        if page and end <= self._size:
            found = self._see(size)[:size] if size <= self._most else too_large(self._most)
        self.go_to(min(end - 1, self._size))
        if not (behind := self._see(_LEAST_BYTES)):
            raise RecordError("truncated_stream", f"expected a record that ends at byte {end:,}, got fewer; {_ADVICE}")
        if (blank := behind[1 : 1 + len(_BLANK)]).strip():
            raise _invalid(f"the end of a record at byte {end:,}", blank)
        self.go_to(end + len(behind[1:]) - len(behind[1:].lstrip()))
        return found

    def _find(self, start: int) -> bool:
        """Go to the next place behind ``start`` where a record may begin, and tell whether there is one."""
        # What is compressed as a whole is read once, and many members that unpack far before they break off take long.
        back = _HEAD_BYTES if self.are_members else 0 if self._packed else self.position
        self.go_to(max(start + 1, self.position - back))
        while ahead := self._see(_CHUNK_BYTES):
            if (found := next(self._starts(ahead), None)) is not None:
                self.go_to(self.position + found)
                return True
            # Whatever begins at its end is looked at again, with what follows it.
            self.go_to(self.position + (len(ahead) - _LEAST_BYTES if len(ahead) > _LEAST_BYTES else len(ahead)))
        return False

    def _starts(self, content: bytes) -> Iterator[int]:
        return (found.start() for found in _START.finditer(content))


class _Members(_Records):
    """The records of a file of gzip members that hold one each."""

    are_members = True

    @override
    def _next(self) -> bytes | RecordError | None:
        content, length = self._unpacked()
        try:
            end, page = _length_of(content), _page_of(content)
        except RecordError as error:
            return error
        if page and length > self._most:
            return too_large(self._most)
        if content[end:].strip() or not end <= length <= end + len(_BLANK):
            return _invalid(f"a record of {end:,} bytes alone in its gzip member", content[end:])
        return content[:end] if page else None

    def _unpacked(self) -> tuple[bytes, int]:
        """Read a member; return its content, only the first bytes if it is too large or no page, and its length."""
        while (ahead := self._see(_CHUNK_BYTES)).startswith(b"\0"):  # which pad files, as of tapes
            self.go_to(self.position + len(ahead) - len(ahead.lstrip(b"\0")))
        start, decoder = self.position, zlib.decompressobj(wbits=31)
        content, length = bytearray(), 0
        while not decoder.eof:
            packed = self._see(_CHUNK_BYTES)[:_CHUNK_BYTES]
            try:
                piece = decoder.decompress(packed, _HEAD_BYTES)
            except zlib.error as error:
                raise RecordError("corrupt_stream", f"expected a gzip member, got {error}; {_ADVICE}") from None
            if not (packed or piece):
                cut = RecordError("truncated_stream", f"the file ends within a record; {_ADVICE}")
                raise cut if self.position > start else EOFError
            self.go_to(self.position + len(packed) - len(decoder.unconsumed_tail or decoder.unused_data))
            length, taken = length + len(piece), self.position - start
            if length > most_unpacked(taken):
                raise unpacks_too_far(taken, most_unpacked(taken))
            head = bytes(content[:_HEAD_BYTES])
            if len(head) < _HEAD_BYTES or (length <= self._most and _page_of(head)):
                content += piece
        return bytes(content), length

    @override
    def _starts(self, content: bytes) -> Iterator[int]:
        starts = (found.start() for found in _MEMBER.finditer(content))
        return (start for start in starts if _begins_record(content[start : start + _LEAST_BYTES]))


def _length_of(content: bytes) -> int:
    """Return the length of a record: that of its header, and of what follows it as the header states it."""
    end = content.find(_BLANK)
    stated = _LENGTH.search(content, 0, end + 2) if end >= 0 else None
    # Another record's first line is no header of this one.
    if stated is None or not content.startswith(_VERSION) or _START.search(content, 1, end):
        raise _invalid("the header of a record", content)
    return end + len(_BLANK) + int(stated[1])


def _invalid(expected: str, found: bytes) -> RecordError:
    return RecordError("invalid_warc", f"expected {expected}, got {found[:20]!r}; {_ADVICE}")


def _page_of(content: bytes) -> _Page | None:
    """Return what a record, given by its first bytes, says of its page, None where it is no page."""
    fields, start = _fields_of(content, 0)
    kind, headers = fields.get("warc-type", "").lower(), fields
    if kind == "response" and _bare_type(fields) == "application/http":
        status = _STATUS.match(content, start)
        if status is None and content[start:].strip():
            return _Page(start, "", None, is_encoded=True, meta={})
        if status is None or status[1] != b"2":
            return None
        headers, start = _fields_of(content, start)
    elif kind not in ("resource", "conversion"):
        return None
    media = _bare_type(headers)
    is_page = media in _PAGES or (not media and _LIKE_PAGE.match(content, start))
    if not (media == _TEXT if kind == "conversion" else is_page):
        return None
    charset = _CHARSET.search(headers.get("content-type", ""))
    is_encoded = not headers.keys().isdisjoint(("transfer-encoding", "content-encoding"))
    meta = {name: fields[header].strip("<>") for name, header in _META.items() if fields.get(header)}
    return _Page(start, media, charset[1] if charset else None, is_encoded, meta)


def _fields_of(content: bytes, start: int) -> tuple[dict[str, str], int]:
    """Return the fields of the header that begins there, by their names in lower case, and where it ends."""
    found = _HEADER_END.search(content, start, start + _HEAD_BYTES)
    end, body = found.span() if found else (len(content), len(content))
    lines = (line.partition(":") for line in content[start:end].decode(errors="replace").split("\n"))
    return {name.strip().lower(): value.strip() for name, _, value in lines}, body


def _bare_type(fields: Mapping[str, str]) -> str:
    return fields.get("content-type", "").partition(";")[0].strip().lower()


def _decoded(content: bytes, page: _Page, config: ReaderConfig) -> bytes:
    """Return the page within a record whose headers say that it is sent in chunks or compressed."""
    from fastwarc.warc import WarcRecord

    most = min(most_unpacked(len(content)), config.max_record_bytes)
    record = WarcRecord.from_bytes(content)
    try:
        # In quirks mode lines may end in a line feed alone, as in ClueWeb.
        record.parse_http(auto_decode="all", quirks_mode=True)
        if record.http_headers.status_code is None:
            raise RecordError("invalid_http", "expected a server's answer of HTTP, got something else")
        decoded: bytes = record.reader.read(most + 1)
    except OSError as error:
        # Some archives store pages decoded, and their headers say otherwise.
        stored = content[page.start :]
        if stored.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            return stored
        reason = f"expected a page that can be decoded, got one that cannot ({error})"
        raise RecordError("invalid_http", reason) from None
    if len(decoded) > most:
        raise too_large(most) if most == config.max_record_bytes else unpacks_too_far(len(content), most)
    return decoded


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
            content = zlib.decompressobj(wbits=31).decompress(file.read(_HEAD_BYTES), 1 << 20)
            return not content[_length_of(content) :].strip()
        except (zlib.error, RecordError):
            return False
