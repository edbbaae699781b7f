"""Editions and OCR in XML: TEI, ALTO and PAGE, told apart by their root element. Each file is one document.

The raw text is what the markup says the page shows, in reading order; its pages are parts. The parser of the standard
library opens no other file, and refuses entities that grow.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html.entities import html5
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from typing_extensions import override

from concord.models.data.sentence import without_line_breaks
from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.documents import PAGE, Part
from concord.pipeline.readers.base import FileReader
from concord.pipeline.readers.extracting import extracted
from concord.pipeline.readers.files import Decoded, decode, encoding_of, with_codecs
from concord.pipeline.readers.records import RecordError

_DECLARED = re.compile(rb"""\s*<\?xml\b[^>]*?encoding\s*=\s*["']([^"'>]+)""")
_DECLARATION = re.compile(r"\s*<\?xml\b[^>]*\?>")
_SPACES = re.compile(r"[ \t\r\n]+")
_MOST_TAGS = 3_000_000
"""An element takes some hundred bytes of memory."""

# What TEI's elements do to the text; all others are only a part of it.
_LINES = frozenset({"l", "item", "row", "cell", "speaker", "castItem", "label"})
_PARAGRAPHS = _LINES | {"p", "ab", "head", "stage", "u", "titlePart", "salute", "signed"}
_BLOCKS = frozenset(
    {"div", "lg", "list", "sp", "table", "figure", "epigraph", "argument", "byline", "dateline", "opener", "closer"}
    | {"docTitle", "docAuthor", "docImprint", "docDate", "trailer", "postscript", "castList", "castGroup", "set"}
    | {"front", "body", "back", "text", *(f"div{level}" for level in range(8))}
)
_BREAKS = frozenset({"lb", "cb", "pb", "gb"})
_CHOSEN = {"choice": ("corr", "reg", "expan"), "app": ("lem",)}
"""Elements with several readings, and those that are preferred to the first one."""
_UNPRINTED = frozenset({"fw", "del", "surplus", "figDesc", "index", "interp", "interpGrp", "spanGrp", "linkGrp", "fs"})
_HYPHENS = ("-", "\u00ac", "\u00ad", "\u2010", "\u2e17")
_JOINED = re.compile(rf"(?<![{''.join(_HYPHENS)}])\n")
"""A line end, unless a word may go on after it."""

_RUNNING = frozenset({"header", "footer", "page-number", "catch-word", "signature-mark"})
"""The types of PAGE's regions that are no part of the text."""


class MarkupReader(FileReader):
    """Reads files of one document each."""

    suffixes = (*with_codecs(".xml"), *with_codecs(".tei"))

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        encoding = encoding_of(content, config.encoding, lambda: _declared(content))
        decoded = decode(content, encoding=encoding, errors=config.errors)
        root = _tree(decoded.text)
        name = _name(root)
        try:
            if name in ("TEI", "TEI.2", "teiCorpus", "teiCorpus.2"):
                found = _Tei().read(root)
            elif name == "alto":
                found = extracted(_alto_pages(root, join=config.join_lines))
            elif name == "PcGts":
                found = extracted(_page_pages(root, join=config.join_lines))
            else:
                raise RecordError(
                    "unknown_xml",
                    f"expected TEI, ALTO or PAGE XML, got <{name}>; take the file out of the input, or name a pattern",
                )
        except RecursionError:
            raise RecordError("nested_too_deep", "expected elements nested a few deep, got hundreds") from None
        return found._replace(encoding=decoded.encoding, confidence=decoded.confidence, replaced=decoded.replaced)


def _declared(content: bytes) -> str | None:
    declaration = _DECLARED.match(content)
    return codec_of(declaration[1].decode("latin-1")) if declaration else None


def _tree(text: str) -> Element:
    if text.count("<") > _MOST_TAGS:
        raise RecordError("too_many_elements", f"expected at most {_MOST_TAGS:,} tags, got more; split the file")
    parser = ElementTree.XMLParser()
    # Those of HTML, which TEI's and XHTML's files of entities have as well.
    parser.entity.update({name.removesuffix(";"): value for name, value in html5.items()})
    try:
        parser.feed(_DECLARATION.sub("", text, count=1))
        root: Element = parser.close()
    except ElementTree.ParseError as error:
        raise RecordError(
            "invalid_xml", f"expected XML that stands alone, got a fault ({error}); repair the file"
        ) from None
    return root


def _name(element: Element) -> str:
    """Return the name of an element in whatever version of its namespace."""
    return element.tag.rpartition("}")[2]


def _named(element: Iterable[Element], *names: str) -> list[Element]:
    """Return the children of these names."""
    return [child for child in element if _name(child) in names]


class _Text:
    """A text that grows. White space counts as on a page: a gap is written before what follows it.

    Attributes:
        open: how many paragraphs it is in.
        notes: those of the paragraph.
        pages: the labels of pages that have begun, until there is something on them.
    """

    def __init__(self) -> None:
        self.length = self.open = 0
        self.notes: list[_Text] = []
        self.pages: list[str] = []
        self.parts: list[Part] = []
        self._pieces: list[str] = []
        self._gap = ""

    def separate(self, gap: str) -> None:
        """Leave at least this gap (a space, a line end or two) before what follows."""
        self._gap = max(self._gap, gap, key=lambda gap: (gap.count("\n"), len(gap)))

    def write(self, text: str, parts: Sequence[Part] = ()) -> None:
        """Write what neither begins nor ends in white space, with its own pages."""
        gap = self._gap if self.length else ""
        start = self.length + len(gap)
        self._pieces += (gap, text)
        self.length, self._gap = start + len(text), ""
        self.begin_pages(start)
        self.parts += (part._replace(start=start + part.start) for part in parts)

    def begin_pages(self, start: int) -> None:
        """Note where the pages begin that wait for it."""
        self.parts += (Part(PAGE, label, start) for label in self.pages)
        self.pages.clear()

    def close_paragraph(self) -> None:
        """Write the notes of a paragraph behind it, unless another one is open."""
        if self.open:
            return
        notes, self.notes = self.notes, []
        for note in notes:
            if note.length:
                self.separate("\n\n")
                self.write(str(note), note.parts)
                self.separate("\n\n")
            self.pages += note.pages

    def ends_in_hyphen(self) -> bool:
        """Tell whether the last character is a hyphen."""
        return bool(self._pieces) and not self._gap and self._pieces[-1].endswith(_HYPHENS)

    def __str__(self) -> str:
        return "".join(self._pieces)


class _Tei:
    """TEI: what the elements ``text`` show, each note behind the paragraph that it is in."""

    def __init__(self) -> None:
        self._pages = 0

    def read(self, root: Element) -> Decoded:
        """Return the document."""
        text, elements = _Text(), list(_texts(root))
        if not elements:
            raise RecordError("no_text", "expected an element <text>, got none; take the file out of the input")
        for element in elements:
            self._walk(element, text)
        text.begin_pages(text.length)
        header = next((element for element in root.iter() if _name(element) == "titleStmt"), None)
        meta = {name: "; ".join(map(_flat, _named(header or (), name))) for name in ("title", "author")}
        return extracted([("", "", str(text))], meta=meta)._replace(parts=tuple(text.parts))

    def _walk(self, element: Element, text: _Text) -> None:
        """Write an element to a text, without what follows it."""
        name = _name(element)
        if name in _UNPRINTED:
            self._turn_pages(element, text)
        elif name in _CHOSEN:
            readings = list(element)
            chosen = next((reading for reading in readings if _name(reading) in _CHOSEN[name]), *readings[:1])
            for reading in readings:
                if reading is chosen:
                    self._walk(reading, text)
                else:
                    self._turn_pages(reading, text)
        elif name == "note":
            note = _Text()
            self._write_children(element, note)
            text.notes.append(note)
            text.close_paragraph()
        elif name in _BREAKS:
            self._turn_pages(element, text)
            if element.get("break") != "no" or text.ends_in_hyphen():
                text.separate("\n")
        elif name in _PARAGRAPHS or name in _BLOCKS:
            gap = "\n" if name in _LINES else " " if name == "stage" and text.open else "\n\n"
            text.separate(gap)
            text.open += name in _PARAGRAPHS
            self._write_children(element, text)
            text.open -= name in _PARAGRAPHS
            text.separate(gap)
            text.close_paragraph()
        else:
            self._write_children(element, text)

    def _write_children(self, element: Element, text: _Text) -> None:
        _write(element.text, text)
        before: Element | None = None
        for child in element:
            if before is not None and not before.tail and _are_words(before, child):
                text.separate(" ")
            self._walk(child, text)
            _write(child.tail, text)
            before = child

    def _turn_pages(self, element: Element, text: _Text) -> None:
        for page in element.iter():
            if _name(page) == "pb":
                self._pages += 1
                text.pages.append(page.get("n", "").removeprefix("p.").strip() or str(self._pages))


def _write(content: str | None, text: _Text) -> None:
    if not content:
        return
    words = _SPACES.sub(" ", content)
    if words.startswith(" "):
        text.separate(" ")
    if words != " ":
        text.write(words.strip(" "))
    if words.endswith(" "):
        text.separate(" ")


def _are_words(first: Element, second: Element) -> bool:
    """Tell whether two elements are words of their own."""
    is_joined = first.get("join") in ("right", "both") or second.get("join") in ("left", "both")
    return _name(first) == _name(second) == "w" and not is_joined and first.get("part") not in ("I", "M")


def _texts(element: Element) -> Iterator[Element]:
    """Yield the elements ``text`` that are in no other."""
    if _name(element) == "text":
        yield element
    else:
        for child in element:
            yield from _texts(child)


def _flat(element: Element) -> str:
    """Return the text of an element of the header, without the numbers that identify a person or thing."""
    for number in _named(element, "idno"):
        number.text = ""
    return _SPACES.sub(" ", "".join(element.itertext())).strip()


def _alto_pages(root: Element, *, join: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the pages of ALTO: kind, label and text."""
    order = [element.get("REF", "") for element in root.iter() if _name(element) == "ElementRef"]
    # The whole of a broken word, after its first half, until the second one.
    broken: list[str] = []
    pages = (element for element in root.iter() if _name(element) == "Page")
    for number, page in enumerate(pages, 1):
        blocks: dict[str, list[str]] = {}
        for block in page.iter():
            if _name(block) == "TextBlock":
                lines = [_alto_line(line, broken if join else None) for line in _named(block, "TextLine")]
                blocks[block.get("ID") or str(len(blocks))] = lines
        label = page.get("PRINTED_IMG_NR") or page.get("PHYSICAL_IMG_NR") or str(number)
        yield PAGE, label, _in_order(blocks, order, join=join)


def _alto_line(line: Element, broken: list[str] | None) -> str:
    """Return the text of a line; where words are joined, a broken one stands in its first line."""
    items = _named(line, "String", "SP", "HYP")
    has_spaces = any(_name(item) == "SP" for item in items)
    pieces: list[str] = []
    for item in items:
        content, whole = item.get("CONTENT", ""), item.get("SUBS_CONTENT")
        if _name(item) == "SP":
            pieces.append(" ")
        elif _name(item) == "HYP":
            pieces.append("" if broken else content or "-")
        elif broken is not None and whole and item.get("SUBS_TYPE") == "HypPart2" and broken == [whole]:
            broken.clear()
        else:
            pieces += (" " if pieces and not has_spaces else "", content)
            if broken is not None and whole and item.get("SUBS_TYPE") == "HypPart1":
                pieces[-1] = whole
                broken[:] = [whole]
    return "".join(pieces).strip(" ")


def _page_pages(root: Element, *, join: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the pages of PAGE XML: kind, label and text."""
    for number, page in enumerate(_named(root, "Page"), 1):
        blocks: dict[str, list[str]] = {}
        for region in page.iter():
            if _name(region).endswith("Region") and region.get("type") not in _RUNNING:
                lines = [_page_line(line) for line in _named(region, "TextLine")]
                blocks[region.get("id") or str(len(blocks))] = lines if any(lines) else [_equivalent(region)]
        order = [reference for group in _named(page, "ReadingOrder") for reference in _references(group)]
        yield PAGE, str(number), _in_order(blocks, order, join=join)


def _page_line(line: Element) -> str:
    return _equivalent(line) or " ".join(filter(None, map(_equivalent, _named(line, "Word"))))


def _equivalent(element: Element) -> str:
    """Return the first of the readings of a region, line or word."""
    readings = sorted(_named(element, "TextEquiv"), key=_index)
    return next((text.text or "" for reading in readings[:1] for text in _named(reading, "Unicode")), "").strip()


def _references(group: Element) -> Iterator[str]:
    for child in sorted(group, key=_index):
        yield child.get("regionRef", "")
        yield from _references(child)


def _index(element: Element) -> int:
    index = element.get("index", "")
    return int(index) if index.isdecimal() else 0


def _in_order(blocks: Mapping[str, Sequence[str]], order: Iterable[str], *, join: bool) -> str:
    """Return the text of blocks in an order; those that it does not name come after it, as they stand in the file."""
    names = dict.fromkeys([*(name for name in order if name in blocks), *blocks])
    texts = ["\n".join(filter(None, blocks[name])) for name in names]
    return "\n\n".join(_JOINED.sub(" ", without_line_breaks(text)) if join else text for text in texts if text)
