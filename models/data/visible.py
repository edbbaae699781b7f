"""Invisible characters: they stay in a text and in its offsets, and decide nothing about it.

Marks of direction, zero-width spaces and joiners, soft hyphens, byte order marks within a text, variation selectors and
the like come from word processors, web pages and OCR. Networks, lists of terms and names read words without them; so
they do where a script writes with a joiner or an emoji is composed by one, because a label must not depend on it.
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
