"""PDF files by pypdfium2: the text layer, in the order in which the file has it, with pages as parts.

PDFium returns lines of characters. What is a paragraph, a cell or the mark of a note is seen from the place and size of
the letters; where that leaves it open, a line end stays a line end. Nothing is put into another order.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from ctypes import CFUNCTYPE, byref, c_double, c_int, c_void_p, cast
from functools import cache
from itertools import accumulate, pairwise
from math import hypot, inf
from statistics import median
from threading import Lock
from typing import Any, NamedTuple
from unicodedata import normalize

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import PAGE, Lost
from concord.pipeline.readers.base import FileReader, stored_meta
from concord.pipeline.readers.files import Decoded, most_unpacked, unpacks_too_far, with_codecs
from concord.pipeline.readers.records import RecordError, reason_of
from concord.pipeline.readers.text import Gap, TextBuilder, is_note_mark

_LOCK = Lock()
"""PDFium may be called by one thread at a time."""
_META = {"Title": "title", "Author": "author", "Subject": "subject", "Keywords": "keywords", "CreationDate": "created"}
_NO_TEXT = "scanned: no text layer; recognize the text first, for example by OCRmyPDF"
_NO_WORD = "no page has a word; if it is scanned or drawn, recognize the text first, for example by OCRmyPDF"
_FORM = "an XFA form, which only Adobe's programs can fill in and show; print it to a PDF file there"
_FORM_NOTICE = "If this message is not eventually replaced"
_EDGE_LINES, _EDGE = 2, 0.12
"""So many lines in this share of a page at its top, and at its bottom, may be running ones."""
_SAME_PLACE, _INDENT = 2.0, 20.0
"""Points: between lines at the same place of two pages, and between lines that begin at about the same place."""
_MOST_LEADING, _LARGE = 2.5, 1.7
"""Sizes of the font: between two lines at the most; how much larger a large first letter is."""
_CELL_ROOM, _SURE_ROOM, _TIMES_ROOM, _WORD_ROOM, _WIDE = 1.0, 2.5, 3.0, 0.2, 0.55
"""White space between cells, in sizes of the font, also as a multiple of that between words; how wide a letter is in a
line that surely has cells."""
_RAISED, _SMALL, _SAME_ROW, _ROW_ROOM, _LETTER_ROOM = 0.12, 0.95, 0.45, 2.0, 0.12
"""Sizes of the font: from a base line to that of what is raised, of that itself, between base lines of one row, between
two of its texts, and between two letters of a word."""
_HYPHEN = "\ufffe"
"""What PDFium returns for a hyphen at the end of a line, without a line end."""
_HYPHENS = ("-", "\u00ad", "\u2010")
_LINE = re.compile(rf"[^\s{_HYPHEN}](?:[^\r\n{_HYPHEN}]*\S)?|{_HYPHEN}")
_SPACES = re.compile(r"\s+")
_LETTERS = {letter: normalize("NFKC", letter) for letter in map(chr, range(0xFB00, 0xFB07))} | {_HYPHEN: "-", "\0": ""}
_COMBINING = "\u0300\u0301\u0302\u0302\u0303\u0303\u0304\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327\u0328"
_ACCENTS = dict(zip("`´^ˆ~˜¯ˉ˘˙¨˚˝ˇ¸˛", _COMBINING, strict=True))
_ODD = re.compile(f"[{re.escape(''.join([*_ACCENTS, *_LETTERS]))}]")
_UNDOTTED = {"\u0131": "i", "\u0237": "j"}
_FARTHEST = 20
"""Characters between an accent and its letter, and what tells what stands before a mark."""
_CLOSING, _STOPS = "\"'’”»)\\]", (".", "!", "?", ":", ";", "…")
_SIGN, _LETTER = "0-9*∗†‡§¶", r"[^\W\d_]"
_MARK = re.compile(
    rf"[{_SIGN}](?:(?<={_LETTER}.)|(?<=(?:{_LETTER}|[{_CLOSING}])[.,;:!?{_CLOSING}].)|(\d?(?={_LETTER}{{3}})))"
)
"""What may be the mark of a note, behind a word or before it."""
_LETTER_MARK = re.compile(rf"[{_SIGN},;\rA-Z](?:(?<={_LETTER}{{2}}[a-i][^A-Z])|((?<=(?<!\w)[a-z].)(?={_LETTER}{{2}})))")
"""What stands behind a letter that may be one."""
_WORD = re.compile(r"[^\W\d_]{2}")
_LABEL = re.compile(r"\S|[^\w\s]{1,2}|[(\[§]?\s?(?:\d{1,3}|[^\W\d_]|[ivxIVX]+)(?:\.\d{1,3})*[.)\]:]*")
_DATE = re.compile(r"D:(\d{4})(\d\d)(\d\d)")
_NUMBER = re.compile(r"\d{1,6}")
_LINE_NUMBER = re.compile(r"(\d{1,4})(?: |\Z)")
_FEW_WORDS = 3


class _Line(NamedTuple):
    """A line, or a cell of one.

    The place of its first letter on the base line, its right end and the size of its font are points, of a page that is
    turned until its longest line runs from left to right. ``height`` is its base line as a share of the page.
    """

    text: str
    left: float
    base: float
    right: float
    size: float
    height: float
    is_cell: bool = False

    @property
    def ends_sentence(self) -> bool:
        return self.text.rstrip(_CLOSING).endswith(_STOPS)


_Page = list[_Line]


class PdfReader(FileReader):
    """Reads the text layer of a file."""

    suffixes = with_codecs(".pdf")
    libraries = ("pypdfium2",)
    text_share = 0.1

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        with _LOCK, closing(_opened(content)) as document:
            # Fewer than four bytes of a file are no page, however well it is compressed.
            if len(document) > len(content) / 4:
                raise unpacks_too_far(len(content), most_unpacked(len(content)))
            pages, labels, lost = _read_pages(document)
            meta = _meta(document)
        if not any(re.search(r"\w", line.text) for page in pages.values() for line in page):
            codes = {error.code for error in lost.values()}
            raise next(iter(lost.values())) if len(codes) == 1 else RecordError("no_text", _NO_WORD)
        if config.join_lines:
            numbered = {number: _without_line_numbers(page) for number, page in pages.items()}
            pages, meta["running_lines"] = _without_running_lines(numbered)
        builder, last = TextBuilder(), _Page()
        for number, page in pages.items():
            builder.begin_part(PAGE, labels[number])
            goes_on = config.join_lines and last and page
            builder.separate(_between_blocks(last[-1], page[0], _right_ends(last)) if goes_on else Gap.BLOCK)
            _write_page(builder, page, join=config.join_lines)
            last = page
        text, parts = builder.built(join_lines=config.join_lines)
        told = tuple(Lost(number, error.code, str(error)) for number, error in lost.items())
        return Decoded(text, encoding=None, meta=stored_meta(meta), parts=parts, lost=told)


def _opened(content: bytes) -> Any:
    # Importing it takes a while.
    import pypdfium2 as pdfium

    try:
        return pdfium.PdfDocument(content)
    except pdfium.PdfiumError as error:
        if "password" in str(error).lower():
            raise RecordError("encrypted", "encrypted: it opens with a password only; save it without one") from None
        raise


def _read_pages(document: Any) -> tuple[dict[int, _Page], dict[int, str], dict[int, RecordError]]:
    """Return the lines and the label of each page by its number, and the lost pages."""
    import pypdfium2 as pdfium

    pages: dict[int, _Page] = {}
    labels: dict[int, str] = {}
    lost: dict[int, RecordError] = {}
    for index in range(len(document)):
        try:
            pages[index + 1] = _lines_of(document[index])
            labels[index + 1] = (document.get_page_label(index) or str(index + 1))[:100]
        except RecordError as error:
            lost[index + 1] = error
        except pdfium.PdfiumError as error:
            lost[index + 1] = RecordError("unreadable_page", f"cannot be read ({reason_of(error)}); the others were")
    if len(document) == 1 and _FORM_NOTICE in " ".join(line.text for line in pages.get(1, ())):
        raise RecordError("xfa_form", _FORM)
    return pages, labels, lost


def _meta(document: Any) -> dict[str, Any]:
    """Return what the file says of itself."""
    known = document.get_metadata_dict()
    meta = {name: known.get(key, "") for key, name in _META.items()}
    date = _DATE.match(meta["created"])
    return meta | {"created": "-".join(date.groups()) if date else ""}


def _lines_of(page: Any) -> _Page:
    """Return the lines of a page; a picture without text is a RecordError."""
    with closing(page):
        with closing(page.get_textpage()) as text_page:
            lines = _Letters(page, text_page).lines()
        if not any(_WORD.search(line.text) for line in lines) and _is_picture(page):
            raise RecordError("no_text_layer", _NO_TEXT)
        return _with_initials(lines)


@cache
def _functions() -> list[Callable[..., Any]]:
    """Return functions of PDFium that check no types of pointers, which would take longer than the calls."""
    import pypdfium2.raw as raw

    types = (
        (raw.FPDFText_GetCharOrigin, c_int, c_void_p, c_int, c_void_p, c_void_p),
        (raw.FPDFText_GetLooseCharBox, c_int, c_void_p, c_int, c_void_p),
        (raw.FPDFText_GetMatrix, c_int, c_void_p, c_int, c_void_p),
        (raw.FPDFText_GetFontSize, c_double, c_void_p, c_int),
        (raw.FPDFText_CountRects, c_int, c_void_p, c_int, c_int),
    )
    return [CFUNCTYPE(*kinds)(cast(function, c_void_p).value or 0) for function, *kinds in types]


class _Letters:
    """The text of a page, and the places of its letters: only those that something may depend on are looked up."""

    def __init__(self, page: Any, text_page: Any) -> None:
        import pypdfium2.raw as raw

        self.text: str = text_page.get_text_range()
        self._page = cast(text_page.raw, c_void_p)
        self._get_origin, self._get_box, self._get_matrix, self._get_size, self._count_runs = _functions()
        self._x, self._y = c_double(), c_double()
        self._box, self._matrix = raw.FS_RECTF(), raw.FS_MATRIX()
        places = self._x, self._y, self._box, self._matrix
        self._to_x, self._to_y, self._to_box, self._to_matrix = map(byref, places)
        self._index: Sequence[int] = range(len(self.text) + 1)
        if text_page.count_chars() != len(self.text):
            # PDFium counts in UTF-16, and those of its characters that have no text as well.
            units = accumulate((1 + (letter > "\uffff") for letter in self.text), initial=0)
            self._index = [raw.FPDFText_GetCharIndexFromTextIndex(text_page, unit) for unit in units]
        # How the page is turned: as its longest line.
        self._turn = 0
        longest = max(map(str.strip, self.text.split("\r\n")), key=len)
        start = self.text.index(longest)
        (x, y), (other_x, other_y) = self._origin(start), self._origin(start + min(3, len(longest) - 1))
        if abs(other_y - y) > abs(other_x - x):
            self._turn = 1 if other_y > y else -1
        left, bottom, right, top = page.get_bbox()
        (x, y), (other_x, other_y) = self._turned(left, bottom), self._turned(right, top)
        # Where lines begin and end, and where their base lines are.
        self._limits = *sorted((x, other_x)), *sorted((y, other_y))
        # The letters of the text, where a place may have several or none.
        self._letters = [*self.text]

    def lines(self) -> _Page:
        """Return the lines of the page that are shown, cell by cell."""
        for odd in _ODD.finditer(self.text):
            if odd[0] in _LETTERS:
                self._letters[odd.start()] = _LETTERS[odd[0]]
            else:
                self._set_accent(odd.start())
        spans = [found.span() for found in _LINE.finditer(self.text)]
        # What is raised is drawn apart from its line.
        if self._count_runs(self._page, 0, -1) > len(spans):
            for found in _MARK.finditer(self.text):
                self._set_apart(*found.span(), is_before=found[1] is not None)
            for found in _LETTER_MARK.finditer(self.text):
                self._set_apart(found.start() - 1, found.start(), is_before=found[1] is not None)
        lines = (line for span in spans for line in self._cells(*span))
        return [line for line in lines if line.text and self._is_shown(line)]

    def _is_shown(self, line: _Line) -> bool:
        left, right, lowest, highest = self._limits
        return left <= (line.left + line.right) / 2 <= right and lowest <= line.base + line.size / 3 <= highest

    def _turned(self, x: float, y: float) -> tuple[float, float]:
        return (y * self._turn, -x * self._turn) if self._turn else (x, y)

    def _origin(self, place: int) -> tuple[float, float]:
        """Return where a letter begins on its base line."""
        self._get_origin(self._page, self._index[place], self._to_x, self._to_y)
        return self._turned(self._x.value, self._y.value)

    def _right(self, place: int) -> float:
        """Return where the next letter would begin."""
        self._get_box(self._page, self._index[place], self._to_box)
        right: float = (self._box.right, self._box.top, -self._box.bottom)[self._turn]
        return right

    def _size(self, place: int) -> float:
        self._get_matrix(self._page, self._index[place], self._to_matrix)
        size: float = self._get_size(self._page, self._index[place])
        return size * hypot(self._matrix.c, self._matrix.d) or 1.0

    def _text(self, start: int, end: int) -> str:
        text = "".join(self._letters[start:end])
        return " ".join(text.split()) if "  " in text else text.strip()

    def _line(self, start: int, end: int) -> _Line:
        left, base = self._origin(start)
        middle = (start + end) // 2
        while self.text[middle].isspace():
            middle -= 1
        if not self.text[start].isalpha():
            # Perhaps the raised mark of a note.
            base = self._origin(middle)[1]
        lowest, highest = self._limits[2:]
        height = (base - lowest) / (highest - lowest or 1.0)
        return _Line(self._text(start, end), left, base, self._right(end - 1), self._size(middle), height)

    def _cells(self, start: int, end: int) -> _Page:
        """Return the cells of a line, or the line."""
        line = self._line(start, end)
        is_wide = line.right - line.left > _WIDE * line.size * (end - start)
        first = self._index[start]
        if not is_wide and self._count_runs(self._page, first, self._index[end - 1] + 1 - first) < 2:
            return [line]
        spaces = [found.span() for found in _SPACES.finditer(self.text, start, end)]
        # No name goes on with a small letter.
        likely = (space for space in spaces if is_wide or not self.text[space[1]].islower())
        least = _CELL_ROOM * line.size
        if not any(self._origin(after)[0] - self._right(before - 1) > least for before, after in likely):
            return [line]
        rooms = [(before, after, self._right(before - 1), self._origin(after)[0]) for before, after in spaces]
        if len(rooms) > 1:
            # A line may be spread out to both margins.
            narrowest = max(min(left - right for _, _, right, left in rooms), _WORD_ROOM * line.size)
            least = min(max(least, _TIMES_ROOM * narrowest), _SURE_ROOM * line.size)
        gaps = [room for room in rooms if room[3] - room[2] > least]
        if gaps and _LABEL.fullmatch(self.text, start, gaps[0][0]):
            del gaps[0]
        cells, left = _Page(), line.left
        for before, after, right, next_left in [*gaps, (end, end, line.right, 0.0)]:
            cells.append(_Line(self._text(start, before), left, line.base, right, line.size, line.height, bool(gaps)))
            start, left = after, next_left
        return cells

    def _set_apart(self, start: int, end: int, *, is_before: bool) -> None:
        """Set the mark of a note apart from the word before it, or behind it."""
        text = self.text
        if is_before:
            if self._origin(start)[1] > self._origin(end)[1] + _RAISED * self._size(end):
                self._letters[end - 1] += " "
            return
        size = self._size(start - 1)
        least = self._origin(start - 1)[1] + _RAISED * size
        end = start
        while end < len(text) and not text[end].isspace() and self._origin(end)[1] > least:
            end += 1
        is_mark = end > start and is_note_mark(text[start:end], text[max(start - _FARTHEST, 0) : start])
        if is_mark and self._size(start) < _SMALL * size:
            self._letters[start] = " " + self._letters[start]
            if text[end : end + 1].isalnum():
                self._letters[end] = " " + self._letters[end]

    def _set_accent(self, place: int) -> None:
        """Set an accent over or under the letter that it is drawn at: one beside it, or one before it in the file."""
        middle = (self._origin(place)[0] + self._right(place)) / 2
        first = max(self.text.rfind("\n", 0, place) + 1, place - _FARTHEST)
        for other in (place + 1, place + 2, *range(place - 1, first - 1, -1)):
            letter = self._letters[other] if other < len(self.text) else ""
            whole = normalize("NFC", _UNDOTTED.get(letter, letter) + _ACCENTS[self.text[place]])
            if len(whole) == 1 and letter.isalpha() and self._origin(other)[0] < middle < self._right(other):
                near = range(min(place, other), max(place, other)) if abs(place - other) <= 2 else ()
                for gone in (place, *near):
                    self._letters[gone] = ""
                self._letters[other] = whole
                return


def _is_picture(page: Any) -> bool:
    """Tell whether an image takes up more than half of a page."""
    import pypdfium2.raw as raw

    width, height = page.get_size()
    bounds = (image.get_bounds() for image in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=2))
    return any((right - left) * (top - bottom) > width * height / 2 for left, bottom, right, top in bounds)


def _step(page: _Page) -> float:
    """Return how far lines of a page are from each other."""
    steps = [one.base - two.base for one, two in pairwise(page) if one.base > two.base]
    return min(median(steps), _MOST_LEADING * max(line.size for line in page)) if steps else 0.0


def _without_line_numbers(page: _Page) -> _Page:
    """Leave out the numbers before or beside the lines of a text: two are as far apart as so many lines."""
    numbered = [
        (line, int(found[1])) for line in page if line.text[:1].isdecimal() and (found := _LINE_NUMBER.match(line.text))
    ]
    step = _step(page) if len(numbered) > 2 else 0.0
    numbers: dict[int, str] = {}
    every = 10
    for (one, first), (two, second) in pairwise(numbered):
        if first < second and abs((one.base - two.base) / (second - first) - step) < step / 4:
            numbers |= {id(line): line.text.partition(" ")[2] for line in (one, two)}
            every = min(every, second - first)
    texts = [(line, numbers.get(id(line), line.text)) for line in page]
    heights = {_height(line) for line in page if id(line) in numbers}
    beside = [text for line, text in texts if _height(line) in heights and text.count(" ") >= _FEW_WORDS]
    # A list may have as many numbers, but its lines do not go on with small letters.
    is_list = not any(text[0].islower() for text in beside)
    if len(numbers) < 3 or len(numbers) * every < len(page) / 3 or is_list:
        return page
    return [line._replace(text=text) for line, text in texts if text]


def _with_initials(page: _Page) -> _Page:
    """Join a large first letter with the word beside it, wherever in the file it is drawn."""
    joined = list(page)
    for initial in page:
        is_letter = len(initial.text) == 1 and initial.text.isalpha()
        beside = [line for line in joined if _is_beside(line, initial)] if is_letter else []
        if beside:
            line = max(beside, key=lambda line: line.base)
            # A word of its own, if the page has the next word elsewhere.
            words = " ".join(line.text for line in page).lower().split()
            is_word = initial.text in "AIO" and words.count(line.text.split(maxsplit=1)[0].lower()) > 1
            joined[joined.index(line)] = line._replace(text=initial.text + " " * is_word + line.text)
            joined.remove(initial)
    return joined


def _is_beside(line: _Line, initial: _Line) -> bool:
    is_near = -1 < (line.left - initial.right) / line.size < 1.5 and line.text.count(" ") >= _FEW_WORDS
    is_high = initial.base + line.size / 5 < line.base < initial.base + initial.size
    return is_near and is_high and initial.size > _LARGE * line.size


def _without_running_lines(pages: Mapping[int, _Page]) -> tuple[dict[int, _Page], list[str]]:
    """Leave out headers, footers and page numbers: the same line at the same place at the edge of most pages.

    Return the other lines of each page, and what was left out as it stood first. A line without the number of the page
    stays where it stands first.
    """
    keys = {number: _edge_keys(page, number) for number, page in pages.items()}
    counts = Counter(key for page_keys in keys.values() for line_keys in page_keys for key in {*line_keys})
    least = max(3, len(pages) // 2 + 1)
    kept: dict[int, _Page] = {}
    seen: dict[tuple[str, int], str] = {}
    for number, page in pages.items():
        kept[number] = []
        for line, line_keys in zip(page, keys[number], strict=True):
            running = next((key for key in line_keys if counts[key] >= least), None)
            if running is None or (running not in seen and "\0" not in running[0]):
                kept[number].append(line)
            if running is not None:
                seen.setdefault(running, line.text)
    return kept, list(seen.values())


def _edge_keys(page: _Page, number: int) -> list[list[tuple[str, int]]]:
    """Return by what each line at the top or bottom of a page is the same as one of another: its text and height.

    It is also its text with numbers counted from that of the page.
    """
    heights = sorted({_height(line) for line in page})
    inner = {*heights[_EDGE_LINES:-_EDGE_LINES]}
    keys: list[list[tuple[str, int]]] = []
    for line in page:
        is_inner = _EDGE < line.height < 1 - _EDGE or _height(line) in inner
        counted = "" if is_inner else _NUMBER.sub(lambda found: f"\0{int(found[0]) - number}", line.text)
        keys.append([] if is_inner else [(text, _height(line)) for text in (line.text, counted)])
    return keys


def _height(line: _Line) -> int:
    return round(line.base / _SAME_PLACE)


def _write_page(builder: TextBuilder, page: _Page, *, join: bool) -> None:
    step, ends = _step(page), _right_ends(page)
    for line in page[:1]:
        builder.write_exactly(line.text)
    for line, following in pairwise(page):
        gap = _in_row(line, following)
        if gap is None:
            gap = _between(line, following, step, ends) if join else Gap.LINE
        builder.separate(gap)
        builder.write_exactly(following.text)


def _in_row(line: _Line, following: _Line) -> Gap | None:
    """Return what stands between cells, and between two texts on one base line; None if they are on two."""
    size = max(line.size, following.size)
    room = following.left - line.right
    if line.is_cell or following.is_cell:
        return Gap.BLOCK
    if abs(line.base - following.base) > _SAME_ROW * size or room < -size / 2:
        return None
    if room > _ROW_ROOM * size:
        return Gap.BLOCK
    raised = (following.base - line.base) / size
    is_mark = raised < -_RAISED or (raised > _RAISED and is_note_mark(following.text, line.text))
    return Gap.SPACE if is_mark or room > _LETTER_ROOM * size else Gap.NONE


def _between(line: _Line, following: _Line, step: float, ends: Mapping[int, float]) -> Gap:
    """Return what stands between two lines of a page, whose usual distance is ``step``."""
    down = line.base - following.base
    if abs(line.size - following.size) > line.size / 10 or down > 1.4 * step:
        return Gap.BLOCK
    if down < -line.size / 2:
        # A cell is not as high as a column.
        is_column = down < -3 * step or following.text[0].islower()
        return _between_blocks(line, following, ends) if is_column else Gap.BLOCK
    has_room = _has_room(line, following, ends)
    if line.ends_sentence and (has_room or following.left > line.left + line.size / 2):
        return Gap.BLOCK
    return Gap.LINE if has_room and not line.text.endswith(_HYPHENS) else Gap.SOFT_LINE


def _between_blocks(last: _Line, first: _Line, ends: Mapping[int, float]) -> Gap:
    """Return what stands between two pages or columns: a soft break where a sentence goes on."""
    if last.ends_sentence or abs(last.size - first.size) > last.size / 10:
        return Gap.BLOCK
    return Gap.SOFT_LINE if first.text[0].islower() or not _has_room(last, first, ends) else Gap.BLOCK


def _has_room(line: _Line, following: _Line, ends: Mapping[int, float]) -> bool:
    """Tell whether the first word of the following line would have fitted in a line, whose end was thus intended."""
    word = len(following.text.split(maxsplit=1)[0])
    width = (following.right - following.left) / len(following.text)
    return line.right + (word + 1) * width < ends[_column(line)]


def _right_ends(page: _Page) -> dict[int, float]:
    """Return where the longest of the lines that begin at about the same place ends, by ``_column``."""
    longest: defaultdict[int, float] = defaultdict(lambda: -inf)
    for line in page:
        column = _column(line)
        for near in (column - 1, column, column + 1):
            if line.right > longest[near]:
                longest[near] = line.right
    return longest


def _column(line: _Line) -> int:
    return int(line.left // _INDENT)
