"""Office documents and books: .docx, .odt, .rtf and .epub.

What is hidden, removed or only a mark of a note is left out; notes follow the text, as parts of it. A cell of a table
is a paragraph, or several, so that no name runs from one cell into the next. No macro, link, embedded file or external
entity is opened; of files within a file no more is unpacked than of a compressed one.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from email import message_from_bytes
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urldefrag
from zipfile import BadZipFile, ZipFile

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.documents import Lost
from concord.pipeline.readers.base import FileReader, as_record_errors
from concord.pipeline.readers.files import Decoded, decode, most_unpacked, unpacks_too_far, with_codecs
from concord.pipeline.readers.records import RecordError, too_large
from concord.pipeline.readers.text import Gap, TextBuilder
from concord.pipeline.readers.web import read_page

_META = {"title": "title", "creator": "author", "subject": "subject", "keywords": "keywords", "created": "created"}
_BOOK_META = {"title": "title", "creator": "author", "language": "language", "date": "date"}
_OLE = b"\xd0\xcf\x11\xe0"
_LEFT_OUT = "left-out"
_MOST_STYLES, _MOST_INCLUDED = 100, 5
_FATAL = ("unpacks_too_far", "record_too_large")
"""Faults that are of the file, even where a part of it has them."""

_CHARACTER_SETS = {
    int(number): encoding
    for number, encoding in re.findall(
        r"(\d+):(\S+)",
        "0:cp1252 1:cp1252 77:mac-roman 78:cp932 79:cp949 80:gb18030 81:big5 83:mac-hebrew 84:mac-arabic 85:mac-greek "
        "86:mac-turkish 87:mac-thai 88:mac-latin2 89:mac-cyrillic 128:cp932 129:cp949 130:johab 134:gb18030 136:cp950 "
        "161:cp1253 162:cp1254 163:cp1258 177:cp1255 178:cp1256 186:cp1257 204:cp1251 222:cp874 238:cp1250 254:cp437 "
        "255:cp850",
    )
}
"""The encodings of fonts, by the numbers that Windows gives them."""
_SYMBOL, _PICTURES = "symbol", "pictures"
_PICTURE_FONTS = ("dings", "opensymbol", "marlett", "monotype sorts", "mt extra")
_SYMBOLS: dict[int, str] = dict(
    zip(
        (*range(0x20, 0x7F), *range(0xA0, 0xE6)),
        " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼"
        "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑",
        strict=True,
    )
)
"""What the font Symbol shows."""
_OF_FONTS = re.compile("[\uf000-\uf0ff]")

_KeyT = TypeVar("_KeyT")


class DocxReader(FileReader):
    """Reads files of Word since 2007."""

    suffixes = with_codecs(".docx")
    text_share = 0.2
    libraries = ("lxml", "resiliparse")

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        document = _Document(content, config)
        return document.decoded(_Word(content, document).read())


class OdtReader(FileReader):
    """Reads files of LibreOffice and others in OpenDocument."""

    suffixes = with_codecs(".odt")
    text_share = 0.2
    libraries = ("lxml",)

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        document = _Document(content, config)
        return document.decoded(_read_odt(_Files(content, document), document))


class RtfReader(FileReader):
    """Reads files in the Rich Text Format."""

    suffixes = with_codecs(".rtf")
    text_share = 0.2

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        document = _Document(content, config)
        _Rtf(document).read(content)
        return document.decoded({})


class EpubReader(FileReader):
    """Reads files of one book each, whose chapters are parts."""

    suffixes = with_codecs(".epub")
    libraries = ("lxml", "resiliparse")

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        document = _Document(content, config)
        return document.decoded(_read_epub(_Files(content, document), document))


class _Document:
    """What is read of a document, within its bounds.

    Attributes:
        lost, replaced: see Decoded.
    """

    def __init__(self, content: bytes, config: ReaderConfig) -> None:
        self.config = config
        self.text, self._boxes, self._notes = (TextBuilder(config.max_record_bytes) for _ in range(3))
        self.lost: list[Lost] = []
        self.replaced = 0
        self._size, self._unpacked, self._noted = len(content), 0, 0

    def begin_box(self) -> TextBuilder:
        """Return the text in which a box begins."""
        self._boxes.separate()
        return self._boxes

    def begin_note(self, kind: str) -> TextBuilder:
        """Return the text in which a note begins."""
        self._noted += 1
        self._notes.separate()
        self._notes.begin_part(kind, f"{kind} {self._noted}")
        return self._notes

    def unpack(self, size: int) -> None:
        """Count what is unpacked; raise a RecordError before it is too much."""
        self._unpacked += size
        if self._unpacked > (most := most_unpacked(self._size)):
            raise unpacks_too_far(self._size, most)
        if size > self.config.max_record_bytes:
            raise too_large(self.config.max_record_bytes)

    @contextmanager
    def losing(self, kind: str, number: int | None = None) -> Iterator[None]:
        """Lose a part of the document if it cannot be read; it has the next number unless one is given."""
        try:
            with as_record_errors(kind):
                yield
        except RecordError as error:
            if error.code in _FATAL:
                raise
            self.lost.append(Lost(number or len(self.lost) + 1, error.code, str(error)))

    def decoded(self, meta: Mapping[str, str]) -> Decoded:
        """Return the text, and then what stands in boxes, and notes as parts."""
        self.text.write_builder(self._boxes)
        self.text.write_builder(self._notes)
        text, parts = self.text.built(join_lines=False)
        if self.lost and not text:
            raise RecordError(self.lost[0].error, self.lost[0].message)
        fields = {name: value.replace("\0", "").strip() for name, value in meta.items()}
        fields = {name: value for name, value in fields.items() if value}
        stored = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode() if fields else None
        return Decoded(text, None, meta=stored, parts=parts, lost=tuple(self.lost), replaced=self.replaced)


class _Files:
    """The files within a file."""

    def __init__(self, content: bytes, document: _Document) -> None:
        try:
            self._archive = ZipFile(BytesIO(content))
        except BadZipFile:
            reason = "expected a zip archive, got other content or a part of one; fetch the file again"
            raise RecordError("unreadable", reason) from None
        self._document = document

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        if path not in self._archive.NameToInfo:
            reason = f"expected the file {path!r} in it, got none; it is no such document, or damaged"
            raise RecordError("incomplete", reason)
        # zipfile reads no more than is stated here.
        self._document.unpack(self._archive.NameToInfo[path].file_size)
        return self._archive.read(path)

    def xml(self, path: str, *, is_needed: bool = True) -> Any:
        """Return the root of an XML file, with nothing in it that would have to be fetched or expanded.

        Args:
            is_needed: whether there must be such a file; otherwise the root may be empty.
        """
        from lxml import etree

        content = self.read(path) if is_needed or path in self._archive.NameToInfo else b"<none/>"
        # The attributes that a document type adds would be copied to each element. UTF-16 has zeros.
        if re.search(rb"<!(?:ATTLIST|ENTITY)", content.replace(b"\0", b"")):
            raise RecordError("has_entities", f"expected no entities of its own in {path!r}, got some; save it again")
        parser = etree.XMLParser(
            resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
        )
        return etree.fromstring(content, parser)

    def meta(self, path: str) -> dict[str, str]:
        """Return what the document says of itself."""
        found = ((_name(element), element.text or "") for element in self.xml(path, is_needed=False).iter("{*}*"))
        return {_META[key]: value for key, value in found if key in _META}


_WORD_GAPS = {"tab": Gap.TAB, "ptab": Gap.TAB, "br": Gap.LINE, "cr": Gap.LINE}
_WORD_CHARACTERS = {"noBreakHyphen": "\u2011", "softHyphen": "\u00ad"}
_WORD_ELEMENTS = (*_WORD_GAPS, *_WORD_CHARACTERS, "sym", "fldChar", "footnoteReference", "endnoteReference")
_NO = ("0", "false", "off", "none")


class _Word:
    """A file of Word, which may be included in another one."""

    def __init__(self, content: bytes, document: _Document, depth: int = 0) -> None:
        if content.startswith(_OLE):
            reason = "encrypted, or a .doc of an older Word; save it as .docx without a password"
            raise RecordError("encrypted", reason)
        self._files, self._document, self._depth = _Files(content, document), document, depth
        self._notes: dict[tuple[str, str], None] = {}

    def read(self) -> dict[str, str]:
        """Read the document, and return what it says of itself."""
        main = (path for kind, path in self._links("").values() if kind == "officeDocument")
        self._main = next(main, "word/document.xml")
        self._related = self._links(self._main)
        root = self._files.xml(self._main)
        if _name(root) != "document":
            raise RecordError("not_docx", f"expected a document of Word, got <{_name(root)}>; rename or remove it")
        self._w = root.tag.removesuffix("document")
        self._find_styles_and_fonts()
        self._write(root, self._document.text)
        for kind in dict.fromkeys(kind for kind, _ in self._notes):
            with self._document.losing(f"file of {kind}s"):
                file = self._part(f"{kind}s", is_needed=True)
                notes = {self._value(note, name="id"): note for note in file.iter(f"{self._w}{kind}")}
                for number in (number for other, number in self._notes if other == kind and number in notes):
                    self._write(notes[number], self._document.begin_note(kind))
        return self._files.meta("docProps/core.xml")

    def _links(self, path: str) -> dict[str, tuple[str, str]]:
        """Return the kinds and paths of the files that a file refers to, by their ids."""
        folder, name = posixpath.split(path)
        root = self._files.xml(posixpath.join(folder, "_rels", f"{name}.rels"), is_needed=False)
        links: dict[str, tuple[str, str]] = {}
        for link in root.iter("{*}Relationship"):
            target = posixpath.normpath(posixpath.join(f"/{folder}", unquote(link.get("Target", "")))).lstrip("/")
            is_inside = link.get("TargetMode") != "External"
            links[link.get("Id", "")] = link.get("Type", "").rpartition("/")[2], target if is_inside else ""
        return links

    def _part(self, kind: str, *, is_needed: bool = False) -> Any:
        """Return the root of the file of a kind."""
        paths = (path for other, path in self._related.values() if other == kind)
        path = next(paths, posixpath.join(posixpath.dirname(self._main), f"{kind}.xml"))
        return self._files.xml(path, is_needed=is_needed)

    def _value(self, element: Any, *path: str, name: str = "val") -> str | None:
        """Return an attribute of the element that a path leads to; ``1`` without it, None without the element."""
        for step in path:
            element = next(element.iterchildren(f"{self._w}{step}"), None)
            if element is None:
                return None
        value: str = element.get(f"{self._w}{name}", "1")
        return value

    def _is_set(self, element: Any, *path: str) -> bool | None:
        """Tell whether a property is set; None where that is left open."""
        value = self._value(element, *path)
        return None if value is None else value not in _NO

    def _is_raised(self, element: Any, *path: str) -> bool | None:
        value = self._value(element, *path, "vertAlign")
        return None if value is None else value == "superscript"

    def _find_styles_and_fonts(self) -> None:
        styles = list(self._part("styles").iter(f"{self._w}style"))
        based_on = {self._value(style, name="styleId"): self._value(style, "basedOn") for style in styles}
        hidden = (self._is_set(style, "rPr", "vanish") for style in styles)
        raised = (self._is_raised(style, "rPr") for style in styles)
        self._hidden = _styles_with(based_on, dict(zip(based_on, hidden, strict=False)))
        self._raised = _styles_with(based_on, dict(zip(based_on, raised, strict=False)))
        self._fonts: dict[str, str | None] = {}
        for font in self._part("fontTable").iter(f"{self._w}font"):
            name = self._value(font, name="name") or ""
            self._fonts[name] = _encoding_of_font(name, int(self._value(font, "charset") or "0", 16))

    def _write(self, root: Any, text: TextBuilder) -> None:
        """Write the paragraphs below an element."""
        self._prepare(root)
        paragraph, cell, *included = (f"{self._w}{name}" for name in ("p", "tc", "altChunk", "subDoc"))
        for block in root.iter(paragraph, cell, *included):
            if block.tag == paragraph:
                self._write_paragraph(block, text)
                continue
            text.separate()
            if block.tag in included:
                with self._document.losing("included file"):
                    self._include(block, text)

    def _prepare(self, root: Any) -> None:
        """Take out what is not shown, and put boxes behind the paragraphs that they stand in."""
        from lxml import etree

        w = self._w
        for mark in root.iter(f"{w}del", f"{w}moveFrom"):
            if mark.getparent().tag == f"{w}rPr":  # the end of the paragraph is removed
                mark.tag = f"{w}vanish"
        if self._hidden or next(root.iter(f"{w}vanish"), None) is not None:
            for run in filter(self._is_hidden, root.iter(f"{w}r")):
                run.tag = _LEFT_OUT
        for mark in root.iter(f"{w}footnoteReference", f"{w}endnoteReference"):
            if mark.get(f"{w}customMarkFollows", "0") not in _NO:
                for letters in mark.itersiblings():
                    letters.tag = _LEFT_OUT
        # The last one is what older programs show in place of a text box.
        etree.strip_elements(root, _LEFT_OUT, f"{w}del", f"{w}moveFrom", f"{w}rt", "{*}Fallback", with_tail=False)
        _flatten(root, f"{w}p")

    def _is_hidden(self, run: Any) -> bool:
        direct = self._is_set(run, "rPr", "vanish")
        if direct is not None or not self._hidden:
            return direct or False
        paragraph = next(run.iterancestors(f"{self._w}p"), run)
        # Of two styles that both hide, the one shows what the other hides.
        of_paragraph = self._value(paragraph, "pPr", "pStyle") in self._hidden
        return of_paragraph != (self._value(run, "rPr", "rStyle") in self._hidden)

    def _write_paragraph(self, paragraph: Any, text: TextBuilder) -> None:
        is_shown, outer = True, list[bool]()
        for element in paragraph.iter("{*}t", *(f"{self._w}{name}" for name in _WORD_ELEMENTS)):
            name = _name(element)
            if name == "fldChar":
                kind = self._value(element, name="fldCharType")
                if kind == "begin":  # of a field, which has an instruction up to its separator
                    outer.append(is_shown)
                    is_shown = False
                else:
                    is_shown = (outer[-1] if kind == "separate" else outer.pop()) if outer else True
            elif is_shown and _name(element.getparent()) == "r":
                self._write_element(name, element, text)
        # A large first letter goes on in the next paragraph, and so does one whose end is hidden.
        if self._value(paragraph, "pPr", "framePr", name="dropCap") in (None, "1", *_NO):
            goes_on = self._is_set(paragraph, "pPr", "rPr", "vanish")
            is_apart = self._is_set(paragraph, "pPr", "rPr", "specVanish")
            text.separate(Gap.SPACE if goes_on and not is_apart else Gap.BLOCK)

    def _write_element(self, name: str, element: Any, text: TextBuilder) -> None:
        run = element.getparent()
        if name in _WORD_GAPS:
            is_page = self._value(element, name="type") in ("page", "column")
            text.separate(Gap.BLOCK if is_page else _WORD_GAPS[name])
        elif name in _WORD_CHARACTERS:
            text.write_exactly(_WORD_CHARACTERS[name])
        elif name.endswith("Reference"):
            self._notes[name.removesuffix("Reference"), self._value(element, name="id") or ""] = None
        elif name == "sym":
            code = int(self._value(element, name="char") or "", 16)
            text.write(self._letters(chr(code), self._value(element, name="font")))
        else:
            is_raised = self._is_raised(run, "rPr")
            if is_raised is None:
                is_raised = self._value(run, "rPr", "rStyle") in self._raised
            written = element.text or ""
            if not written.isascii():
                written = self._letters(written, self._value(run, "rPr", "rFonts", name="ascii"))
            (text.write_raised if is_raised else text.write)(written)
            if not element.tag.startswith(self._w):  # of a formula, whose places say more than its text
                text.separate(Gap.SPACE)

    def _letters(self, written: str, font: str | None) -> str:
        font = font or ""
        return _shown_letters(written, self._fonts.get(font, _encoding_of_font(font, 0)))

    def _include(self, element: Any, text: TextBuilder) -> None:
        """Write a file of another format, or of Word, that stands in place of paragraphs."""
        reference = next((value for key, value in element.attrib.items() if key.endswith("}id")), "")
        if self._depth == _MOST_INCLUDED:
            raise RecordError("nested_too_deep", f"expected files included at most {_MOST_INCLUDED} deep, got more")
        _, path = self._related.get(reference, ("", reference))
        content, config = self._files.read(path), self._document.config
        if content.startswith(b"PK"):
            _Word(content, self._document, self._depth + 1).read()
        elif content.lstrip().startswith(b"{\\rtf"):
            _Rtf(self._document).read(content)
        elif b"<" not in content:
            text.write_exactly(decode(content, encoding=config.encoding, errors=config.errors).text.strip())
        else:
            page, charset = _page_in(content)
            found, _ = read_page(page, config, charset=charset, is_xml=path.endswith((".xml", ".xhtml")))
            text.write_exactly(found.text.strip())
        text.separate()


def _page_in(content: bytes) -> tuple[bytes, str | None]:
    """Return a page and its encoding if that is stated; it may be saved with its pictures, as an e-mail is."""
    if re.match(rb"\s*(?:MIME-Version|Content-[\w-]+):", content, re.IGNORECASE):
        for part in message_from_bytes(content.lstrip()).walk():
            if part.get_content_type() == "text/html":
                return bytes(part.get_payload(decode=True) or b""), part.get_content_charset()
    return content, None


def _styles_with(based_on: Mapping[_KeyT, _KeyT], own: Mapping[_KeyT, bool | None]) -> frozenset[_KeyT]:
    """Return the styles that have a property, by themselves or from the style that they are based on."""
    found = set[_KeyT]()
    for style in based_on:
        current = style
        for _ in range(_MOST_STYLES):
            if own.get(current) is not None or current not in based_on:
                break
            current = based_on[current]
        if own.get(current):
            found.add(style)
    return frozenset(found)


@cache
def _encoding_of_font(name: str, number: int) -> str | None:
    """Return the encoding of a font, given the number of its character set; None where that says nothing."""
    if any(part in name.lower() for part in _PICTURE_FONTS):
        return _PICTURES
    return _SYMBOL if name.lower().startswith("symbol") else _CHARACTER_SETS.get(number)


def _shown_letters(text: str, encoding: str | None) -> str:
    """Return a text with the letters that a font shows for those of its own."""

    def shown(found: re.Match[str]) -> str:
        code = ord(found[0]) & 0xFF
        if encoding in (_SYMBOL, _PICTURES, None):
            return _SYMBOLS.get(code, "") if encoding == _SYMBOL else ""
        return str(bytes([code]), str(encoding), "ignore")

    return _OF_FONTS.sub(shown, text)


def _flatten(root: Any, *paragraphs: str) -> None:
    """Put paragraphs that stand within others, in boxes, behind them."""
    for paragraph in reversed(list(root.iter(*paragraphs))):
        for outermost in list(paragraph.iterancestors(*paragraphs))[-1:]:
            outermost.addnext(paragraph)


def _name(element: Any) -> str:
    name: str = element.tag.rpartition("}")[2]
    return name


_OFFICE, _TEXT, _STYLE = (
    f"{{urn:oasis:names:tc:opendocument:xmlns:{name}:1.0}}" for name in ("office", "text", "style")
)
_ODF_LEFT_OUT = ("tracked-changes", "note-citation", "ruby-text", "hidden-text", "script", "number")
_ODF_GAPS = {"s": Gap.SPACE, "tab": Gap.TAB, "line-break": Gap.LINE}
_ODF_PARAGRAPHS = (f"{_TEXT}p", f"{_TEXT}h")
_ODF_FAMILIES = {"p": "paragraph", "h": "paragraph", "span": "text", "a": "text"}

_Style = tuple[str, str]
"""Family and name of a style of OpenDocument."""


def _read_odt(files: _Files, document: _Document) -> dict[str, str]:
    from lxml import etree

    if next(files.xml("META-INF/manifest.xml").iter("{*}encryption-data"), None) is not None:
        raise RecordError("encrypted", "encrypted: it opens with a password only; save it without one")
    root = files.xml("content.xml")
    # Styles have elements of the same name in another name space.
    body = next(root.iter(f"{_OFFICE}text"), None)
    if body is None:
        raise RecordError("not_odt", "expected a text in OpenDocument, got a table or the like; rename or remove it")
    hidden, raised = _odf_styles([*files.xml("styles.xml", is_needed=False).iter(f"{_OFFICE}styles"), root])
    for element in body.iter(f"{_TEXT}*"):
        if _odf_style(element) in hidden or element.get(f"{_TEXT}display") == "none":
            element.tag = _LEFT_OUT
        elif element.get(f"{_TEXT}is-hidden") == "true":
            of_field = _name(element) == "hidden-paragraph"
            next(element.iterancestors(*_ODF_PARAGRAPHS) if of_field else iter([element]), element).tag = _LEFT_OUT
    left_out = (_LEFT_OUT, f"{_OFFICE}annotation", *(f"{_TEXT}{name}" for name in _ODF_LEFT_OUT))
    etree.strip_elements(body, *left_out, with_tail=False)
    notes = list(body.iter(f"{_TEXT}note"))
    etree.strip_elements(body, f"{_TEXT}note", with_tail=False)
    _write_odf(body, document.text, raised)
    for note in notes:
        _write_odf(note, document.begin_note(note.get(f"{_TEXT}note-class", "footnote")), raised)
    return files.meta("meta.xml")


def _odf_style(element: Any) -> _Style:
    return _ODF_FAMILIES.get(_name(element), ""), element.get(f"{_TEXT}style-name", "")


def _odf_styles(roots: Iterable[Any]) -> tuple[frozenset[_Style], frozenset[_Style]]:
    """Return the styles of what is hidden, and of what is raised."""
    based_on, hidden, raised = dict[_Style, _Style](), dict[_Style, bool | None](), dict[_Style, bool | None]()
    for style in (style for root in roots for style in root.iter(f"{_STYLE}style")):
        family, name, parent = (style.get(f"{_STYLE}{key}", "") for key in ("family", "name", "parent-style-name"))
        based_on[family, name] = family, parent
        for properties in style.iter(f"{_STYLE}text-properties"):
            display, position = properties.get(f"{_TEXT}display"), properties.get(f"{_STYLE}text-position")
            hidden[family, name] = None if display is None else display == "none"
            raised[family, name] = None if position is None else not re.match(r"sub|-|0", position)
    return _styles_with(based_on, hidden), _styles_with(based_on, raised)


def _write_odf(root: Any, text: TextBuilder, raised: frozenset[_Style]) -> None:
    """Write the paragraphs below an element."""
    from lxml import etree

    _flatten(root, *_ODF_PARAGRAPHS)
    for paragraph in root.iter(*_ODF_PARAGRAPHS):
        walk = etree.iterwalk(paragraph, events=("start", "end"))
        for event, element in walk:
            if event == "end":
                text.write("" if element is paragraph else element.tail or "")
            elif not element.tag.startswith(_TEXT):  # describes a picture, say
                walk.skip_subtree()
            else:
                text.separate(_ODF_GAPS.get(_name(element), Gap.NONE))
                (text.write_raised if _odf_style(element) in raised else text.write)(element.text or "")
        text.separate()


_CONTENTS = "application/x-dtbncx+xml"
_PAGES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")


def _read_epub(files: _Files, document: _Document) -> dict[str, str]:
    where = next(map(unquote, _values(files.xml("META-INF/container.xml"), "rootfile", "full-path")), "")
    package = files.xml(where)
    items = {item.get("id", ""): item for item in package.iter("{*}item")}
    titles = _titles(files, where, items.values(), document)
    encryption = files.xml("META-INF/encryption.xml", is_needed=False)
    encrypted = frozenset(map(unquote, _values(encryption, "CipherReference", "URI")))
    read = set[str]()
    for number, name in enumerate(dict.fromkeys(_values(package, "itemref", "idref")), 1):
        with document.losing("chapter", number):
            if name not in items:
                raise RecordError("missing_chapter", f"expected a file named {name!r} in the book, got none")
            path = _join(where, items[name].get("href", ""))
            if items[name].get("media-type") not in _PAGES or path in read:
                continue
            read.add(path)
            if path in encrypted:
                raise RecordError("encrypted", "expected a chapter that can be read, got an encrypted one")
            page, title = read_page(files.read(path), document.config, is_xml=True)
            if text := page.text.strip():
                document.text.separate()
                document.text.begin_part("chapter", titles.get(path) or title or str(number))
                document.text.write_exactly(text)
    return {
        key: "; ".join("".join(value.itertext()).strip() for value in package.iter(f"{{*}}{name}"))
        for name, key in _BOOK_META.items()
    }


def _titles(files: _Files, where: str, items: Iterable[Any], document: _Document) -> Mapping[str, str]:
    """Return what the table of contents calls the files of chapters; the first entry of a file counts."""
    titles: dict[str, str] = {}
    contents = [
        _join(where, item.get("href", ""))
        for item in items
        if item.get("media-type") == _CONTENTS or "nav" in item.get("properties", "").split()
    ]
    for path in dict.fromkeys(contents):
        with document.losing("table of contents"):
            for entry in files.xml(path).iter("{*}a", "{*}navPoint"):
                # Entries are links of XHTML, or points of the older NCX.
                label = next(entry.iter("{*}text"), entry)
                target = entry.get("href") or next(_values(entry, "content", "src"), "")
                titles.setdefault(_join(path, target), " ".join("".join(label.itertext()).split()))
    document.lost.clear()  # a book without a table of contents is whole
    return titles


def _values(root: Any, name: str, attribute: str) -> Iterator[str]:
    return (element.get(attribute, "") for element in root.iter(f"{{*}}{name}"))


def _join(base: str, reference: str) -> str:
    """Return the path that a reference in a file of the book leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(urldefrag(reference).url)))


_TOKEN = re.compile(
    rb"\\(?:([A-Za-z]{1,32})(-?\d{1,10})? ?|'([0-9A-Fa-f]{2})|([^A-Za-z]))|([{}])|([^\\{}\r\n\0]+)|.", re.DOTALL
)
_SHOWN, _WITHIN, _FONTS, _OUT = range(4)
"""Where a group of RTF stands: in the text, in what may hold text, in the table of fonts, or in what is not shown."""
_RTF_PLACES = {"shpinst": _WITHIN, "upr": _WITHIN, "fonttbl": _FONTS}
_RTF_LEFT_OUT = re.compile(
    "colortbl|stylesheet|info|pict|objdata|(?:header|footer)[lrf]?|a?ftn(?:sepc?|cn)|filetbl|list(?:table|override)?|"
    "listoverridetable|listtext|revtbl|fldinst|[rt]?xe|tcn?|pntext|pntxt[ab]|nonesttables|shprslt|private|template|"
    "nextfile|bkmk(?:start|end)|annotation|atnid|atnauthor"
)
_RTF_GAPS = {"line": Gap.LINE, "lbr": Gap.LINE, "softline": Gap.LINE, "tab": Gap.TAB} | dict.fromkeys(
    ("par", "sect", "page", "column", "cell", "nestcell", "row", "nestrow", "\r", "\n"), Gap.BLOCK
)
_RTF_CHARACTERS = {
    "~": "\u00a0", "-": "\u00ad", "_": "\u2011", "\\": "\\", "{": "{", "}": "}", "zwj": "\u200d", "zwnj": "\u200c",
    "emdash": "\u2014", "endash": "\u2013", "emspace": "\u2003", "enspace": "\u2002", "qmspace": "\u2005",
    "lquote": "\u2018", "rquote": "\u2019", "ldblquote": "\u201c", "rdblquote": "\u201d", "bullet": "\u2022",
}  # fmt: skip
_RTF_PAGES = {"ansi": "cp1252", "mac": "mac-roman", "pc": "cp437", "pca": "cp850"}
_MAC_PAGES = {10000: "mac-roman", 10006: "mac-greek", 10007: "mac-cyrillic", 10029: "mac-latin2", 10081: "mac-turkish"}
_RTF_STATES: Mapping[str, Callable[[int | None], dict[str, Any]]] = {
    "plain": lambda _: {"font": None, "is_hidden": False, "is_removed": False, "is_raised": False},
    "v": lambda number: {"is_hidden": number != 0},
    "deleted": lambda number: {"is_removed": number != 0},
    "super": lambda number: {"is_raised": number != 0},
    "up": lambda number: {"is_raised": number != 0},
    "sub": lambda _: {"is_raised": False},
    "nosupersub": lambda _: {"is_raised": False},
    "f": lambda number: {"font": number},
    "uc": lambda number: {"stand_ins": number or 0},
}


class _State(NamedTuple):
    """What a group of RTF begins with, and what is restored at its end."""

    text: TextBuilder
    place: int = _SHOWN
    font: int | None = None
    stand_ins: int = 1
    is_hidden: bool = False
    is_removed: bool = False
    is_raised: bool = False


class _Rtf:
    """A file in the Rich Text Format."""

    def __init__(self, document: _Document) -> None:
        self._document = document
        self._state, self._groups = _State(document.text), list[_State]()
        self._page, self._default_font, self._font = "cp1252", -1, -1
        self._fonts: dict[int, tuple[str, int]] = {}
        self._to_skip, self._is_begun, self._is_starred = 0, False, False
        # What is not written yet, and how it will be.
        self._letters, self._bytes = list[str](), bytearray()
        self._manner: tuple[TextBuilder, str, bool] = (document.text, "", False)

    def read(self, content: bytes) -> None:
        """Read a file."""
        if not content.lstrip().startswith(b"{\\rtf"):
            raise RecordError("not_rtf", "expected a file that begins with {\\rtf, got another; rename or remove it")
        position = content.index(b"{")
        while found := _TOKEN.match(content, position):
            position = found.end() + (max(int(found[2] or 0), 0) if found[1] == b"bin" else 0)
            self._take(found)
            if not self._groups:
                break
        # There may be other bytes after the end.
        if self._groups and not content.rstrip(b"\0 \t\r\n").endswith(b"}"):
            raise RecordError("truncated", "expected a file that ends in }, got one that is cut short; fetch it again")
        self._flush()

    def _take(self, found: re.Match[bytes]) -> None:
        word, number, code, sign, brace, letters = found.groups()
        if found.lastindex is None:  # the end of a line, which means nothing
            return
        # An asterisk is heeded where a group begins.
        is_starred, self._is_starred = self._is_starred, sign == b"*" and self._is_begun
        self._is_begun = brace == b"{"
        if brace:
            self._to_skip = 0
            if brace == b"{":
                self._groups.append(self._state)
            else:
                self._state = self._groups.pop()
        elif letters:
            skipped = min(self._to_skip, len(letters))
            self._to_skip -= skipped
            self._write(letters[skipped:])
        elif self._to_skip and (code or word or sign):
            self._to_skip -= 1
        elif code:
            self._write(bytes.fromhex(code.decode()))
        elif word or sign:
            name = (word or sign).decode("latin-1")
            if name in _RTF_GAPS:
                self._separate(_RTF_GAPS[name])
            elif name in _RTF_CHARACTERS:
                self._write(_RTF_CHARACTERS[name])
            elif word:
                note = "endnote" if found.string.startswith(b"\\ftnalt", found.end()) else "footnote"
                self._take_word(name, int(number) if number else None, note, is_starred=is_starred)

    def _take_word(self, word: str, number: int | None, note: str, *, is_starred: bool) -> None:
        state, value = self._state, number or 0
        if word in _RTF_STATES and state.place != _FONTS:
            self._state = state._replace(**_RTF_STATES[word](number))
        elif word == "u":
            self._write(chr(value & 0xFFFF if value < 0 else value) if value <= 0x10FFFF else "\ufffd")
            self._to_skip = state.stand_ins
        elif word == "f":
            self._font = value
            self._fonts[value] = "", 1
        elif word == "fcharset" and self._font in self._fonts:
            self._fonts[self._font] = self._fonts[self._font][0], value
        elif word == "deff":
            self._default_font = value
        elif word in _RTF_PAGES:
            self._page = _RTF_PAGES[word]
        elif word == "ansicpg" and number:
            self._page = _MAC_PAGES.get(number) or codec_of(f"cp{number}") or f"cp{number}"
        elif word == "footnote" and state.place == _SHOWN:
            self._state = state._replace(text=self._document.begin_note(note))
        else:
            self._take_place(word, is_starred=is_starred)

    def _take_place(self, word: str, *, is_starred: bool) -> None:
        """Take a word that may begin what stands outside of the text."""
        state = self._state
        if word in ("shptxt", "ud") and state.place == _WITHIN:
            self._state = state._replace(
                place=_SHOWN, text=self._document.begin_box() if word == "shptxt" else state.text
            )
        elif word in _RTF_PLACES:
            self._state = state._replace(place=max(state.place, _RTF_PLACES[word]))
        elif is_starred or _RTF_LEFT_OUT.fullmatch(word):
            self._state = state._replace(place=_OUT)

    def _encoding(self) -> str:
        """Return the encoding of the font: of 1 that of the file, and of 0 too where that is not Windows'."""
        font = self._default_font if self._state.font is None else self._state.font
        name, number = self._fonts.get(font, ("", 1))
        is_of_file = number == 1 or (number == 0 and self._page in ("mac-roman", "cp437", "cp850"))
        return (None if is_of_file else _encoding_of_font(name, number)) or self._page

    def _is_shown(self) -> bool:
        return self._state.place == _SHOWN and not self._state.is_hidden and not self._state.is_removed

    def _write(self, letters: str | bytes) -> None:
        if self._state.place == _FONTS and isinstance(letters, bytes) and self._font in self._fonts:
            name, number = self._fonts[self._font]
            self._fonts[self._font] = (name + letters.decode("latin-1"))[:50], number
        if not (letters and self._is_shown()):
            return
        manner = self._state.text, self._encoding(), self._state.is_raised
        if manner != self._manner:
            self._flush()
            self._manner = manner
        if isinstance(letters, str) and not letters.isascii():
            self._letters += self._decoded(), letters
        else:
            self._bytes += letters.encode() if isinstance(letters, str) else letters

    def _decoded(self) -> str:
        """Return the text of the bytes that are not written yet."""
        content, encoding = bytes(self._bytes), self._manner[1]
        self._bytes.clear()
        if encoding in (_SYMBOL, _PICTURES):
            return "".join(chr(0xF000 | byte) for byte in content)
        try:
            return content.decode("ascii" if content.isascii() else encoding)
        except (UnicodeDecodeError, LookupError) as error:
            if self._document.config.errors == "strict" or isinstance(error, LookupError):
                got = ", ".join(f"{byte:#04x}" for byte in sorted({*content} - {*range(0x80)})[:9])
                reason = f"expected letters in {encoding}, as the file says of them, got bytes {got} among others"
                hint = "save it again as .docx, or set reader.errors to replace"
                raise RecordError("invalid_bytes", f"{reason}; {hint}") from None
        text = content.decode(encoding, "replace")
        self._document.replaced += text.count("\ufffd")
        return text

    def _flush(self) -> None:
        text, encoding, is_raised = self._manner
        # Characters beyond U+FFFF are written as pairs of surrogates.
        letters = "".join((*self._letters, self._decoded())).encode("utf-16", "surrogatepass")
        self._letters.clear()
        written = _shown_letters(letters.decode("utf-16", "replace"), encoding)
        (text.write_raised if is_raised else text.write)(written)

    def _separate(self, gap: Gap) -> None:
        if self._is_shown():
            self._flush()
            self._state.text.separate(gap)
