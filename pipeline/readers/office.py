"""Office documents and books: .docx, .odt, .rtf and .epub.

What is hidden, removed or only a mark of a note is left out; notes follow the text, as parts of it. A cell of a table
is a paragraph, or several, so that no name runs from one cell into the next. No macro, link, embedded file or external
entity is opened; of files within a file no more is unpacked than of a compressed one.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email import message_from_bytes
from io import BytesIO
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urldefrag
from zipfile import ZipFile

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.documents import Lost
from concord.pipeline.readers.base import FileReader, as_record_errors
from concord.pipeline.readers.files import Decoded, most_unpacked, unpacks_too_far, with_codecs
from concord.pipeline.readers.records import RecordError
from concord.pipeline.readers.text import Gap, TextBuilder
from concord.pipeline.readers.web import read_page

_META = {"title": "title", "creator": "author", "subject": "subject", "keywords": "keywords", "created": "created"}
_BOOK_META = {"title": "title", "creator": "author", "language": "language", "date": "date"}
_LEFT_OUT = "left-out"
_MOST_STYLES, _MOST_INCLUDED = 12, 5

_SYMBOL, _PICTURES = "Symbol", "Wingdings"
_PICTURE_FONTS = re.compile("dings|opensymbol|marlett|monotype sorts|mt extra|icon|awesome", re.IGNORECASE)
_OF_FONTS = re.compile("[\uf020-\uf0ff]")
_SYMBOLS = (
    " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼" + 33 * " "
    + "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑"
)  # fmt: skip
"""What the font Symbol shows, from the code of the space on."""
_LATIN = bytes(range(0x20, 0x100)).decode("cp1252", "replace")

_KeyT = TypeVar("_KeyT")


class DocxReader(FileReader):
    """Reads files of Word since 2007."""

    suffixes = with_codecs(".docx")
    text_share = 0.2
    libraries = ("lxml", "resiliparse")

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        document = _Document(config)
        return document.decoded(_Word(content, document).read())


class OdtReader(FileReader):
    """Reads files of LibreOffice and others in OpenDocument."""

    suffixes = with_codecs(".odt")
    text_share = 0.2
    libraries = ("lxml",)

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        document = _Document(config)
        return document.decoded(_read_odt(_Files(content), document))


class RtfReader(FileReader):
    """Reads files in the Rich Text Format."""

    suffixes = with_codecs(".rtf")
    text_share = 0.2

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        document = _Document(config)
        _Rtf(document).read(content)
        return document.decoded()


class EpubReader(FileReader):
    """Reads files of one book each, whose chapters are parts."""

    suffixes = with_codecs(".epub")
    libraries = ("lxml", "resiliparse")

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        document = _Document(config)
        return document.decoded(_read_epub(_Files(content), document))


class _Document:
    """What is read of a document.

    Attributes:
        lost, replaced: see Decoded.
    """

    def __init__(self, config: ReaderConfig) -> None:
        self.config = config
        self.text, self._notes = TextBuilder(), TextBuilder()
        self.lost: list[Lost] = []
        self.replaced = self._noted = 0

    def begin_note(self, kind: str) -> TextBuilder:
        """Return the text in which a note begins."""
        self._noted += 1
        self._notes.separate()
        self._notes.begin_part(kind, f"{kind} {self._noted}")
        return self._notes

    @contextmanager
    def losing(self, kind: str, number: int | None = None) -> Iterator[None]:
        """Lose a part of the document if it cannot be read; it has the next number unless one is given."""
        try:
            with as_record_errors(kind):
                yield
        except RecordError as error:
            self.lost.append(Lost(number or len(self.lost) + 1, error.code, str(error)))

    def decoded(self, meta: str | None = None) -> Decoded:
        """Return the text, and notes as its parts."""
        self.text.write_builder(self._notes)
        text, parts = self.text.built(join_lines=False)
        if self.lost and not text:
            raise RecordError(self.lost[0].error, self.lost[0].message)
        return Decoded(text, None, meta=meta, parts=parts, lost=tuple(self.lost), replaced=self.replaced)


class _Files:
    """The files within a file."""

    def __init__(self, content: bytes) -> None:
        self._archive = ZipFile(BytesIO(content))
        self._size, self._unpacked = len(content), 0

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        # zipfile reads no more than is stated here.
        self._unpacked += self._archive.getinfo(path).file_size
        if self._unpacked > (most := most_unpacked(self._size)):
            raise unpacks_too_far(self._size, most)
        return self._archive.read(path)

    def xml(self, path: str, *, is_needed: bool = True) -> Any:
        """Return the root of an XML file, an empty one where none is needed; nothing is fetched or expanded."""
        from lxml import etree

        content = self.read(path) if is_needed or path in self._archive.NameToInfo else b"<none/>"
        # The attributes that a document type adds would be copied to each element. UTF-16 has zeros.
        if re.search(rb"<!(?:ATTLIST|ENTITY)", content.replace(b"\0", b"")):
            raise RecordError("has_entities", f"expected no entities of its own in {path!r}, got some; save it again")
        parser = etree.XMLParser(
            resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
        )
        return etree.fromstring(content, parser)


_WORD_GAPS = {"tab": Gap.TAB, "ptab": Gap.TAB, "br": Gap.LINE, "cr": Gap.LINE}
_WORD_CHARACTERS = {"noBreakHyphen": "\u2011", "softHyphen": "\u00ad"}
_NO = ("0", "false", "off", "none")


class _Word:
    """A file of Word, which may be included in another one."""

    def __init__(self, content: bytes, document: _Document, depth: int = 0) -> None:
        if content.startswith(b"\xd0\xcf\x11\xe0"):
            reason = "encrypted, or a .doc of an older Word; save it as .docx without a password"
            raise RecordError("encrypted", reason)
        self._files, self._document, self._depth = _Files(content), document, depth
        self._notes: dict[str, dict[str | None, None]] = {}

    def read(self) -> str | None:
        """Read the document, and return what it says of itself."""
        main = (path for kind, path in self._links("").values() if kind == "officeDocument")
        self._main = next(main, "word/document.xml")
        self._related = self._links(self._main)
        root = self._files.xml(self._main)
        self._w = root.tag.removesuffix(_name(root))
        styles = {self._value(style, name="styleId"): style for style in self._part("styles").iter(f"{self._w}style")}
        based_on = {name: self._value(style, "basedOn") for name, style in styles.items()}
        self._hidden = _styles_with(based_on, {name: self._is_hidden(style) for name, style in styles.items()})
        self._write(root, self._document.text)
        for kind, numbers in self._notes.items():
            with self._document.losing(f"file of {kind}s"):
                file = self._part(f"{kind}s", is_needed=True)
                notes = {self._value(note, name="id"): note for note in file.iter(f"{self._w}{kind}")}
                for number in filter(notes.__contains__, numbers):
                    self._write(notes[number], self._document.begin_note(kind))
        return _meta(self._files.xml("docProps/core.xml", is_needed=False), _META)

    def _links(self, path: str) -> dict[str, tuple[str, str]]:
        """Return the kinds and paths of the files that a file refers to, by their ids."""
        folder, name = posixpath.split(path)
        root = self._files.xml(posixpath.join(folder, "_rels", f"{name}.rels"), is_needed=False)
        links: dict[str, tuple[str, str]] = {}
        for link in root.iter("{*}Relationship"):
            target = posixpath.normpath(posixpath.join(f"/{folder}", unquote(link.get("Target", "")))).lstrip("/")
            links[link.get("Id", "")] = link.get("Type", "").rpartition("/")[2], target
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

    def _is_hidden(self, run: Any) -> bool | None:
        """Tell whether a run or style is hidden by itself; None if that is open."""
        value = self._value(run, "rPr", "vanish")
        return None if value is None else value not in _NO

    def _write(self, root: Any, text: TextBuilder) -> None:
        """Write the paragraphs below an element."""
        self._leave_out(root)
        paragraph, cell, *included = (f"{self._w}{name}" for name in ("p", "tc", "altChunk", "subDoc"))
        _flatten(root, paragraph)
        for block in root.iter(paragraph, cell, *included):
            if block.tag == paragraph:
                self._write_paragraph(block, text)
                continue
            text.separate()
            if block.tag in included:
                with self._document.losing("included file"):
                    self._include(block, text)
                text.separate()

    def _leave_out(self, root: Any) -> None:
        """Take out what is not shown."""
        from lxml import etree

        w = self._w
        for run in root.iter(f"{w}r"):
            is_hidden = self._is_hidden(run)
            if is_hidden is None and self._hidden:
                paragraph = next(run.iterancestors(f"{w}p"), run)
                styles = self._value(run, "rPr", "rStyle"), self._value(paragraph, "pPr", "pStyle")
                is_hidden = not self._hidden.isdisjoint(styles)
            if is_hidden:
                run.tag = _LEFT_OUT
        # The last one is what older programs show in place of a text box.
        etree.strip_elements(root, _LEFT_OUT, f"{w}del", f"{w}moveFrom", f"{w}rt", "{*}Fallback", with_tail=False)

    def _write_paragraph(self, paragraph: Any, text: TextBuilder) -> None:
        for element in paragraph.iter("{*}*"):
            if _name(element.getparent()) == "r":
                self._write_element(_name(element), element, text)
        # A large first letter goes on in the next paragraph.
        if self._value(paragraph, "pPr", "framePr", name="dropCap") in (None, "1", *_NO):
            text.separate()

    def _write_element(self, name: str, element: Any, text: TextBuilder) -> None:
        if name in _WORD_GAPS:
            text.separate(_WORD_GAPS[name])
        elif name in _WORD_CHARACTERS:
            text.write_exactly(_WORD_CHARACTERS[name])
        elif name in ("footnoteReference", "endnoteReference"):
            self._notes.setdefault(name.removesuffix("Reference"), {})[self._value(element, name="id")] = None
        elif name == "sym":
            code = int(self._value(element, name="char") or "", 16)
            text.write(_shown_letters(chr(code), self._value(element, name="font")))
        elif name == "t":
            run = element.getparent()
            is_raised = self._value(run, "rPr", "vertAlign") == "superscript"
            written = _shown_letters(element.text or "", self._value(run, "rPr", "rFonts", name="ascii"))
            (text.write_raised if is_raised else text.write)(written)
            if not element.tag.startswith(self._w):  # of a formula, whose places say more than its text
                text.separate(Gap.SPACE)

    def _include(self, element: Any, text: TextBuilder) -> None:
        """Write a file of another format, or of Word, that stands in place of paragraphs."""
        if self._depth == _MOST_INCLUDED:
            raise RecordError("nested_too_deep", f"expected files included at most {_MOST_INCLUDED} deep, got more")
        reference = next((value for key, value in element.attrib.items() if key.endswith("}id")), "")
        content = self._files.read(self._related.get(reference, ("", reference))[1])
        if content.startswith(b"PK"):
            _Word(content, self._document, self._depth + 1).read()
        elif content.lstrip().startswith(b"{\\rtf"):
            _Rtf(self._document).read(content)
        else:
            page, charset = _page_in(content)
            text.write_exactly(read_page(page, self._document.config, charset=charset, is_xml=True)[0].text.strip())


def _page_in(content: bytes) -> tuple[bytes, str | None]:
    """Return a page and its encoding if that is stated; it may be saved with its pictures, as an e-mail is."""
    for part in message_from_bytes(content.lstrip()).walk():
        if part.get_content_type() == "text/html":
            return bytes(part.get_payload(decode=True) or b""), part.get_content_charset()
    return content, None


def _styles_with(based_on: Mapping[_KeyT, _KeyT], own: Mapping[_KeyT, bool | None]) -> frozenset[_KeyT]:
    """Return the styles that have a property, by themselves or from the style that they are based on."""
    for _ in range(_MOST_STYLES):
        own = {name: own.get(based_on[name]) if value is None else value for name, value in own.items()}
    return frozenset(name for name, value in own.items() if value)


def _shown_letters(text: str, font: str | None) -> str:
    """Return a text with the letters that a font shows for those of its own."""
    if text.isascii():
        return text
    letters = _SYMBOLS if (font or "").startswith(_SYMBOL) else "" if _PICTURE_FONTS.search(font or "") else _LATIN
    return _OF_FONTS.sub(lambda found: letters[ord(found[0]) - 0xF020 :][:1], text)


def _flatten(root: Any, *paragraphs: str) -> None:
    """Put paragraphs that stand within others, in boxes, behind them."""
    for paragraph in reversed(list(root.iter(*paragraphs))):
        for outermost in list(paragraph.iterancestors(*paragraphs))[-1:]:
            outermost.addnext(paragraph)


def _name(element: Any) -> str:
    name: str = element.tag.rpartition("}")[2]
    return name


def _meta(root: Any, names: Mapping[str, str]) -> str | None:
    """Return what a document says of itself, in the elements of these names."""
    fields = dict[str, str]()
    for element in root.iter("{*}*"):
        key, value = names.get(_name(element)), "".join(element.itertext()).strip()
        if key and value:
            fields[key] = f"{fields[key]}; {value}" if key in fields else value
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode() if fields else None


_OFFICE, _TEXT, _STYLE = (
    f"{{urn:oasis:names:tc:opendocument:xmlns:{name}:1.0}}" for name in ("office", "text", "style")
)
_ODF_LEFT_OUT = ("tracked-changes", "note-citation", "ruby-text", "hidden-text", "script", "number")
_ODF_GAPS = {"s": Gap.SPACE, "tab": Gap.TAB, "line-break": Gap.LINE}
_ODF_PARAGRAPHS = (f"{_TEXT}p", f"{_TEXT}h")

_Style = tuple[bool, str]
"""Whether a style of OpenDocument is one of paragraphs, and its name."""


def _read_odt(files: _Files, document: _Document) -> str | None:
    from lxml import etree

    if next(files.xml("META-INF/manifest.xml").iter("{*}encryption-data"), None) is not None:
        raise RecordError("encrypted", "encrypted: it opens with a password only; save it without one")
    root = files.xml("content.xml")
    hidden, raised = _odf_styles([files.xml("styles.xml", is_needed=False), root])
    for element in root.iter(f"{_TEXT}*"):
        if _odf_style(element) in hidden or element.get(f"{_TEXT}display") == "none":
            element.tag = _LEFT_OUT
        elif element.get(f"{_TEXT}is-hidden") == "true":
            of_field = _name(element) == "hidden-paragraph"
            next(element.iterancestors(*_ODF_PARAGRAPHS) if of_field else iter([element]), element).tag = _LEFT_OUT
    left_out = (_LEFT_OUT, f"{_OFFICE}annotation", *(f"{_TEXT}{name}" for name in _ODF_LEFT_OUT))
    etree.strip_elements(root, *left_out, with_tail=False)
    notes = list(root.iter(f"{_TEXT}note"))
    etree.strip_elements(root, f"{_TEXT}note", with_tail=False)
    _write_odf(root, document.text, raised)
    for note in notes:
        _write_odf(note, document.begin_note(note.get(f"{_TEXT}note-class", "footnote")), raised)
    return _meta(files.xml("meta.xml", is_needed=False), _META)


def _odf_style(element: Any) -> _Style:
    return element.tag in _ODF_PARAGRAPHS, element.get(f"{_TEXT}style-name", "")


def _odf_styles(roots: Iterable[Any]) -> tuple[frozenset[_Style], frozenset[_Style]]:
    """Return the styles of what is hidden, and of what is raised."""
    based_on, hidden, raised = dict[_Style, _Style](), dict[_Style, bool | None](), dict[_Style, bool | None]()
    for style in (style for root in roots for style in root.iter(f"{_STYLE}style")):
        family, name, parent = (style.get(f"{_STYLE}{key}", "") for key in ("family", "name", "parent-style-name"))
        key = family == "paragraph", name
        based_on[key] = key[0], parent
        shown = {name: value for element in style.iter(f"{_STYLE}text-properties") for name, value in element.items()}
        display, position = shown.get(f"{_TEXT}display"), shown.get(f"{_STYLE}text-position")
        hidden[key] = None if display is None else display == "none"
        raised[key] = None if position is None else not re.match(r"sub|-|0", position)
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


_PAGES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")


def _read_epub(files: _Files, document: _Document) -> str | None:
    where = next(_values(files.xml("META-INF/container.xml"), "rootfile", "full-path"), "")
    package = files.xml(where)
    items = {item.get("id", ""): item for item in package.iter("{*}item")}
    titles = _titles(files, where, items.values())
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
                raise RecordError("encrypted", "encrypted (DRM): it opens with its bookseller's program only")
            page, title = read_page(files.read(path), document.config, is_xml=True)
            if text := page.text.strip():
                document.text.separate()
                document.text.begin_part("chapter", titles.get(path) or title or str(number))
                document.text.write_exactly(text)
    return _meta(package, _BOOK_META)


def _titles(files: _Files, where: str, items: Iterable[Any]) -> Mapping[str, str]:
    """Return what the table of contents calls the files of chapters; the first entry of a file counts."""
    titles: dict[str, str] = {}
    contents = [
        _join(where, item.get("href", ""))
        for item in items
        if item.get("media-type") == "application/x-dtbncx+xml" or "nav" in item.get("properties", "").split()
    ]
    for path in dict.fromkeys(contents):
        # A book without a table of contents is whole.
        with suppress(RecordError), as_record_errors("table of contents"):
            for entry in files.xml(path).iter("{*}a", "{*}navPoint"):
                # Entries are links of XHTML, or points of the older NCX.
                label = next(entry.iter("{*}text"), entry)
                target = entry.get("href") or next(_values(entry, "content", "src"), "")
                titles.setdefault(_join(path, target), " ".join("".join(label.itertext()).split()))
    return titles


def _values(root: Any, name: str, attribute: str) -> Iterator[str]:
    return (element.get(attribute, "") for element in root.iter(f"{{*}}{name}"))


def _join(base: str, reference: str) -> str:
    """Return the path that a reference in a file of the book leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(urldefrag(reference).url)))


_CHARACTER_SETS = {
    0: "cp1252", 2: _PICTURES, 77: "mac-roman", 78: "cp932", 79: "cp949", 80: "gb18030", 81: "big5", 83: "mac-hebrew",
    84: "mac-arabic", 85: "mac-greek", 86: "mac-turkish", 87: "mac-thai", 88: "mac-latin2", 89: "mac-cyrillic",
    128: "cp932", 129: "cp949", 130: "johab", 134: "gb18030", 136: "cp950", 161: "cp1253", 162: "cp1254",
    163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250",
    254: "cp437", 255: "cp850",
}  # fmt: skip
"""The encodings of fonts, by the numbers that Windows gives them."""
_CODE_PAGES = {b"ansi": "cp1252", b"mac": "mac-roman", b"pc": "cp437", b"pca": "cp850"}
_TOKEN = re.compile(
    rb"(\{[\r\n]*\\\*[\r\n]*)?\\([A-Za-z]{1,32})(-?\d{1,10})? ?"
    rb"|\\'([0-9A-Fa-f]{2})|\\([^A-Za-z])|([{}])|([^\\{}\r\n\0]+)"
)
_STAR, _WORD, _NUMBER, _CODE, _SIGN, _BRACE, _LETTERS = range(1, 8)
_SHOWN, _WITHIN, _OUT = range(3)
"""Where a group of RTF stands: in the text, in what may hold text, or in what is not shown."""
_PLACES = {b"shptxt": _SHOWN, b"ud": _SHOWN, b"shpinst": _WITHIN, b"upr": _WITHIN} | dict.fromkeys(
    b"fonttbl colortbl stylesheet info pict header headerl headerr headerf footer footerl footerr footerf ftnsep "
    b"ftnsepc ftncn aftnsep aftnsepc aftncn list listtable listoverride listoverridetable listtext xe rxe txe tc tcn "
    b"pntext nonesttables shprslt objdata fldinst".split(),
    _OUT,
)
_GAPS = {b"line": Gap.LINE, b"lbr": Gap.LINE, b"softline": Gap.LINE, b"tab": Gap.TAB} | dict.fromkeys(
    (b"par", b"sect", b"page", b"column", b"cell", b"nestcell", b"row", b"nestrow", b"\r", b"\n"), Gap.BLOCK
)
_CHARACTERS: Mapping[bytes, bytes | str] = {
    b"~": "\u00a0", b"-": "\u00ad", b"_": "\u2011", b"\\": b"\\", b"{": b"{", b"}": b"}", b"zwj": "\u200d",
    b"zwnj": "\u200c", b"emdash": "\u2014", b"endash": "\u2013", b"emspace": "\u2003", b"enspace": "\u2002",
    b"qmspace": "\u2005", b"lquote": "\u2018", b"rquote": "\u2019", b"ldblquote": "\u201c", b"rdblquote": "\u201d",
    b"bullet": "\u2022",
}  # fmt: skip


class _State(NamedTuple):
    """What a group of RTF begins with, and what is restored at its end."""

    text: TextBuilder
    place: int = _SHOWN
    font: int | None = None
    stand_ins: int = 1
    is_hidden: bool = False
    is_raised: bool = False


class _Rtf:
    """A file in the Rich Text Format."""

    def __init__(self, document: _Document) -> None:
        self._document = document
        self._state, self._groups = _State(document.text), list[_State]()
        self._page, self._default_font, self._fonts = "cp1252", 0, dict[int | None, str]()
        self._to_skip = 0
        # What is not written yet, and the state in which it stands.
        self._letters, self._bytes, self._manner = list[str](), bytearray(), self._state

    def read(self, content: bytes) -> None:
        """Read a file."""
        if not content.lstrip().startswith(b"{\\rtf"):
            raise RecordError("not_rtf", "expected a file that begins with {\\rtf, got another; rename or remove it")
        for found in _TOKEN.finditer(_without_binaries(content)):
            kind = found.lastindex
            if kind == _LETTERS:
                self._take_letters(found[_LETTERS])
            elif kind == _CODE:
                self._take_letters(bytes.fromhex(found[_CODE].decode()))
            elif kind != _BRACE:
                self._take_word(found)
            elif found[_BRACE] == b"{":
                self._groups.append(self._state)
            else:
                self._to_skip, self._state = 0, self._groups.pop()
                if not self._groups:  # other bytes may follow
                    break
        if self._groups and not content.rstrip(b"\0 \t\r\n").endswith(b"}"):
            raise RecordError("truncated", "expected a file that ends in }, got one that is cut short; fetch it again")
        self._flush()

    def _take_letters(self, letters: bytes) -> None:
        skipped = min(self._to_skip, len(letters))
        self._to_skip -= skipped
        if self._state.place == _SHOWN:
            self._write(letters[skipped:])
        elif letters.startswith(b"Symbol") and self._fonts.get(self._state.font) == _PICTURES:
            self._fonts[self._state.font] = _SYMBOL

    def _take_word(self, found: re.Match[bytes]) -> None:
        word, number = found[_WORD] or found[_SIGN], int(found[_NUMBER] or 1)
        if found[_STAR]:
            self._groups.append(self._state)
        if word == b"footnote" and self._state.place == _SHOWN:
            self._state = self._state._replace(text=self._document.begin_note("footnote"))
        elif found[_STAR] or word in _PLACES:
            self._take_place(word)
        elif word in _GAPS:
            self._separate(_GAPS[word])
        elif word in _CHARACTERS:
            self._write(_CHARACTERS[word])
        elif word == b"u":
            self._write(chr(number & 0xFFFF) if number < 0x10000 else chr(min(number, 0x10FFFF)))
            self._to_skip = self._state.stand_ins
        else:
            self._take_state(word, number)

    def _take_place(self, word: bytes) -> None:
        """Take a word that says where its group stands."""
        place = _PLACES.get(word, _OUT)
        if place > self._state.place or self._state.place == _WITHIN:
            self._state = self._state._replace(place=place)
            if word == b"shptxt":
                self._separate(Gap.BLOCK)

    def _take_state(self, word: bytes, number: int) -> None:
        state = self._state
        if word == b"f":
            self._state = state._replace(font=number)
        elif word in (b"v", b"deleted"):
            self._state = state._replace(is_hidden=number != 0)
        elif word in (b"super", b"up"):
            self._state = state._replace(is_raised=number != 0)
        elif word == b"plain":
            self._state = state._replace(font=None, is_hidden=False, is_raised=False)
        elif word in (b"nosupersub", b"sub"):
            self._state = state._replace(is_raised=False)
        elif word == b"uc":
            self._state = state._replace(stand_ins=number)
        elif word == b"fcharset":
            # Zero is Windows' own, or that of another machine.
            is_of_file = number == 0 and self._page in ("mac-roman", "cp437", "cp850")
            self._fonts[state.font] = "" if is_of_file else _CHARACTER_SETS.get(number, "")
        elif word == b"deff":
            self._default_font = number
        elif word in _CODE_PAGES:
            self._page = _CODE_PAGES[word]
        elif word == b"ansicpg" and number:
            self._page = "mac-roman" if number == 10000 else codec_of(f"cp{number}") or f"cp{number}"

    def _is_shown(self) -> bool:
        return self._state.place == _SHOWN and not self._state.is_hidden

    def _write(self, letters: bytes | str) -> None:
        if self._is_shown():
            if self._state != self._manner:
                self._flush()
                self._manner = self._state
            if isinstance(letters, bytes):
                self._bytes += letters
            else:
                self._letters += self._decoded(), letters

    def _separate(self, gap: Gap) -> None:
        if self._is_shown():
            self._flush()
            self._state.text.separate(gap)

    def _flush(self) -> None:
        # Characters beyond U+FFFF are written as pairs of surrogates.
        letters = "".join([*self._letters, self._decoded()]).encode("utf-16", "surrogatepass")
        self._letters.clear()
        text = _shown_letters(letters.decode("utf-16", "replace"), self._encoding())
        (self._manner.text.write_raised if self._manner.is_raised else self._manner.text.write)(text)

    def _encoding(self) -> str:
        font = self._default_font if self._manner.font is None else self._manner.font
        return self._fonts.get(font) or self._page

    def _decoded(self) -> str:
        """Return the text of the bytes that are not written yet."""
        content, encoding = bytes(self._bytes), self._encoding()
        self._bytes.clear()
        if encoding in (_SYMBOL, _PICTURES):
            return "".join(chr(0xF000 | byte) for byte in content)
        try:
            return content.decode("ascii" if content.isascii() else encoding)
        except UnicodeDecodeError as error:
            if self._document.config.errors == "strict":
                reason = f"expected letters in {encoding}, as the file says, got byte {content[error.start]:#04x}"
                hint = "save it again as .docx, or set reader.errors to replace"
                raise RecordError("invalid_bytes", f"{reason}; {hint}") from None
        text = content.decode(encoding, "replace")
        self._document.replaced += text.count("\ufffd")
        return text


def _without_binaries(content: bytes) -> bytes:
    pieces, start = list[bytes](), 0
    for found in re.finditer(rb"\\bin(\d{1,10}) ?", content):
        if found.start() >= start:
            pieces.append(content[start : found.start()])
            start = found.end() + int(found[1])
    return b"".join([*pieces, content[start:]])
