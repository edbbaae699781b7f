"""Which characters are invisible, and what is left of words without them."""

import sys
import unicodedata

import pytest

from concord.models.data.sentence import Sentence
from concord.models.data.visible import INVISIBLE, visible, without_line_breaks

WITH_A_GLYPH = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Characters of the category Cf that stand before or around digits and are drawn."""
OTHERS = {0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)}
OTHERS |= {*range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000)}
"""Characters of other categories, or of none yet, that Unicode calls default ignorable."""
LATER = {*range(0x13439, 0x13440)}
"""Format characters of hieroglyphs that Unicode 15 added, which an earlier Python does not know."""


def test_invisible_are_the_format_characters_and_all_that_may_be_ignored() -> None:
    found = {code for code in range(sys.maxunicode + 1) if INVISIBLE.fullmatch(chr(code))}
    formats = {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Cf"}
    assert found == (formats - WITH_A_GLYPH) | OTHERS | LATER


@pytest.mark.parametrize("text", ["", "plain", "Çe\u0301 \u00a0\u2028\t", "\u0600\u06dd", "\x00\x07", "\U0001f469"])
def test_other_characters_stay(text: str) -> None:
    assert visible(text) == text


def test_words_of_a_sentence_are_visible_and_none_is_lost() -> None:
    sentence = Sentence(words=("Kel\u200bler", "\u200d", "\ufeff\u00ad", "ok"), labels=("O",) * 4)
    assert sentence.words == ("Keller", "\u200b", "\u200b", "ok")
    assert sentence.part(1, 3).words == ("\u200b", "\u200b")


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("in Wash-\nington", "in Washington"),
        ("Zü-  \r\n\trich", "Zürich"),
        ("Con-\nstan-\ntinople", "Constantinople"),
        ("Wash\u00ad\nIngton", "WashIngton"),
        ("Jean-\nPaul", "Jean-Paul"),
        ("Stratford-upon-\nAvon", "Stratford-upon-Avon"),
        ("mother-in-\nlaw", "mother-in-law"),
        ("a ferry-\nhouse, the ferry-house", "a ferry-house, the ferry-house"),
        ("to-\nnight, to the night", "to-night, to the night"),
        ("with-\nout, with and out and without", "without, with and out and without"),
    ],
)
def test_words_are_whole_without_line_ends(text: str, whole: str) -> None:
    assert without_line_breaks(text) == whole


@pytest.mark.parametrize(
    "text",
    [
        "pre- and",
        "pre-\nand post-war",
        "he said-\nThen",
        "10-\n20",
        "x-\nray",
        "a --\nb",
        "end-\n\nnext",
        "Wash -\nington",
    ],
)
def test_other_hyphens_and_line_ends_stay(text: str) -> None:
    assert without_line_breaks(text) == text
