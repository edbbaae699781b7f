"""Invisible characters: they stay in a text and in its offsets, and decide nothing about it.

Marks of direction, zero-width spaces and joiners, soft hyphens, byte order marks within a text, variation selectors and
the like come from word processors, web pages and OCR. Networks, lists of terms and names read words without them; so
they do where a script writes with a joiner or an emoji is composed by one, because a label must not depend on it.

So does what breaks a word at the end of a line: its hyphen and the white space. Where the hyphen is part of the word,
as in ``Jean-Paul``, it is read.
"""

import re

INVISIBLE = re.compile(
    # Of Unicode's category Cf all but the thirteen that have a glyph (Prepended_Concatenation_Mark), and of its
    # property Default_Ignorable_Code_Point all.
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """Return a text without its invisible characters."""
    return text if text.isascii() else INVISIBLE.sub("", text)


_HYPHEN = "-\u00ac\u00ad\u2010\u2011"
_END_OF_LINE = r"[^\S\r\n]*(?:\r*\n|\r)[^\S\r\n]*"
_BROKEN = re.compile(rf"[{_HYPHEN}](?<=[^\W\d_][^\W\d_][{_HYPHEN}]){_END_OF_LINE}(?=([^\W\d_]+)([-\u2010\u2011]\w)?)")
_FIRST_HALF = re.compile(r"([-\u2010\u2011])?([^\W\d_]+)\Z")
_LONGEST_HALF = 60
_AT_LINE_ENDS = re.compile(rf"\w+[{_HYPHEN}]{_END_OF_LINE}\w+")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_NO_SECOND_HALF = ("and", "or", "to")  # pre- and post-war


def line_breaks(text: str) -> list[tuple[int, int]]:
    """Return the bounds of what breaks words at the ends of lines, with the hyphens of those that are written without.

    These are the words that go on with a small letter, unless the rest of the text shows that they are composed of two.
    """
    broken = [*_BROKEN.finditer(text)]
    words = set(_WORD.findall(_AT_LINE_ENDS.sub(" ", text).lower())) if broken else set()
    breaks = []
    for found in broken:
        start, end = found.span()
        half = _FIRST_HALF.search(text, max(0, start - _LONGEST_HALF), start)
        if half is None or found[1] in _NO_SECOND_HALF:
            continue
        first, second = half[2].lower(), found[1].lower()
        goes_on = found[1][0].islower()
        both = first in words and second in words and first + second not in words
        is_composed = both or half[1] or found[2] or f"{first}-{second}" in words
        if text[start] == "\u00ad" or (goes_on and not is_composed):
            breaks.append((start, end))
        elif goes_on or half[1] or half[2][0].isupper():
            breaks.append((start + 1, end))
    return breaks


def without_line_breaks(text: str) -> str:
    """Return a text in which no word is broken at the end of a line."""
    breaks = line_breaks(text)
    if not breaks:
        return text
    bounds = [0, *(bound for found in breaks for bound in found), len(text)]
    return "".join(text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True))
