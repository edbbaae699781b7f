"""Token patterns: their conditions and operators, and what is wrong with one."""

from itertools import product
from typing import Any

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.matcher import Matcher
from spacy.tokens import Doc

from concord.models.terms.token_pattern import PatternError, match_ends, read_token_pattern, word_shape

NLP = spacy.blank("en")
WORDS = ("a", "A", "b", "12", "3", "Ab", "AB", "x-1", ",", "été")
CONDITIONS: tuple[dict[str, Any], ...] = (
    {"TEXT": "a"},
    {"ORTH": {"IN": ["a", "b"]}},
    {"LOWER": {"NOT_IN": ["a"]}},
    {"LOWER": {"REGEX": "^[ab]"}},
    {"LOWER": "a", "IS_TITLE": True},
    {"SHAPE": "Xx"},
    {"IS_DIGIT": True},
    {"IS_ALPHA": False},
    {"IS_ASCII": True},
    {"IS_LOWER": True},
    {"IS_UPPER": True},
    {"IS_TITLE": True},
    {"IS_PUNCT": True},
    {},
)
REPEATED = tuple({**condition, "OP": operator} for condition, operator in product(CONDITIONS, ("?", "+", "*")))
NEGATED = tuple({**condition, "OP": "!"} for condition in CONDITIONS if condition)


def spacy_matches(pattern: list[dict[str, Any]], words: list[str]) -> set[tuple[int, int]]:
    matcher = Matcher(NLP.vocab)
    matcher.add("X", [pattern])
    return {(start, end) for _, start, end in matcher(Doc(NLP.vocab, words=words)) if end > start}


def own_matches(pattern: list[dict[str, Any]], words: list[str]) -> set[tuple[int, int]]:
    tokens = [read_token_pattern(values) for values in pattern]
    return {(start, end) for start in range(len(words)) for end in match_ends(tokens, words, None, start)}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_accept_the_words_that_spacy_accepts(condition: dict[str, Any]) -> None:
    for word in WORDS:
        assert own_matches([condition], [word]) == spacy_matches([condition], [word]), (condition, word)


@given(
    st.lists(st.sampled_from((*CONDITIONS, *REPEATED)), min_size=1, max_size=4),
    st.sampled_from((*CONDITIONS, *NEGATED)),
    st.lists(st.sampled_from(WORDS), max_size=6),
)
def test_sequences_match_where_spacy_finds_them(
    before: list[dict[str, Any]], last: dict[str, Any], words: list[str]
) -> None:
    pattern = [*before, last]
    assert own_matches(pattern, words) == spacy_matches(pattern, words)


def test_parts_of_speech_are_read_where_there_are_any() -> None:
    pattern = [read_token_pattern({"POS": {"IN": ["NOUN", "PROPN"]}, "IS_TITLE": True})]
    assert match_ends(pattern, ["Iron"], ["NOUN"], 0) == [1]
    assert match_ends(pattern, ["Iron"], ["VERB"], 0) == match_ends(pattern, ["iron"], ["NOUN"], 0) == []


@pytest.mark.parametrize(
    ("word", "like"), [("12", True), ("1,000.5", True), ("-3/4", True), ("ten", False), ("3a", False), (",", False)]
)
def test_like_num_takes_numbers_in_digits(word: str, like: bool) -> None:
    assert bool(own_matches([{"LIKE_NUM": True}], [word])) is like


def test_shape_is_that_of_spacy() -> None:
    for word in ("Apple", "C3PO", "aaaaaaaa", "1234567", "McDonald's", "ÉTÉ", "-", "a1b2"):
        assert word_shape(word) == NLP.vocab[word].shape_


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("mg", "expected an object for each word, got 'mg'"),
        ({"LEMMA": "be"}, "expected OP or one of TEXT, ORTH, LOWER, SHAPE, POS, IS_ALPHA.*, got 'LEMMA'"),
        ({"OP": "{2}"}, r"OP: expected one of \? \+ \* !, got '\{2\}'"),
        ({"IS_DIGIT": 1}, "IS_DIGIT: expected true or false, got 1"),
        ({"LOWER": 3}, "LOWER: expected a string, or an object such as"),
        ({"LOWER": {"IN": "mg"}}, "LOWER: expected IN or NOT_IN with a list of strings, or REGEX with a string, got"),
        ({"TEXT": {"REGEX": "("}}, r"TEXT: expected a regular expression, got '\('"),
    ],
)
def test_other_forms_are_explained(values: object, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        read_token_pattern(values)
