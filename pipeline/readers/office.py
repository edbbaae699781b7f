"""Office documents and books: .docx, .odt, .rtf and .epub.

What is hidden, removed or only a mark of a note is left out; notes follow the text, as parts of it. A cell of a table
is a paragraph, or several, so that no name runs from one cell into the next. No macro, link, embedded file or external
entity is opened.
"""

import posixpath
import re
from codecs import charmap_decode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email import message_from_bytes
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag
from zipfile import ZipFile

from typing_extensions import override

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.documents import Lost
from concord.pipeline.readers.base import FileReader, as_record_errors, stored_meta
from concord.pipeline.readers.files import Decoded, most_unpacked, unpacks_too_far, with_codecs
from concord.pipeline.readers.records import RecordError
from concord.pipeline.readers.text import Gap, TextBuilder
from concord.pipeline.readers.web import read_page

_META = {"title": "title", "creator": "author", "subject": "subject", "keywords": "keywords", "created": "created"}
_BOOK_META = {"title": "title", "creator": "author", "language": "language", "date": "date"}
_LEFT_OUT, _RAISED = "left-out", "raised"
_GAPS = {"tab": Gap.TAB, "ptab": Gap.TAB, "br": Gap.LINE, "cr": Gap.LINE, "s": Gap.SPACE, "line-break": Gap.LINE}
_MANNERS = ("vanish", "vertAlign", "rStyle", "display", "text-position")
"""The properties of Word and OpenDocument that say, or whose style says, what is hidden, and what is raised."""
_Styles = Mapping[str, Mapping[str, str]]

_SYMBOL, _PICTURES = "Symbol", "Wingdings"
_CHARACTER_SETS = {
    0: "cp1252", 2: _PICTURES, 77: "mac-roman", 78: "cp932", 79: "cp949", 80: "gb18030", 81: "big5", 83: "mac-hebrew",
    84: "mac-arabic", 85: "mac-greek", 86: "mac-turkish", 87: "mac-thai", 88: "mac-latin2", 89: "mac-cyrillic",
    128: "cp932", 129: "cp949", 130: "johab", 134: "gb18030", 136: "cp950", 161: "cp1253", 162: "cp1254",
    163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250",
    254: "cp437", 255: "cp850",
}  # fmt: skip
"""The encodings of fonts, by the numbers that Windows gives them."""
_OF_FONTS = re.compile("[\uf020-\uf0ff]")
_SYMBOLS = 33 * " " + (
    "!∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼" + 33 * " "
    + "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑"
)  # fmt: skip
"""What the font Symbol shows."""


class _Document:
    """What is read of a document; what is lost and replaced as in Decoded."""

    def __init__(self, config: ReaderConfig) -> None:
        self.config = config
        self.text, self.notes = TextBuilder(), TextBuilder()
        self.lost: list[Lost] = []
        self.replaced = self._noted = 0

    def begin_note(self, kind: str) -> TextBuilder:
        """Return the text in which a note begins."""
        self._noted += 1
        self.notes.separate()
        self.notes.begin_part(kind, f"{kind} {self._noted}")
        return self.notes

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
        self.text.write_builder(self.notes)
        text, parts = self.text.built(join_lines=False)
        if self.lost and not text:
            raise RecordError(self.lost[0].error, self.lost[0].message)
        return Decoded(text, None, meta=meta, parts=parts, lost=tuple(self.lost), replaced=self.replaced)


class _Files(ZipFile):
    """The files within a file. What a small one unpacks to is bounded: its text would fill the worker."""

    def __init__(self, content: bytes) -> None:
        super().__init__(BytesIO(content))
        self._size, self._unpacked = len(content), 0

    def content(self, path: str) -> bytes:
        """Return the content of a file."""
        # zipfile reads no more than is stated here.
        self._unpacked += self.getinfo(path).file_size
        if self._unpacked > (most := most_unpacked(self._size)):
            raise unpacks_too_far(self._size, most)
        return self.read(path)

    def xml(self, path: str, *, is_needed: bool = True) -> Any:
        """Return the root of an XML file, an empty one where none is needed; no other file is fetched."""
        from lxml import etree

        content = self.content(path) if is_needed or path in self.NameToInfo else b"<none/>"
        return etree.fromstring(content, etree.XMLParser(remove_comments=True, remove_pis=True))


_WORD_CHARACTERS = {"noBreakHyphen": "\u2011", "softHyphen": "\u00ad"}
_NO = (None, "0", "false", "off", "none")


class DocxReader(FileReader):
    """Reads files of Word since 2007."""

    suffixes = with_codecs(".docx")
    text_share = 0.2
    libraries = ("lxml", "resiliparse")

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        document = _Document(config)
        return document.decoded(_Word(content, document).read())


class _Word:
    """A file of Word, which may be included in another one."""

    def __init__(self, content: bytes, document: _Document) -> None:
        if content.startswith(b"\xd0\xcf\x11\xe0"):
            reason = "encrypted, or a .doc of an older Word; save it as .docx without a password"
            raise RecordError("encrypted", reason)
        self._files, self._document = _Files(content), document
        self._notes: dict[str, dict[str, None]] = {"footnote": {}, "endnote": {}}

    def read(self) -> str | None:
        """Read the document, and return what it says of itself."""
        main = next((path for kind, path in self._links("").values() if kind == "officeDocument"), "word/document.xml")
        self._related = self._links(main)
        root = self._files.xml(main)
        self._w = root.tag.removesuffix(_name(root))
        styles = {self._value(style, name="styleId"): style for style in self._part("styles").iter(f"{self._w}style")}
        self._styles = _inherited(
            {name: self._value(style, "w:basedOn") for name, style in styles.items()},
            {name: self._properties(style) for name, style in styles.items()},
        )
        fonts = self._part("fontTable").iter(f"{self._w}font")
        self._charsets = {self._value(font, name="name"): self._value(font, "w:charset") for font in fonts}
        self._write(root, self._document.text)
        for kind in filter(self._notes.get, self._notes):
            with self._document.losing(f"file of {kind}s"):
                file = self._part(f"{kind}s", is_needed=True)
                notes = {self._value(note, name="id"): note for note in file.iter(f"{self._w}{kind}")}
                for number in filter(notes.__contains__, list(self._notes[kind])):
                    self._write(notes[number], self._document.begin_note(kind))
        return _meta(self._files.xml("docProps/core.xml", is_needed=False), _META)

    def _links(self, path: str) -> dict[str, tuple[str, str]]:
        """Return the kinds and paths of the files that a file refers to, by their ids."""
        folder, name = posixpath.split(path)
        root = self._files.xml(posixpath.join(folder, "_rels", f"{name}.rels"), is_needed=False)
        return {
            link.get("Id", ""): (link.get("Type", "").rpartition("/")[2], _join(path, link.get("Target", "")))
            for link in root.iter("{*}Relationship")
        }

    def _part(self, kind: str, *, is_needed: bool = False) -> Any:
        """Return the root of the file of a kind."""
        path = next((path for other, path in self._related.values() if other == kind), f"word/{kind}.xml")
        return self._files.xml(path, is_needed=is_needed)

    def _value(self, element: Any, path: str = "", name: str = "val") -> str:
        """Return an attribute of the element that a path leads to; ``1`` without it, nothing without the element."""
        found = element.find(path.replace("w:", self._w)) if path else element
        return "" if found is None else found.get(f"{self._w}{name}", "1")

    def _properties(self, element: Any) -> dict[str, str]:
        """Return how a run or style shows its text, as far as it says so itself."""
        found = element.iterfind(f"{self._w}rPr/*")
        return {name: self._value(each) for each in found if (name := _name(each)) in _MANNERS}

    def _manner(self, run: Any) -> dict[str, str]:
        """Return how a run is shown, by itself or by the styles of it and of its paragraph."""
        paragraph = next(run.iterancestors(f"{self._w}p"), run)
        own = self._properties(run)
        style = self._styles.get(self._value(paragraph, "w:pPr/w:pStyle"), {})
        return {**style, **self._styles.get(own.get("rStyle", ""), {}), **own}

    def _write(self, root: Any, text: TextBuilder) -> None:
        """Write the paragraphs below an element."""
        from lxml import etree

        w = self._w
        for run in root.iter(f"{w}r"):
            manner = self._manner(run)
            if manner.get("vanish") not in _NO:
                run.tag = _LEFT_OUT
            elif manner.get("vertAlign") == "superscript":
                run.set(_RAISED, "")
        # The last one is what older programs show in place of a text box.
        etree.strip_elements(root, _LEFT_OUT, f"{w}del", f"{w}moveFrom", f"{w}rt", "{*}Fallback", with_tail=False)
        _flatten(root, f"{w}p")
        for block in root.iter(f"{w}p", f"{w}altChunk", f"{w}subDoc"):
            if block.tag == f"{w}p":
                self._write_paragraph(block, text)
                continue
            with self._document.losing("included file"):
                self._include(block, text)
            text.separate()

    def _write_paragraph(self, paragraph: Any, text: TextBuilder) -> None:
        fields = ""
        for element in paragraph.iter("{*}*"):
            name = _name(element)
            if name == "fldChar":
                # The instruction of a field may hold the results of others.
                kind = self._value(element, name="fldCharType")
                fields = f"{fields}i" if kind == "begin" else fields[:-1] + "r" * (kind == "separate")
            elif "i" not in fields and _name(element.getparent()) == "r":
                self._write_element(name, element, text)
        # A large first letter goes on in the next paragraph.
        if self._value(paragraph, "w:pPr/w:framePr", "dropCap") in ("", "1", *_NO):
            text.separate()

    def _write_element(self, name: str, element: Any, text: TextBuilder) -> None:
        if name in _GAPS:
            text.separate(_GAPS[name])
        elif name in _WORD_CHARACTERS:
            text.write_exactly(_WORD_CHARACTERS[name])
        elif name in ("footnoteReference", "endnoteReference"):
            self._notes[name.removesuffix("Reference")][self._value(element, name="id")] = None
        elif name == "sym":
            letter = chr(int(self._value(element, name="char"), 16))
            text.write(self._shown(letter, self._value(element, name="font")))
        elif name == "t":
            run = element.getparent()
            written = self._shown(element.text or "", self._value(run, "w:rPr/w:rFonts", "ascii"))
            (text.write if run.get(_RAISED) is None else text.write_raised)(written)
            if not element.tag.startswith(self._w):  # of a formula, whose places say more than its text
                text.separate(Gap.SPACE)

    def _shown(self, text: str, font: str) -> str:
        """Return a text with the letters that a font shows for those of its own."""
        number = 2 if "dings" in font else int(self._charsets.get(font) or "0", 16)
        return _shown_letters(text, _SYMBOL if font.startswith(_SYMBOL) else _CHARACTER_SETS.get(number, "cp1252"))

    def _include(self, element: Any, text: TextBuilder) -> None:
        """Write a file of another format, or of Word, that stands in place of paragraphs."""
        reference = next((value for key, value in element.attrib.items() if key.endswith("}id")), "")
        content = self._files.content(self._related.get(reference, ("", reference))[1])
        if content.startswith(b"PK"):
            _Word(content, self._document).read()
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


def _inherited(based_on: Mapping[str, str], styles: _Styles) -> _Styles:
    """Return the properties of styles, with those of the styles that they are based on."""
    for _ in range(12):
        styles = {name: {**styles.get(based_on[name], {}), **own} for name, own in styles.items()}
    return styles


def _shown_letters(text: str, encoding: str) -> str:
    """Return a text with the letters that a font of this encoding shows for those of its own."""
    return _OF_FONTS.sub(lambda found: _decoded(bytes([ord(found[0]) & 0xFF]), encoding, "ignore"), text)


def _decoded(content: bytes, encoding: str, errors: str) -> str:
    """Return the letters that a font of this encoding shows for bytes."""
    if encoding == _PICTURES:
        return ""
    if encoding == _SYMBOL:
        return charmap_decode(content, "ignore", _SYMBOLS)[0]
    return content.decode("ascii" if content.isascii() else encoding, errors)


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
    return stored_meta(fields)


_TEXT, _STYLE = (f"{{urn:oasis:names:tc:opendocument:xmlns:{name}:1.0}}" for name in ("text", "style"))
_ODF_LEFT_OUT = ("tracked-changes", "note-citation", "ruby-text", "hidden-text", "script", "number")
_ODF_PARAGRAPHS = (f"{_TEXT}p", f"{_TEXT}h")


class OdtReader(FileReader):
    """Reads files of LibreOffice and others in OpenDocument."""

    suffixes = with_codecs(".odt")
    text_share = 0.2
    libraries = ("lxml",)

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        from lxml import etree

        document, files = _Document(config), _Files(content)
        if next(files.xml("META-INF/manifest.xml").iter("{*}encryption-data"), None) is not None:
            raise RecordError("encrypted", "encrypted: it opens with a password only; save it without one")
        root = files.xml("content.xml")
        styles = _odf_styles(files.xml("styles.xml", is_needed=False), root)
        for element in root.iter(f"{_TEXT}*"):
            if "none" in (_odf_manner(element, styles).get("display"), element.get(f"{_TEXT}display")):
                element.tag = _LEFT_OUT
            elif element.get(f"{_TEXT}is-hidden") == "true":
                of_field = _name(element) == "hidden-paragraph"
                next(element.iterancestors(*_ODF_PARAGRAPHS) if of_field else iter([element]), element).tag = _LEFT_OUT
        left_out = (f"{_TEXT}{name}" for name in _ODF_LEFT_OUT)
        etree.strip_elements(root, _LEFT_OUT, "{*}annotation", *left_out, with_tail=False)
        notes = list(root.iter(f"{_TEXT}note"))
        etree.strip_elements(root, f"{_TEXT}note", with_tail=False)
        _write_odf(root, document.text, styles)
        for note in notes:
            _write_odf(note, document.begin_note(note.get(f"{_TEXT}note-class", "footnote")), styles)
        return document.decoded(_meta(files.xml("meta.xml", is_needed=False), _META))


def _odf_styles(*roots: Any) -> _Styles:
    based_on, styles = dict[str, str](), dict[str, dict[str, str]]()
    for style in (style for root in roots for style in root.iter(f"{_STYLE}style")):
        family, name, parent = (style.get(f"{_STYLE}{key}", "") for key in ("family", "name", "parent-style-name"))
        based_on[f"{family} {name}"] = f"{family} {parent}"
        said = (item for element in style.iter(f"{_STYLE}text-properties") for item in element.items())
        styles[f"{family} {name}"] = {key: value for path, value in said if (key := path.split("}")[1]) in _MANNERS}
    return _inherited(based_on, styles)


def _odf_manner(element: Any, styles: _Styles) -> Mapping[str, str]:
    """Return how an element is shown by its style; a paragraph and a part of it may have styles of one name."""
    family = "paragraph" if element.tag in _ODF_PARAGRAPHS else "text"
    return styles.get(f"{family} {element.get(f'{_TEXT}style-name')}", {})


def _write_odf(root: Any, text: TextBuilder, styles: _Styles) -> None:
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
                text.separate(_GAPS.get(_name(element), Gap.NONE))
                place = _odf_manner(element, styles).get("text-position", "0")
                (text.write if re.match(r"sub|-|0", place) else text.write_raised)(element.text or "")
        text.separate()


_PAGES, _NCX = ("application/xhtml+xml", "text/html", "text/x-oeb1-document"), "application/x-dtbncx+xml"


class EpubReader(FileReader):
    """Reads files of one book each, whose chapters are parts."""

    suffixes = with_codecs(".epub")
    libraries = ("lxml", "resiliparse")

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        document, files = _Document(config), _Files(content)
        where = next(_values(files.xml("META-INF/container.xml"), "rootfile", "full-path"), "")
        package = files.xml(where)
        items = {item.get("id", ""): item for item in package.iter("{*}item")}
        titles = _titles(files, where, items.values())
        references = _values(files.xml("META-INF/encryption.xml", is_needed=False), "CipherReference", "URI")
        encrypted = frozenset(map(unquote, references))
        read = set[str]()
        for number, name in enumerate(dict.fromkeys(_values(package, "itemref", "idref")), 1):
            with document.losing("chapter", number):
                path = _join(where, items[name].get("href", ""))
                if items[name].get("media-type") not in _PAGES or path in read:
                    continue
                read.add(path)
                if path in encrypted:
                    raise RecordError("encrypted", "encrypted (DRM): it opens with its bookseller's program only")
                page, title = read_page(files.content(path), config, is_xml=True)
                if text := page.text.strip():
                    document.text.separate()
                    document.text.begin_part("chapter", titles.get(path) or title or str(number))
                    document.text.write_exactly(text)
        return document.decoded(_meta(package, _BOOK_META))


def _titles(files: _Files, where: str, items: Iterable[Any]) -> Mapping[str, str]:
    """Return what the table of contents calls the files of chapters; the first entry of a file counts."""
    titles: dict[str, str] = {}
    contents = (item for item in items if {"nav", _NCX} & {item.get("media-type"), *item.get("properties", "").split()})
    for path in dict.fromkeys(_join(where, item.get("href", "")) for item in contents):
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
    """Return the path that a reference in a file leads to."""
    path = posixpath.join("/", posixpath.dirname(base), unquote(urldefrag(reference).url))
    return posixpath.normpath(path).lstrip("/")


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
    b"ftnsepc aftnsep aftnsepc list listtext pntext xe tc nonesttables shprslt fldinst".split(),
    _OUT,
)
_FIELDS = {b"f": "font", b"uc": "stand_ins", b"v": "is_hidden", b"deleted": "is_hidden"}
_RAISED_BY = {b"super": 1, b"up": 1, b"sub": 0, b"nosupersub": 0}
_GAPS_OF_WORDS = {b"line": Gap.LINE, b"lbr": Gap.LINE, b"softline": Gap.LINE, b"tab": Gap.TAB} | dict.fromkeys(
    (b"par", b"sect", b"page", b"column", b"cell", b"nestcell", b"row", b"nestrow", b"\r", b"\n"), Gap.BLOCK
)
_WRITTEN: Mapping[bytes, Gap | bytes | str] = {
    **_GAPS_OF_WORDS, b"~": "\u00a0", b"-": "\u00ad", b"_": "\u2011", b"\\": b"\\", b"{": b"{", b"}": b"}",
    b"zwj": "\u200d", b"zwnj": "\u200c", b"emdash": "\u2014", b"endash": "\u2013", b"emspace": " ", b"enspace": " ",
    b"lquote": "\u2018", b"rquote": "\u2019", b"ldblquote": "\u201c", b"rdblquote": "\u201d", b"bullet": "\u2022",
}  # fmt: skip


class _State(NamedTuple):
    """What a group of RTF begins with, and what is restored at its end."""

    is_note: int = 0
    place: int = _SHOWN
    font: int = -1
    stand_ins: int = 1
    is_hidden: int = 0
    is_raised: int = 0


class RtfReader(FileReader):
    """Reads files in the Rich Text Format."""

    suffixes = with_codecs(".rtf")
    text_share = 0.2

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        document = _Document(config)
        _Rtf(document).read(content)
        return document.decoded()


class _Rtf:
    """A file in the Rich Text Format."""

    def __init__(self, document: _Document) -> None:
        self._document = document
        self._state, self._groups = _State(), list[_State]()
        self._page, self._default_font, self._fonts = "cp1252", 0, dict[int, str]()
        self._to_skip = 0
        # What is not written yet, and the state in which it stands.
        self._letters, self._bytes, self._manner = list[str](), bytearray(), self._state

    def read(self, content: bytes) -> None:
        """Read a file."""
        if not content.lstrip().startswith(b"{\\rtf"):
            raise RecordError("not_rtf", "expected a file that begins with {\\rtf, got another; rename or remove it")
        position = 0
        while found := _TOKEN.search(content, position):
            position = found.end()
            if letters := found[_LETTERS]:
                self._take_letters(letters)
            elif found[_CODE]:
                self._take_letters(bytes.fromhex(found[_CODE].decode()))
            elif found[_BRACE] == b"{":
                self._groups.append(self._state)
            elif found[_BRACE]:
                self._to_skip, self._state = 0, self._groups.pop()
                if not self._groups:  # other bytes may follow
                    break
            elif found[_WORD] == b"bin":
                position += int(found[_NUMBER] or 0)
            else:
                self._take_word(found)
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
            self._flush()
            self._document.begin_note("endnote" if found.string.startswith(b"\\ftnalt", found.end()) else "footnote")
            self._state = self._state._replace(is_note=1)
        elif found[_STAR] or word in _PLACES:
            place = _PLACES.get(word, _OUT)
            if place > self._state.place or self._state.place == _WITHIN:
                self._state = self._state._replace(place=place)
                if word == b"shptxt":
                    self._write(Gap.BLOCK)
        elif word in _WRITTEN:
            self._write(_WRITTEN[word])
        elif word == b"u":
            self._write(chr(number & 0xFFFF if number < 0x10000 else min(number, 0x10FFFF)))
            self._to_skip = self._state.stand_ins
        else:
            self._take_state(word, number)

    def _take_state(self, word: bytes, number: int) -> None:
        if word in _FIELDS:
            self._state = self._state._replace(**{_FIELDS[word]: number})
        elif word in _RAISED_BY:
            self._state = self._state._replace(is_raised=number and _RAISED_BY[word])
        elif word == b"plain":
            self._state = self._state._replace(font=-1, is_hidden=0, is_raised=0)
        elif word == b"fcharset" and (number or self._page not in ("mac-roman", "cp437", "cp850")):
            self._fonts[self._state.font] = _CHARACTER_SETS.get(number, "")
        elif word == b"deff":
            self._default_font = number
        elif word in _CODE_PAGES:
            self._page = _CODE_PAGES[word]
        elif word == b"ansicpg" and number:
            self._page = "mac-roman" if number == 10000 else codec_of(f"cp{number}") or f"cp{number}"

    def _write(self, written: Gap | bytes | str) -> None:
        if self._state.place != _SHOWN or self._state.is_hidden:
            return
        if self._state != self._manner:
            self._flush()
            self._manner = self._state
        if isinstance(written, Gap):
            self._flush(written)
        elif isinstance(written, bytes):
            self._bytes += written
        else:
            self._letters += self._decoded(), written

    def _flush(self, gap: Gap = Gap.NONE) -> None:
        # Characters beyond U+FFFF are written as pairs of surrogates.
        letters = "".join([*self._letters, self._decoded()]).encode("utf-16", "surrogatepass")
        self._letters.clear()
        written = _shown_letters(letters.decode("utf-16", "replace"), self._encoding())
        text = self._document.notes if self._manner.is_note else self._document.text
        (text.write_raised if self._manner.is_raised else text.write)(written)
        text.separate(gap)

    def _encoding(self) -> str:
        font = self._default_font if self._manner.font < 0 else self._manner.font
        return self._fonts.get(font) or self._page

    def _decoded(self) -> str:
        """Return the text of the bytes that are not written yet."""
        content, encoding = bytes(self._bytes), self._encoding()
        self._bytes.clear()
        try:
            text = _decoded(content, encoding, self._document.config.errors)
        except UnicodeDecodeError as error:
            reason = f"expected letters in {encoding}, got byte {content[error.start]:#04x}"
            raise RecordError("invalid_bytes", f"{reason}; set reader.errors to replace") from None
        self._document.replaced += text.count("\ufffd")
        return text
