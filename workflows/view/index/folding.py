"""Text without case and accents, for searching: SQLite folds the case of ASCII alone, and no accents but Latin ones."""

import re
import unicodedata

INNER_SPACE = "\ue000"
"""Stands for white space inside a word, which would split it."""

# Accents of Latin, Greek and Cyrillic; points of Hebrew; vowel signs and hamza of Arabic. Marks of other scripts stay:
# in Hindi they are the vowels of a word.
_MARKS = re.compile(
    "[\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
)


def fold(text: str) -> str:
    """Return a text without case, accents and width."""
    if text.isascii():
        return text.lower()
    bare = _MARKS.sub("", unicodedata.normalize("NFKD", text.replace("\u2019", "'")))
    return unicodedata.normalize("NFC", bare.casefold())


def fold_word(word: str) -> str:
    """Return a word as the table words of the index has it: still one word, and as it is where SQLite folds it."""
    return word if word.isascii() else re.sub(r"\s", INNER_SPACE, fold(word)) or word
