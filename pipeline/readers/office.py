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
from io import BytesIO
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urldefrag
from zipfile import BadZipFile, ZipFile

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.documents import Lost
from concord.pipeline.readers.base import FileReader, as_record_errors
from concord.pipeline.readers.builder import Gap, TextBuilder
from concord.pipeline.readers.files import Decoded, decode, most_unpacked, unpacks_too_far, with_codecs
from concord.pipeline.readers.records import RecordError, too_large
from concord.pipeline.readers.web import read_page

_META = {"title": "title", "creator": "author", "subject": "subject", "keywords": "keywords", "created": "created"}
_BOOK_META = {"title": "title", "creator": "author", "language": "language", "date": "date"}
_OLE = b"\xd0\xcf\x11\xe0"
_LEFT_OUT = "left-out"
_MOST_STYLES, _MOST_INCLUDED = 100, 5
_FATAL = ("unpacks_too_far", "record_too_large")
"""Faults that are of the file, even where a part of it has them."""

_CHARACTER_SETS = {
    0: "cp1252",
    77: "mac-roman",
    78: "cp932",
    79: "cp949",
    80: "gb18030",
    81: "big5",
    83: "mac-hebrew",
    84: "mac-arabic",
    85: "mac-greek",
    86: "mac-turkish",
    87: "mac-thai",
    88: "mac-latin2",
    89: "mac-cyrillic",
    128: "cp932",
    129: "cp949",
    130: "johab",
    134: "gb18030",
    136: "cp950",
    161: "cp1253",
    162: "cp1254",
    163: "cp1258",
    177: "cp1255",
    178: "cp1256",
    186: "cp1257",
    204: "cp1251",
    222: "cp874",
    238: "cp1250",
    254: "cp437",
    255: "cp850",
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
        self.text, self.notes = self.new_text(), self.new_text()
        self.lost: list[Lost] = []
        self.replaced = 0
        self._size, self._unpacked, self._noted = len(content), 0, 0

    def new_text(self) -> TextBuilder:
        """Return a text for what stands in a box, say."""
        return TextBuilder(self.config.max_record_bytes)

    def begin_note(self, kind: str) -> TextBuilder:
        """Return the text in which a note begins."""
        self._noted += 1
        self.notes.separate()
        self.notes.begin_part(kind, f"{kind} {self._noted}")
        return self.notes

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
        """Return the text, and then its notes as parts."""
        self.text.write_builder(self.notes)
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

    def __contains__(self, path: str) -> bool:
        return path in self._archive.NameToInfo

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        if path not in self:
            reason = f"expected the file {path!r} in it, got none; it is no such document, or damaged"
            raise RecordError("incomplete", reason)
        # zipfile reads no more than is stated here.
        self._document.unpack(self._archive.NameToInfo[path].file_size)
        return self._archive.read(path)

    def xml(self, path: str) -> Any:
        """Return the root of an XML file, with nothing in it that would have to be fetched or expanded."""
        from lxml import etree

        content = self.read(path)
        # The attributes that a document type adds would be copied to each element. UTF-16 has zeros.
        if re.search(rb"<!(?:ATTLIST|ENTITY)", content.replace(b"\0", b"")):
            raise RecordError("has_entities", f"expected no entities of its own in {path!r}, got some; save it again")
        parser = etree.XMLParser(
            resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
        )
        return etree.fromstring(content, parser)

    def xml_if_any(self, path: str) -> Any:
        """Return the root of an XML file; without such a file, an empty one."""
        from lxml import etree

        return self.xml(path) if path in self else etree.Element("none")

    def meta(self, path: str) -> dict[str, str]:
        """Return what the document says of itself."""
        found = ((_name(element), element.text or "") for element in self.xml_if_any(path).iter("{*}*"))
        return {_META[key]: value for key, value in found if key in _META}


class _Link(NamedTuple):
    kind: str
    path: str


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
        main = next((link.path for link in self._links("").values() if link.kind == "officeDocument"), None)
        self._main = main or "word/document.xml"
        self._related = self._links(self._main)
        root = self._files.xml(self._main)
        if _name(root) != "document":
            raise RecordError("not_docx", f"expected a document of Word, got <{_name(root)}>; rename or remove it")
        self._w = root.tag.removesuffix("document")
        self._find_styles()
        self._find_fonts()
        self._write(root, self._document.text)
        for kind in dict.fromkeys(kind for kind, _ in self._notes):
            with self._document.losing(f"file of {kind}s"):
                notes = {self._of(note, "id"): note for note in self._part(f"{kind}s").iter(f"{self._w}{kind}")}
                for number in [number for other, number in self._notes if other == kind and number in notes]:
                    self._write(notes[number], self._document.begin_note(kind))
        return self._files.meta("docProps/core.xml")

    def _links(self, path: str) -> dict[str, _Link]:
        """Return the files that a file refers to, by their ids."""
        folder, name = posixpath.split(path)
        links: dict[str, _Link] = {}
        for link in self._files.xml_if_any(posixpath.join(folder, "_rels", f"{name}.rels")).iter("{*}Relationship"):
            target = posixpath.normpath(posixpath.join(f"/{folder}", unquote(link.get("Target", "")))).lstrip("/")
            is_inside = link.get("TargetMode") != "External"
            links[link.get("Id", "")] = _Link(link.get("Type", "").rpartition("/")[2], target if is_inside else "")
        return links

    def _path(self, kind: str) -> str:
        paths = (link.path for link in self._related.values() if link.kind == kind)
        return next(paths, posixpath.join(posixpath.dirname(self._main), f"{kind}.xml"))

    def _part(self, kind: str) -> Any:
        return self._files.xml(self._path(kind))

    def _of(self, element: Any, name: str, default: str = "") -> str:
        value: str = default if element is None else element.get(f"{self._w}{name}", default)
        return value

    def _child(self, element: Any, *path: str) -> Any:
        return None if element is None else element.find("/".join(f"{self._w}{name}" for name in path))

    def _is_set(self, properties: Any, name: str) -> bool | None:
        """Tell whether a property is set; None where that is left open."""
        element = self._child(properties, name)
        return None if element is None else self._of(element, "val", "1") not in ("0", "false", "off")

    def _is_raised(self, properties: Any) -> bool | None:
        element = self._child(properties, "vertAlign")
        return None if element is None else self._of(element, "val") == "superscript"

    def _find_styles(self) -> None:
        hidden: dict[str, tuple[str, bool | None]] = {}
        raised: dict[str, tuple[str, bool | None]] = {}
        for style in self._files.xml_if_any(self._path("styles")).iter(f"{self._w}style"):
            name, parent = self._of(style, "styleId"), self._of(self._child(style, "basedOn"), "val")
            properties = self._child(style, "rPr")
            hidden[name] = parent, self._is_set(properties, "vanish")
            raised[name] = parent, self._is_raised(properties)
        self._hidden, self._raised = _styles_with(hidden), _styles_with(raised)

    def _find_fonts(self) -> None:
        self._fonts: dict[str, str | None] = {}
        for font in self._files.xml_if_any(self._path("fontTable")).iter(f"{self._w}font"):
            number = self._of(self._child(font, "charset"), "val", "0")
            name = self._of(font, "name")
            self._fonts[name] = _encoding_of_font(name, int(number, 16))

    def _write(self, root: Any, text: TextBuilder) -> None:
        """Write the paragraphs below an element."""
        self._prepare(root)
        paragraph, cell = f"{self._w}p", f"{self._w}tc"
        for block in root.iter(paragraph, cell, f"{self._w}altChunk", f"{self._w}subDoc"):
            if block.tag == paragraph:
                self._write_paragraph(block, text)
            else:
                text.separate()
            if block.tag not in (paragraph, cell):
                with self._document.losing("included file"):
                    self._include(block, text)

    def _prepare(self, root: Any) -> None:
        """Take out what is not shown, and put boxes behind the paragraphs that they stand in."""
        from lxml import etree

        w = self._w
        for mark in root.iter(f"{w}del", f"{w}moveFrom"):
            if mark.getparent().tag == f"{w}rPr":  # the end of the paragraph is removed
                mark.tag = f"{w}vanish"
        for run in root.iter(f"{w}r"):
            if self._is_hidden(run):
                run.tag = _LEFT_OUT
        # The last one is what older programs show in place of a text box.
        etree.strip_elements(root, _LEFT_OUT, f"{w}del", f"{w}moveFrom", f"{w}rt", "{*}Fallback", with_tail=False)
        _flatten(root, f"{w}p")

    def _is_hidden(self, run: Any) -> bool:
        properties = self._child(run, "rPr")
        direct = self._is_set(properties, "vanish")
        if direct is not None or not self._hidden:
            return direct or False
        paragraph = next(run.iterancestors(f"{self._w}p"), None)
        of_paragraph = self._of(self._child(paragraph, "pPr", "pStyle"), "val") in self._hidden
        # Of two styles that both hide, the one shows what the other hides.
        return of_paragraph != (self._of(self._child(properties, "rStyle"), "val") in self._hidden)

    def _write_paragraph(self, paragraph: Any, text: TextBuilder) -> None:
        is_shown, outer = True, list[bool]()
        for element in paragraph.iter("{*}t", *(f"{self._w}{name}" for name in _WORD_ELEMENTS)):
            name, run = _name(element), element.getparent()
            if name == "fldChar":
                # Between its beginning and its separator, a field has an instruction.
                kind = self._of(element, "fldCharType")
                if kind == "begin":
                    outer.append(is_shown)
                    is_shown = False
                else:
                    is_shown = (outer[-1] if kind == "separate" else outer.pop()) if outer else True
            elif is_shown and _name(run) == "r":
                self._write_element(name, element, run, text)
        properties = self._child(paragraph, "pPr")
        is_initial = self._of(self._child(properties, "framePr"), "dropCap", "none") != "none"
        mark = self._child(properties, "rPr")
        is_style_separator = self._is_set(mark, "specVanish")
        if not is_initial:
            # A paragraph whose end is hidden goes on in the next one.
            text.separate(Gap.SPACE if self._is_set(mark, "vanish") and not is_style_separator else Gap.BLOCK)

    def _write_element(self, name: str, element: Any, run: Any, text: TextBuilder) -> None:
        properties = self._child(run, "rPr")
        if name in _WORD_GAPS:
            is_page = self._of(element, "type", "textWrapping") != "textWrapping"
            text.separate(Gap.BLOCK if is_page else _WORD_GAPS[name])
        elif name in _WORD_CHARACTERS:
            text.write_exactly(_WORD_CHARACTERS[name])
        elif name.endswith("Reference"):
            self._notes[name.removesuffix("Reference"), self._of(element, "id")] = None
        elif name == "sym":
            text.write(self._letters(chr(int(self._of(element, "char", "20"), 16)), self._of(element, "font")))
        elif not self._has_own_mark(run):
            written = element.text or ""
            if not written.isascii():
                written = self._letters(written, self._of(self._child(properties, "rFonts"), "ascii"))
            is_raised = self._is_raised(properties)
            if is_raised is None:
                is_raised = self._of(self._child(properties, "rStyle"), "val") in self._raised
            (text.write_raised if is_raised else text.write)(written)
            if not element.tag.startswith(self._w):  # of a formula, whose places say more than its text
                text.separate(Gap.SPACE)

    def _has_own_mark(self, run: Any) -> bool:
        """Tell whether a run is the mark of a note, in letters of its own."""
        return any(
            self._of(self._child(run, f"{kind}Reference"), "customMarkFollows", "0") not in ("0", "false", "off")
            for kind in ("footnote", "endnote")
        )

    def _letters(self, written: str, font: str) -> str:
        return _shown_letters(written, self._fonts.get(font, _encoding_of_font(font, 0)))

    def _include(self, element: Any, text: TextBuilder) -> None:
        """Write a file of another format, or of Word, that stands in place of paragraphs."""
        reference = next((value for key, value in element.attrib.items() if key.endswith("}id")), "")
        path = self._related[reference].path if reference in self._related else reference
        if self._depth == _MOST_INCLUDED:
            raise RecordError("nested_too_deep", f"expected files included at most {_MOST_INCLUDED} deep, got more")
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


_WORD_GAPS = {"tab": Gap.TAB, "ptab": Gap.TAB, "br": Gap.LINE, "cr": Gap.LINE}
_WORD_CHARACTERS = {"noBreakHyphen": "\u2011", "softHyphen": "\u00ad"}
_WORD_ELEMENTS = (*_WORD_GAPS, *_WORD_CHARACTERS, "sym", "fldChar", "footnoteReference", "endnoteReference")


def _page_in(content: bytes) -> tuple[bytes, str | None]:
    """Return a page and its encoding if that is stated; it may be saved with its pictures, as an e-mail is."""
    if re.match(rb"\s*(?:MIME-Version|Content-[\w-]+):", content, re.IGNORECASE):
        for part in message_from_bytes(content.lstrip()).walk():
            if part.get_content_type() == "text/html":
                return bytes(part.get_payload(decode=True) or b""), part.get_content_charset()
    return content, None


def _styles_with(styles: Mapping[_KeyT, tuple[_KeyT, bool | None]]) -> frozenset[_KeyT]:
    """Return the styles that have a property, by themselves or from the style that they are based on."""
    found = set[_KeyT]()
    for style in styles:
        parent, is_set = styles[style]
        for _ in range(_MOST_STYLES):
            if is_set is not None or parent not in styles:
                break
            parent, is_set = styles[parent]
        if is_set:
            found.add(style)
    return frozenset(found)


def _encoding_of_font(name: str, number: int) -> str | None:
    """Return the encoding of a font, given the number of its character set; None where that says nothing."""
    if any(part in name.lower() for part in _PICTURE_FONTS):
        return _PICTURES
    return _SYMBOL if name.lower().startswith("symbol") else _CHARACTER_SETS.get(number)


def _shown_letters(text: str, encoding: str | None) -> str:
    """Return a text with the letters that a font shows for those of its own."""

    def shown(found: re.Match[str]) -> str:
        code = ord(found[0]) & 0xFF
        if encoding == _SYMBOL:
            return _SYMBOLS.get(code, "")
        return "" if encoding in (_PICTURES, None) else str(bytes([code]), str(encoding), "ignore")

    return _OF_FONTS.sub(shown, text)


def _flatten(root: Any, *paragraphs: str) -> None:
    """Put paragraphs that stand within others, in boxes, behind them."""
    for paragraph in reversed(list(root.iter(*paragraphs))):
        outer = None
        for ancestor in paragraph.iterancestors(*paragraphs):
            outer = ancestor
        if outer is not None:
            outer.addnext(paragraph)


_ODF_OFFICE, _ODF_TEXT, _ODF_STYLE = (
    f"{{urn:oasis:names:tc:opendocument:xmlns:{name}:1.0}}" for name in ("office", "text", "style")
)
_ODF_LEFT_OUT = ("tracked-changes", "note-citation", "ruby-text", "hidden-text", "script", "number")
_ODF_GAPS = {"s": Gap.SPACE, "tab": Gap.TAB, "line-break": Gap.LINE}
_ODF_PARAGRAPHS = (f"{_ODF_TEXT}p", f"{_ODF_TEXT}h")
_ODF_FAMILIES = {"p": "paragraph", "h": "paragraph", "span": "text", "a": "text"}

_Style = tuple[str, str]
"""Family and name of a style of OpenDocument."""


def _read_odt(files: _Files, document: _Document) -> dict[str, str]:
    from lxml import etree

    if next(files.xml("META-INF/manifest.xml").iter("{*}encryption-data"), None) is not None:
        raise RecordError("encrypted", "encrypted: it opens with a password only; save it without one")
    root = files.xml("content.xml")
    # Styles have elements of the same name in another name space.
    body = next(root.iter(f"{_ODF_OFFICE}text"), None)
    if body is None:
        raise RecordError("not_odt", "expected a text in OpenDocument, got a table or the like; rename or remove it")
    common = files.xml_if_any("styles.xml").iter(f"{_ODF_OFFICE}styles")
    hidden, raised = _odf_styles([*common, root])
    for element in body.iter(f"{_ODF_TEXT}*"):
        if _odf_style(element) in hidden or element.get(f"{_ODF_TEXT}display") == "none":
            element.tag = _LEFT_OUT
        elif element.get(f"{_ODF_TEXT}is-hidden") == "true":
            is_field = _name(element) == "hidden-paragraph"
            next(element.iterancestors(*_ODF_PARAGRAPHS) if is_field else iter([element]), element).tag = _LEFT_OUT
    left_out = (_LEFT_OUT, f"{_ODF_OFFICE}annotation", *(f"{_ODF_TEXT}{name}" for name in _ODF_LEFT_OUT))
    etree.strip_elements(body, *left_out, with_tail=False)
    notes = list(body.iter(f"{_ODF_TEXT}note"))
    etree.strip_elements(body, f"{_ODF_TEXT}note", with_tail=False)
    _write_odf(body, document.text, raised)
    for note in notes:
        _write_odf(note, document.begin_note(note.get(f"{_ODF_TEXT}note-class", "footnote")), raised)
    return files.meta("meta.xml")


def _odf_style(element: Any) -> _Style:
    return _ODF_FAMILIES.get(_name(element), ""), element.get(f"{_ODF_TEXT}style-name", "")


def _odf_styles(roots: Iterable[Any]) -> tuple[frozenset[_Style], frozenset[_Style]]:
    """Return the styles of what is hidden, and of what is raised."""
    hidden: dict[_Style, tuple[_Style, bool | None]] = {}
    raised: dict[_Style, tuple[_Style, bool | None]] = {}
    for style in (style for root in roots for style in root.iter(f"{_ODF_STYLE}style")):
        family, name, parent = (style.get(f"{_ODF_STYLE}{key}", "") for key in ("family", "name", "parent-style-name"))
        properties = style.find(f"{_ODF_STYLE}text-properties")
        display, position = (
            None if properties is None else properties.get(key)
            for key in (f"{_ODF_TEXT}display", f"{_ODF_STYLE}text-position")
        )
        hidden[family, name] = (family, parent), None if display is None else display == "none"
        is_raised = None if position is None else not re.match(r"sub|-|0", position)
        raised[family, name] = (family, parent), is_raised
    return _styles_with(hidden), _styles_with(raised)


def _write_odf(root: Any, text: TextBuilder, raised: frozenset[_Style]) -> None:
    """Write the paragraphs below an element."""
    from lxml import etree

    _flatten(root, *_ODF_PARAGRAPHS)
    for paragraph in root.iter(*_ODF_PARAGRAPHS):
        walk = etree.iterwalk(paragraph, events=("start", "end"))
        for event, element in walk:
            if event == "end":
                text.write("" if element is paragraph else element.tail or "")
            elif not element.tag.startswith(_ODF_TEXT):  # describes a picture, say
                walk.skip_subtree()
            else:
                text.separate(_ODF_GAPS.get(_name(element), Gap.NONE))
                write = text.write_raised if _odf_style(element) in raised else text.write
                write(element.text or "")
        text.separate()


_CONTENTS = "application/x-dtbncx+xml"
_PAGES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")
_KIND_OF_NAV = "{http://www.idpf.org/2007/ops}type"


def _read_epub(files: _Files, document: _Document) -> dict[str, str]:
    container = files.xml("META-INF/container.xml")
    where = next((unquote(path) for path in _values(container, "rootfile", "full-path")), "")
    package = files.xml(where)
    items = {item.get("id", ""): item for item in package.iter("{*}item")}
    titles = _titles(files, where, items.values(), document)
    encrypted = set(map(unquote, _values(files.xml_if_any("META-INF/encryption.xml"), "CipherReference", "URI")))
    chapters = dict[str, int]()
    for number, name in enumerate(dict.fromkeys(_values(package, "itemref", "idref")), 1):
        with document.losing("chapter", number):
            if name not in items:
                raise RecordError("missing_chapter", f"expected a file named {name!r} in the book, got none")
            path = _join(where, items[name].get("href", ""))
            if items[name].get("media-type") not in _PAGES or path in chapters:
                continue
            chapters[path] = number
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
    are_contents = (
        item for item in items if item.get("media-type") == _CONTENTS or "nav" in item.get("properties", "").split()
    )
    for path in dict.fromkeys(_join(where, item.get("href", "")) for item in are_contents):
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


def _name(element: Any) -> str:
    name: str = element.tag.rpartition("}")[2]
    return name


_TOKEN = re.compile(
    rb"\\([A-Za-z]{1,32})(-?\d{1,10})? ?|\\'([0-9A-Fa-f]{2})|\\([^A-Za-z])|([{}])|([^\\{}\r\n\0]+)|.", re.DOTALL
)
_SHOWN, _WITHIN, _FONTS, _OUT = range(4)
"""Where a group of RTF stands: in the text, in what may hold text, in the table of fonts, or in what is not shown."""
_RTF_GAPS = {
    **dict.fromkeys(("par", "sect", "page", "column", "cell", "nestcell", "row", "nestrow"), Gap.BLOCK),
    "line": Gap.LINE,
    "lbr": Gap.LINE,
    "softline": Gap.LINE,
    "tab": Gap.TAB,
}
_RTF_CHARACTERS = {
    "emdash": "\u2014",
    "endash": "\u2013",
    "emspace": "\u2003",
    "enspace": "\u2002",
    "qmspace": "\u2005",
    "bullet": "\u2022",
    "lquote": "\u2018",
    "rquote": "\u2019",
    "ldblquote": "\u201c",
    "rdblquote": "\u201d",
    "zwj": "\u200d",
    "zwnj": "\u200c",
    "~": "\u00a0",
    "-": "\u00ad",
    "_": "\u2011",
}
_RTF_LEFT_OUT = frozenset(
    [
        "colortbl",
        "stylesheet",
        "info",
        "pict",
        "objdata",
        "header",
        "headerl",
        "headerr",
        "headerf",
        "footer",
        "footerl",
        "footerr",
        "footerf",
        "ftnsep",
        "ftnsepc",
        "ftncn",
        "aftnsep",
        "aftnsepc",
        "aftncn",
        "filetbl",
        "listtable",
        "listoverridetable",
        "revtbl",
        "fldinst",
        "xe",
        "tc",
        "tcn",
        "rxe",
        "txe",
        "pntext",
        "listtext",
        "pntxta",
        "pntxtb",
        "nonesttables",
        "shprslt",
        "private",
        "template",
        "nextfile",
        "bkmkstart",
        "bkmkend",
        "annotation",
        "atnid",
        "atnauthor",
    ]
)
_RTF_PAGES = {"ansi": "cp1252", "mac": "mac-roman", "pc": "cp437", "pca": "cp850"}
_MAC_PAGES = {10000: "mac-roman", 10006: "mac-greek", 10007: "mac-cyrillic", 10029: "mac-latin2", 10081: "mac-turkish"}
_PLAIN = {"font": None, "is_hidden": False, "is_removed": False, "is_raised": False}
_RTF_STATES: Mapping[str, Callable[[int | None], dict[str, Any]]] = {
    "plain": lambda number: _PLAIN,
    "v": lambda number: {"is_hidden": number != 0},
    "deleted": lambda number: {"is_removed": number != 0},
    "super": lambda number: {"is_raised": number != 0},
    "up": lambda number: {"is_raised": number != 0},
    "sub": lambda number: {"is_raised": False},
    "nosupersub": lambda number: {"is_raised": False},
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

    @property
    def is_shown(self) -> bool:
        return self.place == _SHOWN and not self.is_hidden and not self.is_removed


class _Rtf:
    """A file in the Rich Text Format."""

    def __init__(self, document: _Document) -> None:
        self._document = document
        self._state, self._groups = _State(document.text), list[_State]()
        self._page, self._default_font = "cp1252", -1
        self._fonts: dict[int, tuple[str, int]] = {}
        self._font = -1
        self._boxes: list[TextBuilder] = []
        self._to_skip, self._is_starred = 0, False
        # What is not written yet, and how it will be.
        self._letters, self._bytes = list[str](), bytearray()
        self._manner: tuple[TextBuilder, str, bool] = (document.text, "", False)

    def read(self, content: bytes) -> None:
        """Read a file."""
        if not content.lstrip().startswith(b"{\\rtf"):
            raise RecordError("not_rtf", "expected a file that begins with {\\rtf, got another; rename or remove it")
        position = content.index(b"{")
        while position < len(content):
            if found := _TOKEN.match(content, position):  # always
                position = found.end() + (max(int(found[2] or 0), 0) if found[1] == b"bin" else 0)
                self._take(found)
            if not self._groups:
                break
        # There may be other bytes after the end.
        if self._groups and not content.rstrip(b"\0 \t\r\n").endswith(b"}"):
            raise RecordError("truncated", "expected a file that ends in }, got one that is cut short; fetch it again")
        self._end_paragraph(self._document.text)

    def _take(self, found: re.Match[bytes]) -> None:
        word, number, code, sign, brace, letters = found.groups()
        is_starred, self._is_starred = self._is_starred, False
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
        elif sign:
            self._take_sign(sign.decode("latin-1"))
        elif word:
            value = int(number) if number else None
            self._take_word(word.decode(), value, is_starred, found.string[found.end() : found.end() + 8])

    def _take_sign(self, sign: str) -> None:
        if sign == "*":
            self._is_starred = True
        elif sign in "\r\n":
            self._separate(Gap.BLOCK)
        elif sign in "\\{}":
            self._write(sign.encode())
        elif sign in _RTF_CHARACTERS:
            self._write(_RTF_CHARACTERS[sign])

    def _take_word(self, word: str, number: int | None, is_starred: bool, following: bytes) -> None:
        state = self._state
        if state.place == _FONTS:
            self._take_font(word, number)
        if word in _RTF_GAPS:
            self._separate(_RTF_GAPS[word])
        elif word in _RTF_CHARACTERS:
            self._write(_RTF_CHARACTERS[word])
        elif word == "u":
            code = (number or 0) & 0xFFFF if (number or 0) < 0 else number or 0
            self._write(chr(code) if code <= 0x10FFFF else "\ufffd")
            self._to_skip = state.stand_ins
        elif word in _RTF_STATES:
            self._state = state._replace(**_RTF_STATES[word](number))
        elif word in _RTF_PAGES or word in ("ansicpg", "deff"):
            self._take_setting(word, number)
        elif word == "footnote" and state.place == _SHOWN:
            self._state = state._replace(
                text=self._document.begin_note("endnote" if following.startswith(b"\\ftnalt") else "footnote"),
            )
        else:
            self._take_place(word, is_starred)

    def _take_place(self, word: str, is_starred: bool) -> None:
        """Take a word that may begin what stands outside of the text."""
        state = self._state
        if word in ("shpinst", "upr"):
            place = max(state.place, _WITHIN)
        elif word in ("shptxt", "ud"):
            place = _SHOWN if state.place == _WITHIN else state.place
        elif word == "fonttbl":
            place = max(state.place, _FONTS)
        else:
            place = _OUT if is_starred or word in _RTF_LEFT_OUT else state.place
        if place != state.place:
            self._state = state._replace(place=place)
        if word == "shptxt" and place == _SHOWN:
            self._boxes.append(self._document.new_text())
            self._state = self._state._replace(text=self._boxes[-1])

    def _take_setting(self, word: str, number: int | None) -> None:
        if word == "deff":
            self._default_font = number or 0
        elif word == "ansicpg" and number:
            self._page = _MAC_PAGES.get(number) or codec_of(f"cp{number}") or f"cp{number}"
        elif word in _RTF_PAGES:
            self._page = _RTF_PAGES[word]

    def _take_font(self, word: str, number: int | None) -> None:
        if word == "f":
            self._font = number or 0
            self._fonts[self._font] = "", 1
        elif word == "fcharset" and self._font in self._fonts:
            self._fonts[self._font] = self._fonts[self._font][0], number or 0

    def _encoding(self) -> str:
        """Return the encoding of the font."""
        font = self._default_font if self._state.font is None else self._state.font
        name, number = self._fonts.get(font, ("", 1))
        is_ansi = self._page not in (_RTF_PAGES["mac"], _RTF_PAGES["pc"], _RTF_PAGES["pca"])
        return (_encoding_of_font(name, number) if number or is_ansi else None) or self._page

    def _write(self, letters: str | bytes) -> None:
        state = self._state
        if state.place == _FONTS and isinstance(letters, bytes) and self._font in self._fonts:
            name, number = self._fonts[self._font]
            self._fonts[self._font] = (name + letters.decode("latin-1"))[:50], number
        if not (letters and state.is_shown):
            return
        manner = state.text, self._encoding(), state.is_raised
        if manner != self._manner:
            self._flush()
            self._manner = manner
        if isinstance(letters, bytes):
            self._bytes += letters
        else:
            self._letters += self._decoded(), letters

    def _decoded(self) -> str:
        """Return the text of the bytes that are not written yet."""
        content, encoding = bytes(self._bytes), self._manner[1]
        self._bytes.clear()
        if encoding in (_SYMBOL, _PICTURES):
            return "".join(chr(0xF000 | byte) for byte in content)
        if content.isascii():
            return content.decode()
        try:
            return content.decode(encoding)
        except (UnicodeDecodeError, LookupError) as error:
            if self._document.config.errors == "strict" or isinstance(error, LookupError):
                place = error.start if isinstance(error, UnicodeDecodeError) else 0
                raise RecordError(
                    "invalid_bytes",
                    f"expected letters in {encoding}, as the file says of them, got byte {content[place]:#04x}; save "
                    "it again as .docx, or set reader.errors to replace",
                ) from None
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
        if not self._state.is_shown:
            return
        self._flush()
        self._state.text.separate(gap)
        if gap == Gap.BLOCK:
            self._end_paragraph(self._state.text)

    def _end_paragraph(self, text: TextBuilder) -> None:
        """Write the boxes of the paragraph that ends, behind it."""
        self._flush()
        if text is self._document.text:
            for box in self._boxes:
                text.write_builder(box)
            self._boxes.clear()
