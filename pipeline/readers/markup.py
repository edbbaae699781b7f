"""Editions and OCR in XML: TEI, ALTO and PAGE, told apart by their root element. Each file is one document.

The raw text is what the markup says the page shows, in reading order; its pages are parts. No other file is opened, and
nothing that a file defines can grow. Names of elements count without their namespace.
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html.entities import html5
from itertools import chain
from operator import itemgetter
from string import punctuation
from typing import NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from typing_extensions import override

from concord.models.data.sentence import HYPHENS
from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.documents import PAGE
from concord.pipeline.readers.base import FileReader, stored_meta
from concord.pipeline.readers.files import Decoded, decode, encoding_of, with_codecs
from concord.pipeline.readers.records import RecordError
from concord.pipeline.readers.text import Gap, TextBuilder, is_note_mark

_DECLARED = re.compile(rb"""\s*<\?xml\b[^>]*?encoding\s*=\s*["']([^"'>]+)""")
_DECLARATION = re.compile(r"\s*<\?xml\b[^>]*\?>")
_MOST_TAGS = 3_000_000
"""An element takes some hundred bytes of memory."""
_MOST_DEPTH = 10_000


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
    "text front body back group floatingText div div0 div1 div2 div3 div4 div5 div6 div7 lg list sp table "
    "row figure epigraph argument byline dateline opener closer docTitle docAuthor docImprint docDate trailer "
    "postscript castList castGroup set listBibl biblStruct listPerson person listPlace place listOrg org entry"
)
_GAPS = {**dict.fromkeys(_BLOCKS | _PARAGRAPHS, Gap.BLOCK), "l": Gap.LINE, "addrLine": Gap.LINE, "space": Gap.SPACE}
_BLOCKS_WITHIN = {"label": _set("list figure table"), "seg": _set("u"), "bibl": _set("listBibl")}
"""Elements that are blocks where they are directly in one of these."""
_ASIDES = _set("stage kinesic vocal incident")
_RECORDS = _set("biblStruct analytic monogr series imprint bibl person place org affiliation address")
"""Elements whose children are blocks, unless they have text of their own between them."""
_CHOSEN = {"choice": ("corr", "reg", "expan"), "app": ("lem",)}
"""Elements with several readings, and those that are preferred to the first one."""
_UNPRINTED = _set("fw del surplus index interp interpGrp spanGrp linkGrp fs figDesc")
_RAISED = re.compile(r"\bsup(er(script)?)?\b")
_NOTE = re.compile(r"(foot|end)?-?note|foot|fn")
_OPENING, _CLOSING = tuple("([{\u00ab\u2039\u201c\u201e"), tuple(".,;:!?)]}\u00bb\u203a\u201d\u2026")

_RUNNING = _set("header footer page-number catch-word signature-mark")
"""The types of PAGE's regions that are no part of the text."""
_CUSTOM_TYPE = re.compile(r"\bstructure\s*\{[^{}]*?\btype:\s*([\w-]+)")
_MARKS = f"{punctuation}\u00a1\u00ab\u00bb\u00bf\u2013\u2014\u2018\u2019\u201a\u201c\u201d\u201e\u2026\u2039\u203a"


class MarkupReader(FileReader):
    """Reads files of one document each."""

    suffixes = (*with_codecs(".xml"), *with_codecs(".tei"))

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        encoding = encoding_of(content, config.encoding, lambda: _declared(content))
        decoded = decode(content, encoding=encoding, errors=config.errors)
        root = _tree(decoded.text)
        name, builder = _name(root), TextBuilder(config.max_record_bytes)
        meta: Mapping[str, str] = {}
        if name in ("TEI", "TEI.2", "teiCorpus", "teiCorpus.2"):
            meta = _Tei(root, builder).read()
        elif name == "alto":
            _write_pages(_alto_pages(root, join=config.join_lines), builder, join=config.join_lines)
        elif name == "PcGts":
            _write_pages(_page_pages(root), builder, join=config.join_lines)
        else:
            raise RecordError(
                "unknown_xml",
                f"expected TEI, ALTO or PAGE XML, got <{name}>; take the file out of the input, or name a pattern",
            )
        text, parts = builder.built(join_lines=config.join_lines)
        return decoded._replace(text=text, parts=parts, meta=stored_meta(meta))


def _declared(content: bytes) -> str | None:
    declaration = _DECLARED.match(content)
    return codec_of(declaration[1].decode("latin-1")) if declaration else None


def _tree(text: str) -> Element:
    """Return the root of a document, without the attributes that its DTD adds: each element would have a copy."""
    if text.count("<") > _MOST_TAGS:
        raise RecordError("too_many_elements", f"expected at most {_MOST_TAGS:,} tags, got more; split the file")
    builder, parser = TreeBuilder(), expat.ParserCreate()

    def resolve(other: str) -> None:
        # Entities of HTML, which TEI's and XHTML's files of entities have as well.
        if other.startswith("&"):
            if other[1:] not in html5:
                raise _invalid(f"an entity {other} that it does not define")
            builder.data(html5[other[1:]])

    parser.buffer_text = parser.specified_attributes = True
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler, parser.DefaultHandlerExpand = builder.data, resolve
    try:
        parser.Parse(_DECLARATION.sub("", text, count=1), True)
    except expat.ExpatError as error:
        raise _invalid(f"a fault ({error})") from None
    return builder.close()


def _invalid(what: str) -> RecordError:
    return RecordError("invalid_xml", f"expected XML that stands alone, got {what}; repair the file")


def _name(element: Element) -> str:
    """Return the name of an element in whatever version of its namespace."""
    return element.tag.rpartition(":")[2]


def _named(element: Iterable[Element], *names: str) -> list[Element]:
    """Return the children of these names."""
    return [child for child in element if _name(child) in names]


@dataclass(slots=True)
class _Flow:
    """A text and where in it the reader is.

    Attributes:
        paragraphs: how many it is in.
        notes: those of the paragraph.
        after_field: whether a field has just ended, with nothing behind it.
        in_word: whether a line end is within a word.
    """

    text: TextBuilder
    paragraphs: int = 0
    notes: list[TextBuilder] = field(default_factory=list)
    after_field: bool = False
    in_word: bool = False

    def end_paragraph(self) -> None:
        """Write the notes of a paragraph behind it, unless another one is open."""
        if not self.paragraphs:
            for note in self.notes:
                self.text.write_builder(note)
            self.notes.clear()


class _Open(NamedTuple):
    """An element that has begun, what separates it from its neighbours, and the text that it is in and begins at."""

    element: Element
    children: Iterator[Element]
    name: str
    gap: Gap
    flow: _Flow
    start: int
    is_record: bool
    is_raised: bool


class _Tei:
    """TEI: what the elements ``text`` show, each note behind the paragraph that it is in."""

    def __init__(self, root: Element, text: TextBuilder) -> None:
        self._root = root
        self._flow = _Flow(text)
        self._open: list[_Open] = []
        self._unchosen: set[int] = set()
        self._pages = 0
        # GROBID writes captions there, others what a picture shows.
        has_captions = any(program.get("ident") == "GROBID" for program in root.iter("application"))
        self._unprinted = _UNPRINTED - {"figDesc"} if has_captions else _UNPRINTED

    def read(self) -> Mapping[str, str]:
        """Write the text; return what the header says."""
        texts = list(_texts(self._root))
        if not texts:
            raise RecordError("no_text", "expected an element <text>, got none; take the file out of the input")
        for element in texts:
            self._read(element)
        header = next((element for element in self._root.iter() if _name(element) == "titleStmt"), None)
        return {name: "; ".join(map(self._flat, _named(header or (), name))) for name in ("title", "author")}

    def _flat(self, element: Element) -> str:
        """Return the text of an element of the header, without the numbers that identify a person or thing."""
        for number in _named(element, "idno"):
            number.text = ""
        self._flow = _Flow(TextBuilder(self._flow.text.most))
        self._read(element)
        return " ".join(str(self._flow.text).split())

    def _read(self, root: Element) -> None:
        # Without recursion: how deep that may go depends on the process.
        self._begin(root, _name(root))
        while self._open:
            child = next(self._open[-1].children, None)
            if child is None:
                self._end(self._open.pop())
            elif (name := _name(child)) in _BREAKS or not self._is_printed(name, child):
                if name != "lb":
                    self._turn_pages(child)
                if name in _BREAKS:
                    self._break_line(child)
                self._write(child.tail)
            else:
                self._begin(child, name)

    def _is_printed(self, name: str, element: Element) -> bool:
        if name == "ref" and (_NOTE.match(element.get("type", "")) or element.get("target") in self._notes):
            return not is_note_mark("".join(element.itertext()).strip(), ".")
        return name not in self._unprinted and id(element) not in self._unchosen

    @cached_property
    def _notes(self) -> frozenset[str]:
        """What refers to a note."""
        return frozenset(f"#{note.get('xml:id')}" for note in self._root.iter() if _name(note) == "note")

    def _begin(self, element: Element, name: str) -> None:
        flow, parent = self._flow, self._open[-1] if self._open else None
        if len(self._open) >= _MOST_DEPTH:
            raise RecordError("nested_too_deep", f"expected elements nested {_MOST_DEPTH:,} deep at most, got more")
        gap = _GAPS.get(name) or self._gap(name, parent)
        is_raised = name == "ref" or (name == "hi" and _is_raised(element)) or (parent is not None and parent.is_raised)
        is_record = name in _RECORDS and _has_no_text(element)
        self._open.append(_Open(element, iter(element), name, gap, flow, flow.text.length, is_record, is_raised))
        if name == "note":
            self._flow = _Flow(TextBuilder(flow.text.most))
        else:
            self._begin_field(name, element, gap)
        if name in _CHOSEN:
            chosen = next((child for child in element if _name(child) in _CHOSEN[name]), next(iter(element), None))
            self._unchosen.update(id(child) for child in element if child is not chosen)
        self._write(element.text)

    def _end(self, opened: _Open) -> None:
        if opened.name == "note":
            opened.flow.notes.append(self._flow.text)
            self._flow = opened.flow
        else:
            self._end_field(opened)
        self._flow.end_paragraph()
        if self._open:
            self._write(opened.element.tail)

    def _gap(self, name: str, parent: _Open | None) -> Gap:
        """Return what separates an element from its neighbours, where that depends on what it is in."""
        if parent and (parent.is_record or parent.name in _BLOCKS_WITHIN.get(name, ())):
            return Gap.BLOCK
        if name in _ASIDES:
            return Gap.SPACE if self._flow.paragraphs else Gap.BLOCK
        return Gap.NONE

    def _begin_field(self, name: str, element: Element, gap: Gap) -> None:
        flow, text = self._flow, self._flow.text
        if gap:
            self._separate(gap, name, 1)
        if name == "w":
            flow.in_word = True
        if name == "w" and element.get("part") in ("M", "F"):
            text.go_on()
        elif element.get("join") in ("left", "both"):
            text.glue()
        elif flow.after_field and (element.text or len(element)) and _is_apart(name, element.text, _OPENING):
            text.separate(Gap.SPACE)

    def _end_field(self, opened: _Open) -> None:
        flow, text, name, element = self._flow, self._flow.text, opened.name, opened.element
        if opened.gap:
            self._separate(opened.gap, name, -1)
        if name == "w":
            flow.in_word = element.get("part") in ("I", "M")
        if element.get("join") in ("right", "both"):
            text.glue()
        elif text.length > opened.start and _is_apart(name, element.text, _CLOSING):
            flow.after_field = True

    def _separate(self, gap: Gap, name: str, paragraphs: int) -> None:
        self._flow.text.separate(gap)
        if gap > Gap.SPACE and name not in _BLOCKS:
            self._flow.paragraphs += paragraphs
        if gap == Gap.BLOCK:
            self._flow.in_word = False

    def _break_line(self, element: Element) -> None:
        if element.get("break") == "no" or self._flow.in_word:
            self._flow.text.go_on()
        else:
            self._flow.text.separate(Gap.LINE)

    def _write(self, content: str | None) -> None:
        if content:
            flow = self._flow
            (flow.text.write_raised if self._open[-1].is_raised else flow.text.write)(content)
            flow.after_field = flow.after_field and content.isspace()

    def _turn_pages(self, element: Element) -> None:
        for page in element.iter():
            if _name(page) == "pb":
                self._pages += 1
                self._flow.text.begin_part(PAGE, page.get("n", "").removeprefix("p.").strip() or str(self._pages))


def _texts(root: Element) -> Iterator[Element]:
    """Yield the elements ``text`` that are in no other."""
    waiting = [root]
    while waiting:
        element = waiting.pop()
        if _name(element) == "text":
            yield element
        else:
            waiting += reversed(element)


def _is_raised(element: Element) -> bool:
    return any(_RAISED.search(element.get(name, "")) for name in ("rend", "rendition", "style"))


def _has_no_text(element: Element) -> bool:
    return not any((text or "").strip() for text in (element.text, *(child.tail for child in element)))


def _is_apart(name: str, text: str | None, marks: tuple[str, ...]) -> bool:
    """Tell whether an element is no part of the word that is directly beside it: a field, or one of these marks."""
    return (text or "") in marks if name == "pc" else name not in _PARTS_OF_WORDS


def _write_pages(pages: Iterable[tuple[str, Iterable[Sequence[str]]]], text: TextBuilder, *, join: bool) -> None:
    """Write pages, given as their labels and the lines of their blocks."""
    for label, blocks in pages:
        text.begin_part(PAGE, label)
        for lines in blocks:
            # A word may be broken at the end of a column or page.
            goes_on = join and text.ends_in_hyphen() and "".join(lines).lstrip()[:1].islower()
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
    words = _whole_words(chain.from_iterable(chain.from_iterable(blocks))) if join else {}
    for number, (page, lines) in enumerate(zip(pages, blocks, strict=True), 1):
        label = page.get("PRINTED_IMG_NR") or page.get("PHYSICAL_IMG_NR") or str(number)
        yield label, [[_alto_line(line, words) for line in block] for block in lines]


def _whole_words(lines: Iterable[Element]) -> dict[int, str]:
    """Return what the halves of broken words become, by their identity: the whole word, and nothing."""
    words: dict[int, str] = {}
    # Those that no second half has ended; it may be on a later page, behind other text.
    broken: dict[str, Element] = {}
    last = Element("String")
    for item in (item for line in lines for item in _named(line, "String")):
        whole, kind = _word(item, "SUBS_CONTENT"), item.get("SUBS_TYPE")
        first = broken.get(whole) if kind == "HypPart2" else None
        if id(last) in words and _word(last, "CONTENT") + _word(item, "CONTENT") == _word(last, "SUBS_CONTENT"):
            first = last
        if first is not None:
            words[id(first)], words[id(item)] = _printed(first, item.get("CONTENT", "")), ""
            broken.pop(_word(first, "SUBS_CONTENT"), None)
        elif kind == "HypPart1" and whole:
            words[id(item)] = _printed(item, "")
            broken[whole] = item
        last = item
    return words


def _printed(first: Element, second: str) -> str:
    """Return a broken word as it is printed, with what surrounds it there, or else as ALTO spells it."""
    half, whole = first.get("CONTENT", "").rstrip(HYPHENS), _word(first, "SUBS_CONTENT")
    for printed in (half + second, f"{half}-{second}"):
        if whole in printed:
            return printed
    return half[: len(half) - len(half.lstrip(_MARKS))] + whole + second[len(second.rstrip(_MARKS)) :]


def _word(item: Element, attribute: str) -> str:
    """Return an attribute without the punctuation around it."""
    return item.get(attribute, "").strip(_MARKS)


def _alto_line(line: Element, words: Mapping[int, str]) -> str:
    items = _named(line, "String", "SP", "HYP")
    has_spaces = any(_name(item) == "SP" for item in items)
    pieces: list[str] = []
    is_whole = False
    for item in items:
        content = words.get(id(item), item.get("CONTENT", ""))
        if _name(item) == "String":
            pieces += (" " if pieces and not has_spaces else "", content)
            is_whole = id(item) in words
        else:
            pieces.append(" " if _name(item) == "SP" else "" if is_whole else content or "-")
    return "".join(pieces)


def _page_pages(root: Element) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the pages of PAGE XML."""
    for number, page in enumerate(_named(root, "Page"), 1):
        ranks = _ranks(name for group in _named(page, "ReadingOrder") for name in _references(group))
        texts = _with_text(page)
        yield str(number), [_region_lines(region, texts) for region in _in_order(page, ranks, _is_region)]


def _with_text(page: Element) -> set[int]:
    """Return the identities of the elements that have text within them."""
    found: set[int] = set()
    for element in reversed(list(page.iter())):
        if (_name(element) == "Unicode" and element.text) or any(id(child) in found for child in element):
            found.add(id(element))
    return found


def _is_region(element: Element) -> bool:
    """Tell whether an element is a region or cell that belongs to the text."""
    types = {element.get("type"), *_CUSTOM_TYPE.findall(element.get("custom", ""))}
    return _name(element).endswith(("Region", "TableCell")) and not _RUNNING & types


def _region_lines(region: Element, texts: Container[int]) -> list[str]:
    """Return the lines of a region; its own text counts where neither they nor regions within it have any."""
    lines = list(filter(None, map(_page_line, _named(region, "TextLine"))))
    if lines or any(id(child) in texts and _is_region(child) for child in region):
        return lines
    return _equivalent(region).splitlines()


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
