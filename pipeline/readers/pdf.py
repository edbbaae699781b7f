"""PDF files by pypdfium2: the text layer, in the order in which the file has it, with pages as parts.

PDFium returns lines of characters. What is a paragraph is seen from the place and size of the letters; where that
leaves it open, a line end stays a line end. Nothing is put into another order.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from ctypes import byref, c_double
from itertools import pairwise
from statistics import median
from threading import Lock
from typing import Any, NamedTuple

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import PAGE
from concord.pipeline.readers.base import FileReader
from concord.pipeline.readers.extracting import HARD_BREAK, SOFT_BREAK, extracted
from concord.pipeline.readers.files import Decoded, most_unpacked, unpacks_too_far, with_codecs
from concord.pipeline.readers.records import RecordError, reason_of

_LOCK = Lock()
"""PDFium may be called by one thread at a time."""
_META = {"Title": "title", "Author": "author", "Subject": "subject", "Keywords": "keywords", "CreationDate": "created"}
_LEAST_PAGE_BYTES = 4
"""Fewer bytes of a file are no page, however well it is compressed."""
_NO_TEXT = "scanned: no text layer; recognize the text first, for example by OCRmyPDF"
_MOST_LABEL = 100
_LEAST_RUNNING_PAGES = 3
_INDENT = 20.0
"""Points within which lines begin at about the same place."""
_EDGE_LINES, _EDGE = 2, 0.12
"""So many lines in this share of a page at its top, and at its bottom, may be running ones."""
_MOST_LEADING = 2.5
"""Lines are at most so far from each other, in sizes of their font."""
_SAME_PLACE = 2.0
"""Points."""
_HYPHEN = "\ufffe"
"""What PDFium returns for a hyphen at the end of a line, without a line end."""
_HYPHENS = ("-", "\u00ad", "\u2010")
_LINE = re.compile(f"[^\r\n{_HYPHEN}]+{_HYPHEN}?|{_HYPHEN}")
_LETTERS = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st", 0: None}
_ENDS_SENTENCE = re.compile(r"[.!?:;…][\"'’”»)\]]*\Z")
_DATE = re.compile(r"D:(\d{4})(\d\d)(\d\d)")
_NUMBER = re.compile(r"\d{1,6}")


class _Line(NamedTuple):
    """A line with the place of its first letter on the base line, its right end and the size of its font, in points.

    ``height`` is its base line as a share of the page.
    """

    text: str
    left: float
    base: float
    right: float
    size: float
    height: float

    @property
    def ends_sentence(self) -> bool:
        return bool(_ENDS_SENTENCE.search(self.text))


_Page = list[_Line]


class PdfReader(FileReader):
    """Reads the text layer of a file."""

    suffixes = with_codecs(".pdf")
    libraries = ("pypdfium2",)
    text_share = 0.05

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        with _LOCK:
            pages, labels, meta, lost = _read_pages(content, config)
        if not any(pages.values()):
            if len({error.code for error in lost.values()}) == 1:
                raise next(iter(lost.values()))
            raise RecordError("no_text_layer", _NO_TEXT)
        if config.join_lines:
            pages, meta["running_lines"] = _without_running_lines(pages)
            in_order = list(pages.values())
            neighbours = zip(in_order, [*in_order[1:], []], strict=True)
            texts = [_paragraphs(page) + _between_pages(page, following) for page, following in neighbours]
        else:
            texts = ["".join(f"{line.text}\n" for line in page) + "\n" for page in pages.values()]
        parts = [(PAGE, labels[number], text) for number, text in zip(pages, texts, strict=True)]
        return extracted(parts, meta=meta, lost=lost, between="", join_lines=config.join_lines)


def _read_pages(
    content: bytes, config: ReaderConfig
) -> tuple[dict[int, _Page], dict[int, str], dict[str, Any], dict[int, RecordError]]:
    """Return the lines and the label of each page by its number, what the file says of itself, and the lost pages."""
    # Importing it takes a while.
    import pypdfium2 as pdfium

    try:
        document = pdfium.PdfDocument(content)
    except pdfium.PdfiumError as error:
        if "password" in str(error).lower():
            raise RecordError("encrypted", "encrypted: it opens with a password only; save it without one") from None
        raise
    try:
        count, most = len(document), most_unpacked(len(content))
        if count > len(content) / _LEAST_PAGE_BYTES:
            raise unpacks_too_far(len(content), most)
        pages: dict[int, _Page] = {}
        labels: dict[int, str] = {}
        lost: dict[int, RecordError] = {}
        for number in range(1, count + 1):
            try:
                pages[number] = _lines_of(document[number - 1])
                most -= sum(len(line.text) for line in pages[number])
                labels[number] = (document.get_page_label(number - 1) or str(number))[:_MOST_LABEL]
            except RecordError as error:
                lost[number] = error
            except pdfium.PdfiumError as error:
                lost[number] = RecordError("unreadable_page", f"cannot be read ({reason_of(error)}); the others were")
            if most < 0:
                raise unpacks_too_far(len(content), most_unpacked(len(content)))
        known = document.get_metadata_dict()
        meta: dict[str, Any] = {name: known.get(key, "") for key, name in _META.items()}
        date = _DATE.match(meta["created"])
        return pages, labels, meta | {"created": "-".join(date.groups()) if date else ""}, lost
    finally:
        document.close()


def _lines_of(page: Any) -> _Page:
    """Return the lines of a page.

    Raises:
        RecordError: for a page that is a picture without text.
    """
    import pypdfium2.raw as raw

    try:
        text_page = page.get_textpage()
        try:
            lines = list(_lines(raw, text_page, page.get_height()))
        finally:
            text_page.close()
        if not lines and _is_picture(raw, page):
            raise RecordError("no_text_layer", _NO_TEXT)
        return lines
    finally:
        page.close()


def _lines(raw: Any, text_page: Any, height: float) -> Iterator[_Line]:
    text: str = text_page.get_text_range()
    # PDFium counts in UTF-16.
    wide = max(text, default="") > "\uffff"
    x, y, unused, right = c_double(), c_double(), c_double(), c_double()
    for found in _LINE.finditer(text):
        content = found[0].strip()
        if not content:
            continue
        start = found.start() + found[0].index(content[0])
        end = start + len(content)
        if wide:
            start, end = (len(text[:bound].encode("utf-16-le")) // 2 for bound in (start, end))
        raw.FPDFText_GetCharOrigin(text_page, start, byref(x), byref(y))
        raw.FPDFText_GetCharBox(text_page, end - 1, byref(unused), byref(right), byref(unused), byref(unused))
        # A bullet at the beginning may be larger.
        size = raw.FPDFText_GetFontSize(text_page, (start + end) // 2)
        letters = content.replace(_HYPHEN, "-").translate(_LETTERS)
        yield _Line(letters, x.value, y.value, right.value, size, y.value / max(height, 1.0))


def _is_picture(raw: Any, page: Any) -> bool:
    """Tell whether an image takes up more than half of a page."""
    width, height = page.get_size()
    for item in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=2):
        left, bottom, right, top = item.get_bounds()
        if (right - left) * (top - bottom) > width * height / 2:
            return True
    return False


def _without_running_lines(pages: Mapping[int, _Page]) -> tuple[dict[int, _Page], list[str]]:
    """Leave out headers, footers and page numbers: the same line at the same place at the edge of most pages.

    A line without the number of the page stays where it stands first.

    Returns:
        The other lines of each page, and what was left out, as it stood first.
    """
    keys = {number: {index: _keys(page[index], number) for index in _edge(page)} for number, page in pages.items()}
    counts = Counter(key for by_line in keys.values() for line_keys in by_line.values() for key in line_keys)
    least = max(_LEAST_RUNNING_PAGES, len(pages) // 2 + 1)
    kept: dict[int, _Page] = {}
    seen: dict[tuple[str, int], str] = {}
    for number, page in pages.items():
        kept[number] = []
        for index, line in enumerate(page):
            running = next((key for key in keys[number].get(index, ()) if counts[key] >= least), None)
            if running is None or (running not in seen and not _is_numbered(running)):
                kept[number].append(line)
            if running is not None:
                seen.setdefault(running, line.text)
    return kept, list(seen.values())


def _edge(page: _Page) -> set[int]:
    """Return the indices of the lines nearest to the top and to the bottom of a page, if they are near enough."""
    by_height = sorted(range(len(page)), key=lambda index: page[index].base)
    nearest = {*by_height[:_EDGE_LINES], *by_height[-_EDGE_LINES:]}
    return {index for index in nearest if not _EDGE < page[index].height < 1 - _EDGE}


def _keys(line: _Line, number: int) -> list[tuple[str, int]]:
    """Return by what a line is the same as one of another page: its text, also with numbers counted from the page."""
    place = round(line.base / _SAME_PLACE)
    counted = _NUMBER.sub(lambda found: f"\0{int(found[0]) - number}", line.text)
    return [(text, place) for text in dict.fromkeys((line.text, counted))]


def _is_numbered(key: tuple[str, int]) -> bool:
    return "\0" in key[0]


def _paragraphs(page: _Page) -> str:
    """Return the text of a page: paragraphs, and within them breaks that are to be joined or to be kept."""
    steps = [one.base - two.base for one, two in pairwise(page) if one.base > two.base]
    step = min(median(steps), _MOST_LEADING * max(line.size for line in page)) if steps else 0.0
    ends = _right_ends(page)
    text = [_between(line, following, step, ends) + following.text for line, following in pairwise(page)]
    return "".join([*(line.text for line in page[:1]), *text])


def _between(line: _Line, following: _Line, step: float, ends: Mapping[int, float]) -> str:
    """Return what stands between two lines of a page, whose usual distance is ``step``."""
    down = line.base - following.base
    if abs(line.size - following.size) > line.size / 10 or down > 1.4 * step:
        return "\n\n"
    if down < -step:
        return _between_blocks(line, following, ends)
    has_room = _has_room(line, following, ends)
    if line.ends_sentence and (has_room or following.left > line.left + line.size / 2):
        return "\n\n"
    return HARD_BREAK if has_room and not line.text.endswith(_HYPHENS) else SOFT_BREAK


def _between_pages(page: _Page, following: _Page) -> str:
    return _between_blocks(page[-1], following[0], _right_ends(page)) if page and following else "\n\n"


def _between_blocks(last: _Line, first: _Line, ends: Mapping[int, float]) -> str:
    """Return what stands between two pages or columns: a soft break where a sentence goes on."""
    if last.ends_sentence or abs(last.size - first.size) > last.size / 10:
        return "\n\n"
    return SOFT_BREAK if first.text[0].islower() or not _has_room(last, first, ends) else "\n\n"


def _has_room(line: _Line, following: _Line, ends: Mapping[int, float]) -> bool:
    """Tell whether the first word of the following line would have fitted in a line, whose end was thus intended."""
    word = len(following.text.split(maxsplit=1)[0])
    width = (following.right - following.left) / max(len(following.text), 1)
    return line.right + (word + 1) * width < ends[_column(line)]


def _right_ends(page: _Page) -> dict[int, float]:
    """Return where the longest of the lines that begin at about the same place ends, by ``_column``."""
    longest: defaultdict[int, float] = defaultdict(float)
    for line in page:
        for column in range(_column(line) - 1, _column(line) + 2):
            longest[column] = max(longest[column], line.right)
    return longest


def _column(line: _Line) -> int:
    return int(line.left // _INDENT)
