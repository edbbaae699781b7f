"""The model of text that all formats share: blocks, their lines, and what is written within a line.

A block (a paragraph, heading, cell, item, caption) ends a sentence, so that no name runs from one into the next. A line
ends where the file says so, or where the layout broke it, and a word with it. White space counts as on a page.
"""

import re
from bisect import bisect_right
from enum import IntEnum
from itertools import accumulate

from concord.models.data.sentence import HYPHENS, line_breaks, without
from concord.pipeline.documents import Part

_SPACES = re.compile(r"[ \t\r\n\f\v]{2,}|[\t\r\n\f\v]")
"""White space that is not one space already."""
_SOFT = re.compile(r"(?<![\n\r])\n(?![\n\r])")
_SIGN = r"*\u2217\u2020\u2021\u00a7\u00b6"
_NOTE_MARK = re.compile(
    rf"[\[(]?(?:\d{{1,3}}|[a-z]|[{_SIGN}]+)(?:\s*[,;\u2013-]\s*(?:\d{{1,3}}|[a-z{_SIGN}]))*[{_SIGN}]*[\])]?,?"
    r"|\[[^\[\]]*\]"
)
_BEFORE_MARK = re.compile(
    r"(?:[^\W\d_]{4}|(?<![^\W\d_])[^\W\d_a-z][^\W\d_A-Z]{1,2}|[.,;:!?)\]\"'\u2019\u201d\u00bb])\Z"
)
"""What a raised number that stands behind it is no part of: a unit or an ordinal is shorter, a name has a capital."""
_ROMAN = re.compile(r"(?:\b|\A)[IVXLC]+\Z")


class Gap(IntEnum):
    """What stands between two texts; of several the greatest counts."""

    NONE = 0
    SPACE = 1
    TAB = 2
    SOFT_LINE = 3
    """The end of a line that only the layout broke, perhaps within a word."""
    LINE = 4
    BLOCK = 5


_SPACE = Gap.SPACE
_WRITTEN = ("", " ", "\t", "\n", "\r", "\n\n")


class TextBuilder:
    """A text that grows. A gap is written before what follows it, so that none begins or ends the text."""

    def __init__(self) -> None:
        self.length = 0
        self.parts: list[Part] = []
        self._pieces: list[str] = []
        self._gap = Gap.NONE
        self._is_glued = False
        # Parts that have begun, until there is something in them.
        self._waiting: list[tuple[str, str]] = []

    def separate(self, gap: Gap = Gap.BLOCK) -> None:
        """Leave at least this gap before what follows."""
        if gap > self._gap and (gap > _SPACE or not self._is_glued):
            self._gap = gap
        if gap > Gap.SOFT_LINE:
            self._is_glued = False

    def glue(self) -> None:
        """Join what follows with what stands before it, whatever white space or line end is between them."""
        if self._gap < Gap.BLOCK:
            self._gap, self._is_glued = Gap.NONE, True

    def go_on(self) -> None:
        """Join what follows with the word before it; behind a hyphen, as a word that is broken at the end of a line."""
        self.glue()
        if self.ends_in_hyphen():
            self.separate(Gap.SOFT_LINE)

    def write(self, text: str) -> None:
        """Write a text whose white space counts as one space each, also at its ends."""
        words = _SPACES.sub(" ", text)
        bare = words.strip(" ")
        if words[:1] == " ":
            self.separate(_SPACE)
        if bare:
            self.write_exactly(bare)
            if words[-1] == " ":
                self._gap = _SPACE

    def write_exactly(self, text: str) -> None:
        """Write a text as it is, without line ends."""
        if not text:
            return
        gap = _WRITTEN[self._gap] if self.length else ""
        self._pieces += (gap, text)
        if self._waiting:
            self._begin_parts(self.length + len(gap))
        self.length += len(gap) + len(text)
        self._gap, self._is_glued = Gap.NONE, False

    def write_raised(self, text: str) -> None:
        """Write what is raised above its line: the mark of a note is a word of its own, an exponent is not."""
        before = "" if self._gap else "".join(self._pieces[-8:])[-8:]
        if is_note_mark(text.strip(), before):
            self.separate(_SPACE)
        self.write(text)

    def write_builder(self, other: "TextBuilder") -> None:
        """Write another text, with its parts, as blocks of its own."""
        if other.length:
            self.separate()
            self.write_exactly(str(other))
            start = self.length - other.length
            self.parts += (part._replace(start=start + part.start) for part in other.parts)
            self.separate()
        self._waiting += other._waiting

    def begin_part(self, kind: str, label: str) -> None:
        """Begin a page, chapter or the like with what follows."""
        self._waiting.append((kind, label))

    def ends_in_hyphen(self) -> bool:
        """Tell whether a word may be broken here; a gap may follow."""
        return bool(self._pieces) and self._pieces[-1].endswith(tuple(HYPHENS))

    def built(self, *, join_lines: bool) -> tuple[str, tuple[Part, ...]]:
        """Return the text and its parts.

        Args:
            join_lines: join the lines that only the layout broke, and the words that were broken there.
        """
        self._begin_parts(self.length)
        text, parts = str(self), self.parts
        if join_lines:
            breaks = line_breaks(text)
            text = _SOFT.sub(" ", without(breaks, text))
            ends = [end for _, end in breaks]
            gone = [*accumulate((end - start for start, end in breaks), initial=0)]
            parts = [part._replace(start=part.start - gone[bisect_right(ends, part.start)]) for part in parts]
        return text.replace("\r", "\n"), tuple(parts)

    def _begin_parts(self, start: int) -> None:
        self.parts += (Part(kind, label, start) for kind, label in self._waiting)
        self._waiting.clear()

    def __str__(self) -> str:
        return "".join(self._pieces)


def is_note_mark(raised: str, before: str) -> bool:
    """Tell whether what is raised behind a text is the mark of a note or of an address, not an exponent or ordinal."""
    is_ordinal = raised.isalpha() and _ROMAN.search(before)
    return bool(_NOTE_MARK.fullmatch(raised) and _BEFORE_MARK.search(before) and not is_ordinal)
