"""Editions and OCR in XML: TEI, ALTO and PAGE, told apart by their root element. Each file is one document.

The raw text is what the markup says the page shows, in reading order; its pages are parts. No other file is opened, and
nothing that a file defines can grow. Names of elements count without their namespace.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html.entities import html5
from operator import itemgetter
from string import punctuation
from typing import NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from typing_extensions import override

from concord.models.data.sentence import HYPHENS
from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import PAGE
from concord.pipeline.readers.base import FileReader, stored_meta
from concord.pipeline.readers.files import Decoded, decode, encoding_of, with_codecs
from concord.pipeline.readers.records import RecordError
from concord.pipeline.readers.text import Gap, TextBuilder
from concord.pipeline.readers.web import encoding_of_xml


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


# What TEI's elements do to the text. All others are fields: apart from another one that is directly before them.
_BREAKS = _set("lb cb pb gb")
_PARTS_OF_WORDS = _BREAKS | _set(
    "m c g seg hi emph choice app lem rdg subst add abbr expan ex am orig reg sic corr supplied unclear damage restore "
    "retrace secl mod"
)
_PARAGRAPHS = _set("p ab head u titlePart salute signed item cell speaker castItem figDesc headItem headLabel")
_BLOCKS = _set(
    "TEI TEI.2 text front body back group floatingText div div0 div1 div2 div3 div4 div5 div6 div7 lg list sp table "
    "row figure epigraph argument byline dateline opener closer docTitle docAuthor docImprint docDate trailer "
    "postscript castList castGroup set listBibl biblStruct listPerson person listPlace place listOrg org entry"
)
_GAPS = {**dict.fromkeys(_BLOCKS | _PARAGRAPHS, Gap.BLOCK), "l": Gap.LINE, "addrLine": Gap.LINE, "space": Gap.SPACE}
_OF_BLOCKS = _BLOCKS | _set("analytic monogr series imprint bibl affiliation address")
"""Elements whose children are blocks, unless they have text of their own between them."""
_CHOSEN = {"choice": ("corr", "reg", "expan"), "app": ("lem",)}
"""Elements with several readings, and those that are preferred to the first one."""
_UNPRINTED = _set("teiHeader facsimile sourceDoc standOff fw del surplus index interp interpGrp spanGrp linkGrp fs")
_RAISED = re.compile(r"\bsup(er(script)?)?\b")
_NO_LETTER = re.compile(r"[\W_]")
_RUNNING = _set("header footer page-number catch-word signature-mark")
"""The types of PAGE's regions that are no part of the text."""
_CUSTOM_TYPE = re.compile(r"\bstructure\s*\{[^{}]*?\btype:\s*([\w-]+)")


class MarkupReader(FileReader):
    """Reads files of one document each."""

    suffixes = (*with_codecs(".xml"), *with_codecs(".tei"))

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        encoding = encoding_of(content, config.encoding, lambda: encoding_of_xml(content))
        decoded = decode(content, encoding=encoding, errors=config.errors)
        root = _tree(decoded.text)
        name, builder, meta = _name(root), TextBuilder(), dict[str, str]()
        if name in ("TEI", "TEI.2", "teiCorpus", "teiCorpus.2"):
            _Tei(builder).read(root)
            meta = _tei_meta(root)
        elif name == "alto":
            _write_pages(_alto_pages(root, join=config.join_lines), builder)
        elif name == "PcGts":
            _write_pages(_page_pages(root), builder)
        else:
            raise RecordError(
                "unknown_xml",
                f"expected TEI, ALTO or PAGE XML, got <{name}>; take the file out of the input, or name a pattern",
            )
        text, parts = builder.built(join_lines=config.join_lines)
        return decoded._replace(text=text, parts=parts, meta=stored_meta(meta))


def _tree(text: str) -> Element:
    """Return the root of a document, without the attributes that its DTD adds: each element would have a copy."""
    builder, parser = TreeBuilder(), expat.ParserCreate()

    def resolve(other: str) -> None:
        # Entities of HTML, which TEI's and XHTML's files of entities have as well.
        if other.startswith("&"):
            if other[1:] not in html5:
                raise expat.ExpatError(f"the entity {other} is not defined in it")
            builder.data(html5[other[1:]])

    parser.buffer_text = parser.specified_attributes = True
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler, parser.DefaultHandlerExpand = builder.data, resolve
    try:
        parser.Parse(text.lstrip(), True)
    except expat.ExpatError as error:
        raise RecordError("invalid_xml", f"expected XML that is whole by itself ({error}); repair the file") from None
    return builder.close()


def _name(element: Element) -> str:
    """Return the name of an element in whatever version of its namespace."""
    return element.tag.rpartition(":")[2]


def _named(element: Iterable[Element], *names: str) -> list[Element]:
    return [child for child in element if _name(child) in names]


def _tei_meta(root: Element) -> dict[str, str]:
    header = next((element for element in root.iter() if _name(element) == "titleStmt"), None)
    return {name: "; ".join(map(_flat, _named(header or (), name))) for name in ("title", "author")}


def _flat(element: Element) -> str:
    """Return the text of an element of the header, without the numbers that identify a person or thing."""
    for number in _named(element, "idno"):
        number.text = ""
    text = TextBuilder()
    _Tei(text).read(element)
    return " ".join(text.built(join_lines=True)[0].split())


class _Open(NamedTuple):
    """An element that has begun, with what separates it from its neighbours and where it begins in the text."""

    element: Element
    name: str
    children: list[Element]  # those still to be read, the next one last
    gap: Gap
    start: int
    is_of_blocks: bool
    is_raised: bool


class _Tei:
    """Writes what elements of TEI show, each note behind the paragraph that it is in."""

    def __init__(self, text: TextBuilder) -> None:
        self._text = text
        self._open: list[_Open] = []
        self._pages = 0
        self._paragraphs = 0  # that are open
        self._notes: list[Element] = []  # of these
        self._after_field = False  # whether one has just ended, with nothing behind it
        self._in_word = False

    def read(self, root: Element) -> None:
        """Write an element; without recursion, since how deep that may go depends on the process."""
        self._open.append(_Open(Element(""), "", [root], Gap.NONE, 0, is_of_blocks=False, is_raised=False))
        while len(self._open) > 1 or self._open[0].children:
            if not self._open[-1].children:
                self._end(self._open.pop())
                continue
            child = self._open[-1].children.pop()
            name = _name(child)
            if name in _BREAKS or name in _UNPRINTED:
                self._turn_pages(child)
                if name in _BREAKS and (child.get("break") == "no" or self._in_word):
                    self._text.go_on()
                elif name in _BREAKS:
                    self._text.separate(Gap.LINE)
            elif name == "note":
                self._notes.append(child)
                self._end_paragraph()
            else:
                self._begin(child, name)
                continue
            self._write(child.tail)

    def _begin(self, element: Element, name: str) -> None:
        parent = self._open[-1]
        is_block = parent.is_of_blocks or (name == "seg" and parent.name == "u")
        gap = _GAPS.get(name, Gap.BLOCK if is_block else Gap.NONE)
        is_raised = parent.is_raised or name == "ref" or (name == "hi" and bool(_RAISED.search(str(element.attrib))))
        is_of_blocks = name in _OF_BLOCKS and not any(
            (text or "").strip() for text in (element.text, *(child.tail for child in element))
        )
        start = self._text.length
        self._open.append(_Open(element, name, self._chosen(element, name), gap, start, is_of_blocks, is_raised))
        self._separate(gap, name, 1)
        if name == "w":
            self._in_word = True
        if name == "w" and element.get("part") in ("M", "F"):
            self._text.go_on()
        elif element.get("join") in ("left", "both"):
            self._text.glue()
        elif self._after_field and name != "pc" and name not in _PARTS_OF_WORDS and (element.text or len(element)):
            self._text.separate(Gap.SPACE)
        self._write(element.text)

    def _end(self, opened: _Open) -> None:
        self._separate(opened.gap, opened.name, -1)
        if opened.name == "w":
            self._in_word = opened.element.get("part") in ("I", "M")
        if opened.element.get("join") in ("right", "both"):
            self._text.glue()
        elif self._text.length > opened.start and opened.name not in _PARTS_OF_WORDS:
            self._after_field = True
        self._end_paragraph()
        self._write(opened.element.tail)

    def _chosen(self, element: Element, name: str) -> list[Element]:
        """Return the children of an element, or the one of them that is to be read."""
        children = list(element)[::-1]
        if name not in _CHOSEN or not children:
            return children
        chosen = next((child for child in element if _name(child) in _CHOSEN[name]), element[0])
        for child in element:
            if child is not chosen:
                self._turn_pages(child)
        return [chosen]

    def _end_paragraph(self) -> None:
        """Let the notes of a paragraph follow it, unless another one is open."""
        if not self._paragraphs:
            for note in reversed(self._notes):
                paragraph = Element("p")
                paragraph.text, paragraph[:] = note.text, note
                self._open[-1].children.append(paragraph)
            self._notes.clear()

    def _separate(self, gap: Gap, name: str, paragraphs: int) -> None:
        self._text.separate(gap)
        if gap > Gap.SPACE and name not in _BLOCKS:
            self._paragraphs += paragraphs
        if gap == Gap.BLOCK:
            self._in_word = False

    def _write(self, content: str | None) -> None:
        if content:
            (self._text.write_raised if self._open[-1].is_raised else self._text.write)(content)
            self._after_field = self._after_field and content.isspace()

    def _turn_pages(self, element: Element) -> None:
        for page in element.iter():
            if _name(page) == "pb":
                self._pages += 1
                self._text.begin_part(PAGE, page.get("n", "").removeprefix("p.").strip() or str(self._pages))


def _write_pages(pages: Iterable[tuple[str, Iterable[Sequence[str]]]], text: TextBuilder) -> None:
    """Write pages, given as their labels and the lines of their blocks."""
    for label, blocks in pages:
        text.begin_part(PAGE, label)
        for lines in blocks:
            # A word may be broken at the end of a column or page.
            goes_on = text.ends_in_hyphen() and "".join(lines).lstrip()[:1].islower()
            gap = Gap.SOFT_LINE if goes_on else Gap.BLOCK
            for line in lines:
                text.separate(gap)
                text.write(line)
                gap = Gap.SOFT_LINE


def _in_order(page: Element, names: Mapping[str, int], is_block: Callable[[Element], bool]) -> list[Element]:
    """Return the blocks of a page in the order of their names; others are where what they are in is, or last."""
    found, waiting = list[tuple[float, Element]](), [(math.inf, page)]
    while waiting:
        rank, element = waiting.pop()
        rank = names.get(element.get("ID") or element.get("id") or "", rank)
        if is_block(element):
            found.append((rank, element))
        waiting += ((rank, child) for child in reversed(element) if _name(child) != "TextLine")
    return [element for _, element in sorted(found, key=itemgetter(0))]


def _ranks(names: Iterable[str | None]) -> dict[str, int]:
    """Return where each name comes first."""
    return {name: number for number, name in enumerate(dict.fromkeys(names)) if name}


def _alto_pages(root: Element, *, join: bool) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the pages of ALTO; where words are joined, a broken one is in the line that it begins in."""
    ranks = _ranks(element.get("REF") for element in root.iter() if _name(element) == "ElementRef")
    pages = [page for layout in _named(root, "Layout") for page in _named(layout, "Page")]
    found = [_in_order(page, ranks, lambda block: _name(block) == "TextBlock") for page in pages]
    blocks = [[_named(block, "TextLine") for block in page] for page in found]
    if join:
        _join_halves([item for page in blocks for block in page for line in block for item in line])
    for number, (page, lines) in enumerate(zip(pages, blocks, strict=True), 1):
        label = page.get("PRINTED_IMG_NR") or page.get("PHYSICAL_IMG_NR") or str(number)
        yield label, [list(map(_alto_line, block)) for block in lines]


def _join_halves(items: Sequence[Element]) -> None:
    """Make the first half of each broken word the whole of it.

    Its second half may be on a later page, behind other text; one that is not marked is the next string.
    """
    seconds: dict[str, Element] = {}
    following = hyphen = Element("")
    for item in reversed(items):
        if _name(item) == "HYP":
            hyphen = item
        elif _name(item) == "String":
            kind, whole, half = item.get("SUBS_TYPE"), item.get("SUBS_CONTENT", ""), item.get("CONTENT", "")
            half, word = half.rstrip(HYPHENS), _NO_LETTER.sub("", whole)
            if kind == "HypPart2":
                seconds[word] = item
            elif kind == "HypPart1" and word:
                second = seconds.pop(word, None)
                if _NO_LETTER.sub("", half + following.get("CONTENT", "")) == word:
                    second = following
                if second is not None:
                    is_composed = f"{half.lstrip(punctuation)}-" in whole
                    # As it is printed, with what surrounds it there.
                    whole = f"{half}{'-' if is_composed else ''}{second.get('CONTENT', '')}"
                    second.set("CONTENT", "")
                item.set("CONTENT", whole)
                hyphen.set("CONTENT", "")
            following, hyphen = item, Element("")


def _alto_line(line: Element) -> str:
    """Return the text of a line; where nothing says that it has spaces, each string is a word."""
    items = _named(line, "String", "SP", "HYP")
    spaces = {"SP": " ", "HYP": "", "String": "" if any(_name(item) == "SP" for item in items) else " "}
    return "".join(spaces[_name(item)] + item.get("CONTENT", "-" if _name(item) == "HYP" else "") for item in items)


def _page_pages(root: Element) -> Iterator[tuple[str, list[list[str]]]]:
    for number, page in enumerate(_named(root, "Page"), 1):
        ranks = _ranks(name for group in _named(page, "ReadingOrder") for name in _references(group))
        yield str(number), list(map(_region_lines, _in_order(page, ranks, _is_region)))


def _is_region(element: Element) -> bool:
    """Tell whether an element is a region or cell that belongs to the text."""
    types = {element.get("type"), *_CUSTOM_TYPE.findall(element.get("custom", ""))}
    return _name(element).endswith(("Region", "TableCell")) and not _RUNNING & types


def _region_lines(region: Element) -> list[str]:
    """Return the lines of a region; its own text counts where neither they nor regions within it have any."""
    lines = list(filter(None, map(_page_line, _named(region, "TextLine"))))
    within = (element for child in region if _is_region(child) for element in child.iter() if element.text)
    has_words = lines or any(_name(element) == "Unicode" for element in within)
    return lines if has_words else _equivalent(region).splitlines()


def _page_line(line: Element) -> str:
    """Return the text of a line, or else that of its words, or else of their letters."""
    words = (_equivalent(word) or "".join(map(_equivalent, _named(word, "Glyph"))) for word in _named(line, "Word"))
    return _equivalent(line) or " ".join(filter(None, words))


def _equivalent(element: Element) -> str:
    """Return the first of the readings of a region, line, word or letter."""
    readings = sorted(_named(element, "TextEquiv"), key=_index)
    return next((text.text or "" for reading in readings[:1] for text in _named(reading, "Unicode")), "").strip()


def _references(group: Element) -> Iterator[str | None]:
    """Yield the names of the regions of a group, in their order."""
    waiting = [group]
    while waiting:
        child = waiting.pop()
        yield child.get("regionRef")
        waiting += sorted(child, key=_index)[::-1]


def _index(element: Element) -> int:
    index = element.get("index", "")
    return int(index) if index.isdecimal() else 0
