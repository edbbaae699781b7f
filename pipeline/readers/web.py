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
from math import inf
from pathlib import PurePath
from typing import Any

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
    "script,style,template,noscript,iframe,noframes,noembed,object,video,audio,canvas,datalist,head,title,metadata,"
    "desc,rt,rp,annotation,annotation-xml,[hidden],[popover],dialog:not([open]),"
    # Of a list that opens on a click, the choice.
    "select:not([multiple],[size]) option:not([selected]),[role=doc-noteref],[epub\\:type~=noteref]"
)
_HIDES = re.compile(
    r"(?i)(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\s*(?:!\s*important\s*)?(?:;|$)"
)
_NOTE_LINKS = 'sup:has(a[href*="#"]),a[href*="#"]>sup'

# What tags stand for, in characters that no text may contain.
_BLOCK, _LINE, _RAISED, _RAISED_END, _KEPT, _KEPT_END, _LINK, _LINK_END, _SPAN, _SPAN_END = map(
    chr, range(0xFDD0, 0xFDDA)
)
_TO_ASCII = {0xFDD0 + number: 0x0E + number for number in range(6)}
"""Resiliparse finds no content in other characters that stand alone."""
_AS_WRITTEN = str.maketrans({" ": "\ufdda", "\t": "\ufddb", "\n": _LINE})
_BLOCKS = (
    "address article aside blockquote body button caption center dd details dialog dir div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr label legend li listing main menu nav ol optgroup option p "
    "pre search section select summary table tbody td text textarea tfoot th thead tr ul"
)
_MEANING = (
    {f"{end}{name}": _BLOCK for name in _BLOCKS.split() for end in ("", "/")}
    | {"br": _LINE, "a": _LINK, "/a": _LINK_END, "sup": _RAISED, "/sup": _RAISED_END}
    | {"span": _SPAN, "/span": _SPAN_END}
    | dict.fromkeys(("pre", "textarea", "listing"), _BLOCK + _KEPT)
    | dict.fromkeys(("/pre", "/textarea", "/listing"), _KEPT_END + _BLOCK)
    | dict.fromkeys(("img", "input", "embed", "svg"), " ")
)
_TAG = re.compile(r"<(/?[a-z][^\s>]*)[^>]*>|<!--.*?-->", re.DOTALL)
_WRITTEN = re.compile(f"{_KEPT}(.*?){_KEPT_END}", re.DOTALL)
_ONLY_LINKS = re.compile(f"(?:{_LINK}[^{_LINK_END}]*{_LINK_END}[^\\w{_LINK}]*){{2,}}")
_NEIGHBOURS = re.compile(f"[{_LINK_END}{_SPAN_END}][{_LINK}-{_SPAN_END}]*[{_LINK}{_SPAN}](?=(.))")
_HAS_SPACES = re.compile(r"[0-9A-Za-z\xc0-\u0dff]")
"""Letters of scripts that have spaces between words."""
_MARKED = re.compile(rf"{_RAISED}([^\ufdd0-\ufddb]*){_RAISED_END}")
_BLANKS = " \xa0\ufdda\ufddb"
_BLANK_LINES = re.compile(f"(?:{_LINE}[{_BLANKS}]*){{2,}}")
_BORDERS = re.compile(rf"{_BLOCK}[ {_BLOCK}]*")
_FILLED = 50
"""Lines of so many characters are often ended by the layout."""

_HEAD_BYTES = 1 << 16
"""In so many bytes of a record stands what it is."""
_CHUNK_BYTES = 1 << 14
_LEAST_BYTES = 1 << 10
_ADVICE = "fetch the file again and repeat the run"
_VERSION, _BLANK = b"WARC/", b"\r\n\r\n"
_START = re.compile(rb"WARC/\d\.\d\r\n\Z")
_START_BYTES = len(b"WARC/1.0\r\n")
_MEMBER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n")
_FIELD = re.compile(rb"(?m)^([\w-]+):[ \t]*(.*?)[ \t\r]*$")
_HEADER_END = re.compile(rb"\r?\n\r?\n")
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

    Raises:
        RecordError: when it cannot be decoded.
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

    def found(selectors: str) -> list[Any]:
        # Iterating over the collection itself takes quadratic time.
        return list(tree.document.query_selector_all(selectors).values())

    for element in found(_NOT_SHOWN):
        element.remove()
    for element in found("[style]"):
        # A page that hides itself is shown by its scripts.
        if _HIDES.search(element.getattr("style")) and element.tag not in ("html", "body"):
            element.remove()
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

    for element in tree.document.query_selector_all(",".join((*_BLOCKS.split(), "sup"))).values():
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
    text = _NEIGHBOURS.sub(_between_neighbours, text)
    for mark in (_KEPT, _KEPT_END, _SPAN, _SPAN_END, "\u00ad"):
        text = text.replace(mark, "")
    # Bytes are split at the white space of HTML alone.
    text = b" ".join(text.encode().split()).decode()
    if _RAISED in text:
        text = _MARKED.sub(_with_raised, text).replace(_RAISED, "").replace(_RAISED_END, "")
    text = "\n\n".join(chain.from_iterable(map(_shown, _BORDERS.split(_BLANK_LINES.sub(_BLOCK, text)))))
    return text.replace("\ufdda", " ").replace("\ufddb", "\t")


def _shown(block: str) -> Iterator[str]:
    """Yield a block, or several where it is a list of links, or of lines."""
    is_menu = _LINE not in block and _ONLY_LINKS.fullmatch(block.strip(_BLANKS))
    for item in block.split(_LINK_END) if is_menu else [block]:
        text = item.replace(_LINK, "").replace(_LINK_END, "").strip(_BLANKS + _LINE)
        if text:
            yield _with_line_ends(text) if _LINE in text else text


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
    lines = [line.strip(_BLANKS) for line in paragraph.split(_LINE)]
    ends = ("\n" if len(line) >= _FILLED or after[:1].islower() else "\n\n" for line, after in pairwise(lines))
    return "".join(chain.from_iterable(zip(lines, (*ends, ""), strict=True)))


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
            for begins, end, content in _pages(archive, start):
                doc_id = _meta(content).get(config.id_field) if isinstance(content, bytes) else None
                yield Record(begins, end, content, doc_id=doc_id)

    @override
    def extract(self, raw: Record, config: ReaderConfig) -> Decoded:
        content: Any = raw.content
        media, (payload, charset) = _media_type(content), _payload(content, config)
        if media == _TEXT:
            page, title = decode(payload, encoding=config.encoding, errors=config.errors), ""
        else:
            page, title = read_page(
                payload, config, charset=charset, main_content=config.main_content, is_xml=media == _PAGES[1]
            )
        fields = _meta(content) | ({"title": title} if title else {})
        return page._replace(meta=meta_of(fields, config=config)[0])


def _pages(archive: "_Records | _Members", start: int) -> Iterator[tuple[int, int, bytes | RecordError]]:
    """Yield where each page from a position on begins and ends, and its record, or why it cannot be read."""
    archive.file.seek(start)
    while True:
        start, is_lost = archive.position, False
        content: bytes | RecordError | None
        try:
            content = archive.next()
        except EOFError:
            return
        except RecordError as error:
            is_lost = error.loses_file = not archive.find(start + 1)
            content = error
        if content is not None:
            yield start, max(archive.position, start + 1), content
        if is_lost:
            return


class _Records:
    """A file of records, perhaps compressed as a whole."""

    def __init__(self, path: str, config: ReaderConfig) -> None:
        self.file, self._packed = open_stream(path)
        self._size = inf if self._packed else self.file.seek(0, io.SEEK_END)
        self._most = config.max_record_bytes
        self._first_line = b""

    @property
    def position(self) -> int:
        """Where the next record begins, whose first line may have been read."""
        return self.file.tell() - len(self._first_line)

    def next(self) -> bytes | RecordError | None:
        """Return the record that begins here, None in place of one that is no page.

        Raises:
            RecordError: when its end is not found.
            EOFError: when there is none.
        """
        try:
            header = self._read_header()
            length = _header_of(header)[1]
            begins = self.file.tell()
            if not self._packed:
                # Nothing is read in vain where the length is wrong.
                self._pass(begins + length)
                self.file.seek(begins)
            content = header + self.file.read(min(length, _HEAD_BYTES))
            found: bytes | RecordError | None = None
            if _media_type(content) is not None:
                found = too_large(self._most)
                if length <= self._most:
                    found = content + read_at_most(self.file, begins + length - self.file.tell())
            self._pass(begins + length)
        except (RecordError, EOFError) as error:
            raise (self._packed and self._packed.error) or error from None
        return found

    def find(self, offset: int) -> bool:
        """Go to the next record from an offset on; from here where the file is compressed, which is read once."""
        if not self._packed:
            self.file.seek(offset)
            self._first_line = b""
        end = self._first_line
        while not _START.match(end):
            if not (line := self.file.readline(_HEAD_BYTES)):
                return False
            end = (end + line)[-_START_BYTES:]
        self._first_line = end
        return True

    def _read_header(self) -> bytes:
        header, self._first_line = self._first_line, b""
        while not header.endswith(_BLANK) and len(header) < _HEAD_BYTES:
            line = self.file.readline(_HEAD_BYTES)
            if header and _START.search(line):
                # Another record's first line is no header of this one.
                self._first_line = line[-_START_BYTES:]
                break
            if not line:
                break
            header += line if header or line.strip() else b""
        if not header:
            raise EOFError
        return header

    def _pass(self, end: int) -> None:
        """Go behind a record and the blank lines that follow it."""
        if end > self._size or self.file.seek(end) < end:
            raise RecordError("truncated_stream", f"expected a record that ends at byte {end:,}, got fewer; {_ADVICE}")
        if (blank := self.file.read(len(_BLANK))).strip():
            raise _invalid(f"the end of a record at byte {end:,}", blank)


class _Members:
    """A file of gzip members that hold a record each; its methods are those of ``_Records``."""

    def __init__(self, path: str, config: ReaderConfig) -> None:
        self.file = open_file(path)
        self._most = config.max_record_bytes

    @property
    def position(self) -> int:
        return self.file.tell()

    def next(self) -> bytes | RecordError | None:
        content, length = self._unpacked()
        try:
            end = sum(_header_of(content))
        except RecordError as error:
            return error
        is_page = _media_type(content) is not None
        if is_page and length > self._most:
            return too_large(self._most)
        if content[end:].strip() or not end <= length <= end + len(_BLANK):
            return _invalid(f"a record of {end:,} bytes alone in its gzip member", content[end:])
        return content[:end] if is_page else None

    def _unpacked(self) -> tuple[bytes, int]:
        """Read a member; return its content, only the first bytes if it is too large or no page, and its length."""
        while (ahead := self.file.peek()).startswith(b"\0"):  # which pad files, as of tapes
            self.file.seek(len(ahead) - len(ahead.lstrip(b"\0")), io.SEEK_CUR)
        start, decoder = self.file.tell(), zlib.decompressobj(wbits=31)
        content, length, taken = bytearray(), 0, 0
        while not decoder.eof:
            packed = decoder.unconsumed_tail or self.file.read(_CHUNK_BYTES)
            try:
                piece = decoder.decompress(packed, _HEAD_BYTES)
            except zlib.error as error:
                raise RecordError("corrupt_stream", f"expected a gzip member, got {error}; {_ADVICE}") from None
            if not (packed or piece):
                raise (
                    RecordError("truncated_stream", f"the file ends within a record; {_ADVICE}") if taken else EOFError
                )
            length, taken = length + len(piece), self.file.tell() - start
            if length > most_unpacked(taken):
                raise unpacks_too_far(taken, most_unpacked(taken))
            head = bytes(content[:_HEAD_BYTES])
            if len(head) < _HEAD_BYTES or (length <= self._most and _media_type(head) is not None):
                content += piece
        self.file.seek(-len(decoder.unused_data), io.SEEK_CUR)
        return bytes(content), length

    def find(self, offset: int) -> bool:
        # A member that unpacks far before it breaks off is not searched from its beginning: many would take long.
        offset = self.file.seek(max(offset, self.file.tell() - _HEAD_BYTES))
        before = b""
        while chunk := self.file.read(_CHUNK_BYTES):
            content = before + chunk
            for found in _MEMBER.finditer(content):
                if _begins_record(content[found.start() : found.start() + _LEAST_BYTES]):
                    self.file.seek(offset - len(before) + found.start())
                    return True
            offset += len(chunk)
            # Whatever begins there is looked at again, with what follows it.
            before = content[-_LEAST_BYTES:]
        return False


def _header_of(content: bytes) -> tuple[int, int]:
    """Return the length of a record's header, and that of what follows it as the header states it."""
    end = content.find(_BLANK)
    stated = _LENGTH.search(content, 0, end + 2) if end >= 0 else None
    if stated is None or not content.startswith(_VERSION):
        raise _invalid("the header of a record", content)
    return end + len(_BLANK), int(stated[1])


def _invalid(expected: str, found: bytes) -> RecordError:
    return RecordError("invalid_warc", f"expected {expected}, got {found[:20]!r}; {_ADVICE}")


def _fields_of(content: bytes) -> tuple[dict[str, str], bytes]:
    """Return the fields of a header, by their names in lower case, and what follows it."""
    header, *body = _HEADER_END.split(content, maxsplit=1)
    fields = {name.decode().lower(): value.decode(errors="replace") for name, value in _FIELD.findall(header)}
    return fields, b"".join(body)


def _meta(content: bytes) -> dict[str, str]:
    """Return what the header of a record says of its page."""
    fields, _ = _fields_of(content[:_HEAD_BYTES])
    return {name: fields[header].strip("<>") for name, header in _META.items() if fields.get(header)}


def _media_type(content: bytes) -> str | None:
    """Return the media type of the page whose record has these first bytes, None where it is no page.

    It is empty where none is stated, and where the record must be read to know what is wrong with it.
    """
    fields, body = _fields_of(content[:_HEAD_BYTES])
    kind = fields.get("warc-type", "").lower()
    if kind == "response" and _bare_type(fields) == "application/http":
        status = _STATUS.match(body)
        if status is None:
            return "" if body.strip() else None
        fields, body = _fields_of(body)
        if status[1] != b"2":
            return None
    elif kind not in ("resource", "conversion"):
        return None
    media = _bare_type(fields)
    if kind == "conversion":
        return media if media == _TEXT else None
    return media if media in _PAGES or (not media and _LIKE_PAGE.match(body)) else None


def _bare_type(fields: dict[str, str]) -> str:
    return fields.get("content-type", "").partition(";")[0].strip().lower()


def _payload(content: bytes, config: ReaderConfig) -> tuple[bytes, str | None]:
    """Return the page within a record, and its encoding if the server states it."""
    most = min(most_unpacked(len(content)), config.max_record_bytes)
    try:
        page, charset = _read(content, most + 1, "all")
    except OSError as error:
        # Some archives store pages decoded, and their headers say otherwise.
        page, charset = _read(content, most + 1, "none")
        if not page.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            raise RecordError(
                "invalid_http", f"expected a page that can be decoded, got one that cannot ({error})"
            ) from None
    if len(page) > most:
        raise too_large(most) if most == config.max_record_bytes else unpacks_too_far(len(content), most)
    return page, charset


def _read(content: bytes, most: int, decoding: Any) -> tuple[bytes, str | None]:
    from fastwarc.warc import WarcRecord

    record = WarcRecord.from_bytes(content)
    if record.is_http:
        # In quirks mode lines may end in a line feed alone, as in ClueWeb.
        record.parse_http(auto_decode=decoding, quirks_mode=True)
        if record.http_headers.status_code is None:
            raise RecordError("invalid_http", "expected a server's answer of HTTP, got something else")
    return record.reader.read(most), (record.http_charset or "").strip("\"' ") or None


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
            return not content[sum(_header_of(content)) :].strip()
        except (zlib.error, RecordError):
            return False
