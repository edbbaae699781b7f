"""PDF files by pypdfium2: the text layer, in the order in which the file has it, with pages as parts.

PDFium returns lines of characters. What is a paragraph, a cell or the mark of a note is seen from the place and size of
the letters; where that leaves it open, a line end stays a line end. Nothing is put into another order.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_double
from itertools import chain, groupby, pairwise
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
_LEAST_PAGE_BYTES = 4
"""Fewer bytes of a file are no page, however well it is compressed."""
_NO_TEXT = "scanned: no text layer; recognize the text first, for example by OCRmyPDF"
_NO_WORD = "no page has a word; if it is scanned or drawn, recognize the text first, for example by OCRmyPDF"
_UNKNOWN = (
    "most of its letters have no meaning but in its own fonts; recognize the text, for example by OCRmyPDF --force-ocr"
)
_FORM = "an XFA form, which only Adobe's programs can fill in and show; print it to a PDF file there"
_FORM_NOTICE = re.compile(r"If this message is not eventually replaced")
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
_LEAST_ROOM, _SURE_ROOM = 1.0, 2.5
"""White space between two cells, in sizes of the font: at the least, and in a line that is spread out."""
_WIDE, _LETTER_AND_ROOM = 0.55, 1.1
"""Sizes of the font: how wide a letter is in a line that surely has cells, and a letter with the room behind it."""
_TIMES_ROOM, _NARROWEST = 3.0, 0.2
"""How many times as wide as the narrowest space of its line it is, and how wide that is at the least."""
_HYPHEN = "\ufffe"
"""What PDFium returns for a hyphen at the end of a line, without a line end."""
_HYPHENS = ("-", "\u00ad", "\u2010")
_LINE = re.compile(f"[^\r\n{_HYPHEN}]+{_HYPHEN}?|{_HYPHEN}")
_SPACES = re.compile(r"\s+")
_LETTERS = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st", 0: None}
_ACCENTS = {
    sign: mark
    for signs, mark in (
        ("`", "\u0300"),
        ("´", "\u0301"),
        ("^ˆ", "\u0302"),
        ("~˜", "\u0303"),
        ("¯ˉ", "\u0304"),
        ("˘", "\u0306"),
        ("˙", "\u0307"),
        ("¨", "\u0308"),
        ("˚", "\u030a"),
        ("˝", "\u030b"),
        ("ˇ", "\u030c"),
        ("¸", "\u0327"),
        ("˛", "\u0328"),
    )
    for sign in signs
}
_ACCENT = re.compile(f"[{re.escape(''.join(_ACCENTS))}\u0300-\u0328]")
_FARTHEST = 20
_UNDOTTED = {"\u0131": "i", "\u0237": "j"}
_CLOSING = "\"'’”»)\\]"
_MARK = re.compile(
    rf"[\d*∗†‡§¶](?:(?<=[^\W\d_].)|(?<=(?:[^\W\d_]|[{_CLOSING}])[.,;:!?{_CLOSING}].)|\d{{,2}}(?=[^\W\d_]{{3}}))"
    r"|[A-ZÀ-Þ][^\W\d_]{2,}(?<=[a-i])(?=[,;*∗†‡\r\n])"
)
"""What may be the mark of a note: a number or sign behind a word or before one, or the last letter of a name."""
_WORD = re.compile(r"[^\W\d_]{2}")
_SPREAD = re.compile(r"(?<!\S)(?:[^\W\d_] ){4,}[^\W\d_](?!\S)")
_SPREAD_WITHIN = re.compile(r" \w \w \w \w ")
_PRIVATE_USE = "\ue000"
_PRIVATE = re.compile("[\ue000-\uf8ff\ufffd]")
_RAISED, _LONGEST_BEFORE = 0.12, 8
"""Sizes of the font from a base line to that of what is raised, and characters that tell what stands before it."""
_BOX, _LIKELY = 1.15, 0.6
_LEAST_SIZE, _SAME_SCALE = 4.0, 0.01
"""How high letters with all their room are, in sizes of the font, and as much less as fonts may have."""
_NUMBER_ROOM, _STOP_ROOM, _STOPS = 0.6, 2.0, ".!?:;…"
"""White space, in sizes of the font, between the number of a line and its text, and between a sentence and a cell."""
_WORDS_APART = 1.6
"""How much wider a space between words is than that between letters that are spread out."""
_MOST_DIGITS, _STEPS, _FEW_WORDS = 4, (5, 10), 3
_LARGE, _MOST_INITIAL = 1.7, 2
_SAME_ROW, _ROW_ROOM, _LETTER_ROOM = 0.45, 2.0, 0.12
"""Sizes of the font: between base lines of one row, between two of its texts, and between two letters of a word."""
_LABEL = re.compile(r"\S|[^\w\s]{1,2}|[(\[§]?\s?(?:\d{1,3}|[^\W\d_]|[ivxIVX]+)(?:\.\d{1,3})*[.)\]:]*")
_DATE = re.compile(r"D:(\d{4})(\d\d)(\d\d)")
_NUMBER = re.compile(r"\d{1,6}")


class _Line(NamedTuple):
    """A line or a cell of one, from its first to its last letter in the text of the page.

    The place of its first letter on the base line, its right end and the size of its font are points, of a page that is
    turned until the line runs from left to right. ``height`` is its base line as a share of the page.
    """

    start: int
    end: int
    text: str
    left: float
    base: float
    right: float
    size: float
    height: float
    turn: int
    row: int

    @property
    def ends_sentence(self) -> bool:
        return self.text.rstrip(_CLOSING).endswith(tuple(_STOPS))


_Page = list[_Line]


class PdfReader(FileReader):
    """Reads the text layer of a file."""

    suffixes = with_codecs(".pdf")
    libraries = ("pypdfium2",)
    text_share = 0.1

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        with _LOCK:
            pages, labels, meta, lost = _read_pages(content, config)
        if not any(pages.values()):
            if len({error.code for error in lost.values()}) == 1:
                raise next(iter(lost.values()))
            raise RecordError("no_text", _NO_WORD)
        if config.join_lines:
            pages, meta["running_lines"] = _without_running_lines(
                {number: _without_line_numbers(page) for number, page in pages.items()}
            )
        builder, last = TextBuilder(config.max_record_bytes), _Page()
        for number, page in pages.items():
            builder.begin_part(PAGE, labels[number])
            lines = _with_labels(_with_initials(page))
            builder.separate(_between_pages(last, lines) if config.join_lines and last and lines else Gap.BLOCK)
            _write_page(builder, lines, join=config.join_lines)
            last = lines
        text, parts = builder.built(join_lines=config.join_lines)
        told = tuple(Lost(number, error.code, str(error)) for number, error in lost.items())
        return Decoded(text, encoding=None, meta=stored_meta(meta), parts=parts, lost=told)


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
        if count == 1 and _FORM_NOTICE.search(" ".join(line.text for line in pages.get(1, ()))):
            raise RecordError("xfa_form", _FORM)
        known = document.get_metadata_dict()
        meta: dict[str, Any] = {name: known.get(key, "") for key, name in _META.items()}
        date = _DATE.match(meta["created"])
        return pages, labels, meta | {"created": "-".join(date.groups()) if date else ""}, lost
    finally:
        document.close()


def _lines_of(page: Any) -> _Page:
    """Return the lines of a page.

    Raises:
        RecordError: for a page that is a picture without text, or whose letters have no meaning.
    """
    import pypdfium2.raw as raw

    try:
        text_page = page.get_textpage()
        try:
            lines = _Letters(raw, page, text_page).lines()
        finally:
            text_page.close()
        if not any(map(_WORD.search, (line.text for line in lines))) and _is_picture(raw, page):
            raise RecordError("no_text_layer", _NO_TEXT)
        return lines
    finally:
        page.close()


class _Letters:
    """The text of a page, and the places of its letters.

    A call of PDFium takes ten times as long as one of Python: only letters about which there is doubt are looked up.
    """

    def __init__(self, raw: Any, page: Any, text_page: Any) -> None:
        self.text: str = text_page.get_text_range()
        self._raw, self._page = raw, text_page.raw
        left, bottom, right, top = self._box = tuple[float, float, float, float](page.get_bbox())
        # The ends of lines that run to the right, upwards and downwards, and where their base lines may be.
        self._limits = (left, right, bottom, top), (bottom, top, -right, -left), (-top, -bottom, left, right)
        self._x, self._y, *_ = self._numbers = [c_double() for _ in range(4)]
        self._places = tuple(map(byref, self._numbers))
        self._place = self._places[:2]
        self._matrix = raw.FS_MATRIX()
        self._get_origin, self._get_box = raw.FPDFText_GetCharOrigin, raw.FPDFText_GetCharBox
        greatest = "" if self.text.isascii() else max(self.text)
        # PDFium counts in UTF-16, and those of its characters that have no text as well.
        self._is_wide = greatest > "\uffff"
        units = len(self.text.encode("utf-16-le")) // 2 if self._is_wide else len(self.text)
        self._is_moved = text_page.count_chars() != units
        self._is_plain = not (self._is_wide or self._is_moved)
        self._is_scaled = True
        self._turn = 0
        self._has_ligatures = greatest >= _PRIVATE_USE or "\0" in self.text
        self._scale = 1.0
        self._scale = self._enlarged() if self.text else 1.0
        if greatest >= _PRIVATE_USE and len(_PRIVATE.findall(self.text)) > len(self.text) / 2:
            raise RecordError("unknown_letters", _UNKNOWN)

    def lines(self) -> _Page:
        """Return the lines of the page that are shown, cell by cell."""
        self._letters = self._corrected()
        whole = [line for row, found in enumerate(_LINE.finditer(self.text)) for line in self._shown(found, row)]
        if not whole:
            return []
        # A line with cells is wide for its letters, and no name goes on with a small letter: those few are looked at.
        usual = min(_WIDE, sorted(map(_width, whole))[3 * (len(whole) - 1) // 4])
        page: _Page = []
        for number, line in enumerate(whole):
            width = _width(line)
            found = _SPACES.finditer(self.text, line.start, line.end) if width >= usual else ()
            spaces = [space.span() for space in found]
            likely = spaces if width > _WIDE else [space for space in spaces if not self.text[space[1]].islower()]
            if any(self._may_part(line, space) for space in likely):
                beside = [*whole[max(number - 1, 0) : number], *whole[number + 1 : number + 2]]
                bounds = [line.start, *chain.from_iterable(self._gaps(line, spaces, beside)), line.end]
                pairs = [*zip(bounds[::2], bounds[1::2], strict=True)] if len(bounds) > 2 else []
                page += (self._line(start, end, line.row, line.size) for start, end in pairs) if pairs else (line,)
            else:
                page.append(line)
        return page

    def _index(self, place: int) -> int:
        if self._is_wide:
            place = len(self.text[:place].encode("utf-16-le")) // 2
        return self._raw.FPDFText_GetCharIndexFromTextIndex(self._page, place) if self._is_moved else place

    def _origin(self, place: int) -> tuple[float, float]:
        """Return where a letter begins on its base line."""
        self._get_origin(self._page, place if self._is_plain else self._index(place), *self._place)
        return self._x.value, self._y.value

    def _bounds(self, place: int) -> list[float]:
        """Return the left, right, lower and upper end of a letter."""
        self._get_box(self._page, self._index(place), *self._places)
        return [number.value for number in self._numbers]

    def _right(self, place: int) -> float:
        self._get_box(self._page, place if self._is_plain else self._index(place), *self._places)
        return self._numbers[1].value

    def _size(self, place: int) -> float:
        index = self._index(place)
        size: float = self._raw.FPDFText_GetFontSize(self._page, index) * self._scale
        if self._is_scaled or size < _LEAST_SIZE:
            self._raw.FPDFText_GetMatrix(self._page, index, byref(self._matrix))
            size *= hypot(self._matrix.c, self._matrix.d)
        return size

    def _enlarged(self) -> float:
        """Return how much larger letters are drawn than their font and its matrix say, as pages within pages are."""
        box, place = self._raw.FS_RECTF(), self._visible(len(self.text) // 2)
        size = self._size(place)
        self._is_scaled = not abs(hypot(self._matrix.c, self._matrix.d) - 1) < _SAME_SCALE
        self._raw.FPDFText_GetLooseCharBox(self._page, self._index(place), byref(box))
        found = max(abs(box.top - box.bottom), abs(box.right - box.left)) / _BOX / size if size else 1.0
        return found if found and not _LIKELY < found < 1 / _LIKELY else 1.0

    def _visible(self, place: int) -> int:
        """Return the place of the next letter before a place that is no white space."""
        while place and self.text[place].isspace():
            place -= 1
        return place

    def _line(self, start: int, end: int, row: int, size: float = 0.0) -> _Line:
        text = "".join(self._letters[start:end])
        text = " ".join(text.split()) if "  " in text or text[:1].isspace() or text[-1:].isspace() else text
        x, y = self._origin(start)
        right = self._right(end - 1)
        middle = self._visible((start + end) // 2)
        size = size or self._size(middle)
        if not self.text[start].isalpha():
            # Perhaps the raised mark of a note.
            y = self._origin(middle)[1]
        if end - start > 2:
            _, _, bottom, top = self._bounds(end - 1) if right - x < 2 * size else (0, 0, y, y)
            is_turned = abs(bottom - y) > max(2 * size, abs(right - x))
            self._turn = (1 if bottom > y else -1) if is_turned else 0
        if self._turn:
            _, _, bottom, top = self._bounds(end - 1)
            x, y, right = (y, -x, top) if self._turn > 0 else (-y, x, -bottom)
        _, _, lowest, highest = self._limits[self._turn]
        height = (y - lowest) / (highest - lowest or 1.0)
        text = _plain(text) if self._has_ligatures else text
        return _Line(start, end, text, x, y, right, size, height, self._turn, row)

    def _shown(self, found: re.Match[str], row: int) -> Iterator[_Line]:
        """Return a line, or what of it is within the page."""
        content = found[0].strip()
        if not content:
            return
        start = found.start() + found[0].index(content[0])
        line = self._line(start, start + len(content), row)
        left, right, lowest, highest = self._limits[line.turn]
        if left <= line.left and line.right <= right and lowest <= line.base <= highest:
            yield line
            return
        for is_shown, run in groupby(range(line.start, line.end), key=self._is_shown):
            inside = [place for place in run if not self.text[place].isspace()]
            if is_shown and inside:
                yield self._line(inside[0], inside[-1] + 1, row)

    def _is_shown(self, place: int) -> bool:
        left, right, bottom, top = self._bounds(place)
        lowest_x, lowest_y, highest_x, highest_y = self._box
        return lowest_x <= (left + right) / 2 <= highest_x and lowest_y <= (bottom + top) / 2 <= highest_y

    def _gaps(self, line: _Line, spaces: Sequence[tuple[int, int]], beside: Sequence[_Line]) -> list[tuple[int, int]]:
        """Return those of the spaces of a line that are between two cells."""
        rooms = [self._room(line, space) for space in spaces]
        least, narrowest = _LEAST_ROOM * line.size, max(min(rooms), _NARROWEST * line.size)
        if narrowest > least:
            # There is no space between words to compare with; a line may be spread out to both margins.
            is_even = max(rooms) - min(rooms) < _NARROWEST * line.size
            is_spread = is_even and (len(rooms) > 1 or any(_is_as_wide(line, one) for one in beside))
            least = _SURE_ROOM * line.size if is_spread else least
        else:
            least = max(least, _TIMES_ROOM * narrowest)
        starts = [
            least if self.text[space - 1] not in _STOPS else max(least, _STOP_ROOM * line.size) for space, _ in spaces
        ]
        if self.text[line.start : spaces[0][0]].isdecimal():
            starts[0] = _NUMBER_ROOM * line.size
        return [space for space, room, start in zip(spaces, rooms, starts, strict=True) if room > start]

    def _may_part(self, line: _Line, space: tuple[int, int]) -> bool:
        """Tell whether two words are perhaps cells: from the beginnings of their letters, which is the fastest way."""
        x, y = self._origin(space[0] - 1)
        following_x, following_y = self._origin(space[1])
        return abs(following_x - x) + abs(following_y - y) > _LETTER_AND_ROOM * line.size

    def _room(self, line: _Line, space: tuple[int, int]) -> float:
        """Return how wide white space within a line is."""
        # PDFium gives the white space that it adds a place at the one or other end of it.
        _, right, bottom, top = self._bounds(space[0] - 1)
        x, y = self._origin(space[1])
        return (x - right, y - top, bottom - y)[line.turn]

    def _corrected(self) -> Sequence[str]:
        """Return the letters of the text, where a place may have several or none, with accents and apart from marks."""
        letters: dict[int, str] = {}
        for found in _MARK.finditer(self.text):
            self._set_apart(letters, found)
        for found in _ACCENT.finditer(self.text):
            self._set_accent(letters, found.start())
        if _SPREAD_WITHIN.search(self.text):
            for found in _SPREAD.finditer(self.text):
                self._close_up(letters, found)
        if not letters:
            return self.text
        whole = list(self.text)
        for place, letter in letters.items():
            whole[place] = letter
        return whole

    def _set_apart(self, letters: dict[int, str], found: re.Match[str]) -> None:
        """Set the mark of a note apart from the word before it, or behind it."""
        text = self.text
        start, end = (found.end() - 1 if found[0].isalpha() else found.start()), found.end()
        if start and not text[start - 1].isspace():
            _, base = self._origin(start - 1)
            least = base + _RAISED * self._size(start - 1)
            end = start
            while end < len(text) and not text[end].isspace() and self._origin(end)[1] > least:
                end += 1
            if end > start and is_note_mark(text[start:end], text[max(start - _LONGEST_BEFORE, 0) : start]):
                after = " " if text[end : end + 1].isalnum() else ""
                letters[start], letters[end - 1] = text[start], text[end - 1]
                letters[start] = " " + letters[start]
                letters[end - 1] += after
        elif _WORD.match(text, end) and self._origin(start)[1] > self._origin(end)[1] + _RAISED * self._size(end):
            letters[end - 1] = text[end - 1] + " "

    def _set_accent(self, letters: dict[int, str], place: int) -> None:
        """Set an accent over or under the letter that it is drawn at: one beside it, or one before it in the file."""
        left, right, *_ = self._bounds(place)
        wide = (right - left) / 4
        first = max(self.text.rfind("\n", 0, place) + 1, place - _FARTHEST)
        for other in (place + 1, place + 2, *range(place - 1, first - 1, -1)):
            if other < len(self.text) and self.text[other].isalpha():
                one, two, *_ = self._bounds(other)
                letter = letters.get(other, self.text[other])
                whole = normalize(
                    "NFC", _UNDOTTED.get(letter, letter) + _ACCENTS.get(self.text[place], self.text[place])
                )
                if one - wide < (left + right) / 2 < two + wide and len(whole) == 1:
                    near = range(min(place, other), max(place, other)) if abs(place - other) <= 2 else ()
                    letters.update(dict.fromkeys((place, *near), ""))
                    letters[other] = whole
                    return

    def _close_up(self, letters: dict[int, str], found: re.Match[str]) -> None:
        """Close up the letters of words that are spread out."""
        places = [place for place in range(*found.span()) if not self.text[place].isspace()]
        rooms = [self._origin(two)[0] - self._bounds(one)[1] for one, two in pairwise(places)]
        if found[0] == " ".join(sorted(found[0].split())):
            return  # letters of an index
        for (one, two), room in zip(pairwise(places), rooms, strict=True):
            is_within = room < _WORDS_APART * median(rooms)
            letters.update(dict.fromkeys(range(one + 1, two), ""))
            letters[one + 1] = "" if is_within else " "


def _is_as_wide(line: _Line, other: _Line) -> bool:
    return abs(other.left - line.left) < _SAME_PLACE and abs(other.right - line.right) < _SAME_PLACE


def _width(line: _Line) -> float:
    """Return how wide a letter is, in sizes of the font."""
    return (line.right - line.left) / (line.size * len(line.text) or 1.0)


def _plain(text: str) -> str:
    return text.replace(_HYPHEN, "-").translate(_LETTERS)


def _is_picture(raw: Any, page: Any) -> bool:
    """Tell whether an image takes up more than half of a page."""
    width, height = page.get_size()
    for item in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=2):
        left, bottom, right, top = item.get_bounds()
        if (right - left) * (top - bottom) > width * height / 2:
            return True
    return False


def _without_line_numbers(page: _Page) -> _Page:
    """Leave out the numbers of lines beside a text: of every fifth line, say, or of nearly all of them."""
    columns: defaultdict[tuple[str, int], _Page] = defaultdict(list)
    for line in page:
        if line.text.isdecimal() and len(line.text) <= _MOST_DIGITS:
            columns["left", round(line.left / _SAME_PLACE)].append(line)
            columns["right", round(line.right / _SAME_PLACE)].append(line)
    for numbers in columns.values():
        numbers.sort(key=lambda line: -line.base)
        if _count_lines(numbers, len(page)) and sum(_is_beside_prose(one, page) for one in numbers) > len(numbers) / 4:
            page = [line for line in page if line not in numbers]
    return page


def _count_lines(numbers: _Page, lines: int) -> bool:
    """Tell whether numbers go on by equal steps, at equal distances; the first may be 1 before 5."""
    steps = [int(two.text) - int(one.text) for one, two in pairwise(numbers)]
    down = [one.base - two.base for one, two in pairwise(numbers[1:])]
    if len(steps) < 2 or len(set(steps[1:])) > 1 or steps[0] not in (steps[1], steps[1] - 1):
        return False
    is_every_fifth = steps[1] in _STEPS and len(steps) > 2 and int(numbers[1].text) % steps[1] == 0
    is_even = max(down) - min(down) < max(down) / 4
    return is_even and (is_every_fifth or (steps[1] == 1 and len(numbers) > lines / 3))


def _is_beside_prose(number: _Line, page: _Page) -> bool:
    return any(abs(one.base - number.base) < _SAME_PLACE and one.text.count(" ") >= _FEW_WORDS for one in page)


def _with_labels(page: _Page) -> _Page:
    """Join the number or bullet of an item with its text."""
    joined: _Page = []
    rows = [-1]
    for line in page:
        if rows[-1] == line.row != rows[-2:][0] and _LABEL.fullmatch(joined[-1].text):
            label = joined.pop()
            line = line._replace(text=f"{label.text} {line.text}", left=label.left)
        joined.append(line)
        rows.append(line.row)
    return joined


def _with_initials(page: _Page) -> _Page:
    """Join a large first letter with the word beside it, wherever in the file it is drawn."""
    joined = list(page)
    for initial in page:
        if len(initial.text) <= _MOST_INITIAL and initial.text[-1].isalpha():
            beside = [line for line in joined if _is_beside(line, initial)]
            if beside:
                line = max(beside, key=lambda line: line.base)
                between = " " if _is_word(initial.text, line.text, page) else ""
                joined[joined.index(line)] = line._replace(text=initial.text + between + line.text)
                joined.remove(initial)
    return joined


def _is_beside(line: _Line, initial: _Line) -> bool:
    is_large = initial.size > _LARGE * line.size
    is_near = -1 < (line.left - initial.right) / line.size < 1.5
    return (
        is_large
        and is_near
        and initial.base + line.size / 5 < line.base < initial.base + initial.size
        and line.text[0].isalpha()
    )


def _is_word(initial: str, following: str, page: _Page) -> bool:
    """Tell whether a first letter is a word of its own: the page has the next word elsewhere, but not both as one."""
    first = following.split(maxsplit=1)[0].lower()
    words = {word for line in page for word in line.text.lower().split()}
    alone = {word for line in page for word in line.text.lower().split()[1:]}
    return initial[-1] in "AIO" and len(first) > 1 and first in alone and initial[-1].lower() + first not in words


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
    heights = sorted({_height(line) for line in page})
    nearest = {*heights[:_EDGE_LINES], *heights[-_EDGE_LINES:]}
    return {
        index for index, line in enumerate(page) if not _EDGE < line.height < 1 - _EDGE and _height(line) in nearest
    }


def _height(line: _Line) -> int:
    return round(line.base / _SAME_PLACE)


def _keys(line: _Line, number: int) -> list[tuple[str, int]]:
    """Return by what a line is the same as one of another page: its text, also with numbers counted from the page."""
    place = _height(line)
    counted = _NUMBER.sub(lambda found: f"\0{int(found[0]) - number}", line.text)
    return [(text, place) for text in dict.fromkeys((line.text, counted))]


def _is_numbered(key: tuple[str, int]) -> bool:
    return "\0" in key[0]


def _write_page(builder: TextBuilder, page: _Page, *, join: bool) -> None:
    steps = [one.base - two.base for one, two in pairwise(page) if one.base > two.base]
    step = min(median(steps), _MOST_LEADING * max(line.size for line in page)) if steps else 0.0
    ends, rows = _right_ends(page), Counter(line.row for line in page)
    for line in page[:1]:
        builder.write_exactly(line.text)
    for line, following in pairwise(page):
        gap = _in_row(line, following)
        if gap is None and (rows[line.row] > 1 or rows[following.row] > 1) and not _goes_on(line, following, rows):
            gap = Gap.BLOCK
        if gap is None:
            gap = _between(line, following, step, ends)
        builder.separate(gap if join or gap in (Gap.NONE, Gap.SPACE) or line.row == following.row else Gap.LINE)
        builder.write_exactly(following.text)


def _in_row(line: _Line, following: _Line) -> Gap | None:
    """Return what stands between two texts on one base line; None if they are on two."""
    size = max(line.size, following.size)
    room = following.left - line.right
    if line.row == following.row:
        return Gap.BLOCK
    if line.turn != following.turn or abs(line.base - following.base) > _SAME_ROW * size or room < -size / 2:
        return None
    if room > _ROW_ROOM * size:
        return Gap.BLOCK
    raised = (following.base - line.base) / size
    is_mark = raised < -_RAISED or (raised > _RAISED and is_note_mark(following.text, line.text))
    return Gap.SPACE if is_mark or room > _LETTER_ROOM * size else Gap.NONE


def _goes_on(line: _Line, following: _Line, rows: Mapping[int, int]) -> bool:
    """Tell whether the last cell of a row may go on in the following line."""
    return rows[following.row] == 1 and abs(line.left - following.left) < line.size


def _between(line: _Line, following: _Line, step: float, ends: Mapping[int, float]) -> Gap:
    """Return what stands between two lines of a page, whose usual distance is ``step``."""
    down = line.base - following.base
    if line.turn != following.turn or abs(line.size - following.size) > line.size / 10 or down > 1.4 * step:
        return Gap.BLOCK
    if down < -line.size / 2:
        # A cell is not as high as a column.
        is_column = down < -3 * step or following.text[0].islower()
        return _between_blocks(line, following, ends) if is_column else Gap.BLOCK
    has_room = _has_room(line, following, ends)
    if line.ends_sentence and (has_room or following.left > line.left + line.size / 2):
        return Gap.BLOCK
    return Gap.LINE if has_room and not line.text.endswith(_HYPHENS) else Gap.SOFT_LINE


def _between_pages(page: _Page, following: _Page) -> Gap:
    return _between_blocks(page[-1], following[0], _right_ends(page))


def _between_blocks(last: _Line, first: _Line, ends: Mapping[int, float]) -> Gap:
    """Return what stands between two pages or columns: a soft break where a sentence goes on."""
    if last.ends_sentence or abs(last.size - first.size) > last.size / 10 or last.turn != first.turn:
        return Gap.BLOCK
    return Gap.SOFT_LINE if first.text[0].islower() or not _has_room(last, first, ends) else Gap.BLOCK


def _has_room(line: _Line, following: _Line, ends: Mapping[int, float]) -> bool:
    """Tell whether the first word of the following line would have fitted in a line, whose end was thus intended."""
    word = len(following.text.split(maxsplit=1)[0])
    width = (following.right - following.left) / max(len(following.text), 1)
    column = _column(line)
    longest = max(ends[column], ends.get(column - 1, -inf), ends.get(column + 1, -inf))
    return line.right + (word + 1) * width < longest


def _right_ends(page: _Page) -> dict[int, float]:
    """Return where the longest of the lines that begin at about the same place ends, by ``_column``."""
    longest: dict[int, float] = {}
    for line in page:
        column = _column(line)
        if line.right > longest.get(column, -inf):
            longest[column] = line.right
    return longest


def _column(line: _Line) -> int:
    return int(line.left // _INDENT)
