"""Paragraphs, windows, tokens, pieces of long sentences and the check of offsets."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.data.sentence import visible, without_line_breaks
from concord.pipeline.parsing.tokens import (
    BOTH_END,
    MULTI_WORD_END,
    SENTENCE_END,
    TOKEN_END,
    SyntacticWord,
    Token,
    TokenSpan,
    cut_sentence,
    find_token_fault,
    make_token,
    parser_view,
    sentences_of,
    split_paragraphs,
    window_cut,
)

texts = st.text(st.sampled_from("ab. \n\t\r\u00a0\u2028\u0301\x00\x97\u200b\u00ad\U0001f600"), max_size=40)


def plain_token(start: int, form: str) -> Token:
    return Token(start, start + len(form), (SyntacticWord(start, start + len(form), form),))


def spaced_tokens(forms: list[str]) -> list[Token]:
    tokens: list[Token] = []
    place = 0
    for form in forms:
        tokens.append(plain_token(place, form))
        place += len(form) + 1
    return tokens


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("a\x97b \x93c\x94 it\x92s", "a\u2014b \u201cc\u201d it\u2019s"),
        ("\x81\x8d\x8f\x90\x9d", "\ufffd" * 5),
        ("a\x85b\u00a0c", "a\x85b\u00a0c"),
    ],
)
def test_parser_view_reads_c1_controls_as_windows_1252(text: str, view: str) -> None:
    assert parser_view(text) == view


@given(texts)
def test_parser_view_keeps_all_that_is_visible(text: str) -> None:
    view, shown = parser_view(text), visible(without_line_breaks(text))
    assert len(view) == len(shown)
    assert [character.isspace() for character in view] == [character.isspace() for character in shown]


def test_split_paragraphs_cuts_at_blank_lines_and_collapses_white_space() -> None:
    found = list(split_paragraphs("One  two\r\nthree.\n \t\nFour.\n\n\n"))
    assert [paragraph.characters for paragraph in found] == ["One two three.", "Four."]
    assert list(found[0].offsets) == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15]
    assert list(found[1].offsets) == [20, 21, 22, 23, 24]


@given(texts)
def test_paragraphs_hold_every_visible_code_point_at_its_offset(text: str) -> None:
    held: dict[int, str] = {}
    for paragraph in split_paragraphs(text):
        assert len(paragraph.characters) == len(paragraph.offsets)
        held.update(zip(paragraph.offsets, paragraph.characters, strict=True))
    assert {place: c for place, c in held.items() if c != " "} == {
        place: c for place, c in enumerate(text) if not c.isspace()
    }


@pytest.mark.parametrize(
    ("characters", "labels", "start", "safe", "cut"),
    [
        pytest.param("x" * 30, [0, SENTENCE_END, 0, BOTH_END, 0, SENTENCE_END, 0], 10, 5, 14, id="safe sentence"),
        pytest.param("abc def ghi jkl", [0] * 15, 0, 10, 7, id="white space"),
        pytest.param(" " + "x" * 40, [0] * 20, 0, 10, 10, id="neither"),
    ],
)
def test_window_cut_is_at_the_best_place(characters: str, labels: list[int], start: int, safe: int, cut: int) -> None:
    assert window_cut(characters, np.array(labels), start=start, safe=safe) == cut


@pytest.mark.parametrize(
    ("text", "ends", "expected"),
    [
        (
            "I don't. Go on",
            {0: TOKEN_END, 6: MULTI_WORD_END, 7: SENTENCE_END, 10: TOKEN_END, 13: SENTENCE_END},
            [
                [(0, 1, "I", False), (2, 7, "don't", True), (7, 8, ".", False)],
                [(9, 11, "Go", False), (12, 14, "on", False)],
            ],
        ),
        (
            "a 10 \n 000 b",
            {0: TOKEN_END, 7: TOKEN_END, 8: TOKEN_END, 9: SENTENCE_END},
            [[(0, 1, "a", False), (2, 10, "10 000", False), (11, 12, "b", False)]],
        ),
    ],
)
def test_sentences_of_reads_labels(text: str, ends: dict[int, int], expected: list[list[TokenSpan]]) -> None:
    [paragraph] = split_paragraphs(text)
    labels = np.array([ends.get(place, 0) for place in range(len(paragraph.characters))])
    assert list(sentences_of(paragraph, labels)) == expected


@given(texts, st.randoms(use_true_random=False))
def test_tokens_cover_every_visible_code_point_whatever_the_labels(text: str, random: Random) -> None:
    tokens: list[Token] = []
    for paragraph in split_paragraphs(text):
        labels = np.array([random.choice((0, 0, 1, 2, 3, 4)) for _ in paragraph.characters])
        labels[-1] = SENTENCE_END
        for sentence in sentences_of(paragraph, labels):
            assert sentence
            tokens.extend(make_token(text, span.start, span.end, [span.text]) for span in sentence)
    assert find_token_fault(text, tokens) is None


def test_make_token_places_words_that_spell_the_token_and_no_others() -> None:
    token = make_token("we can 't", 3, 9, ["ca", "n", "'t"])
    assert token.words == (SyntacticWord(3, 5, "ca"), SyntacticWord(5, 6, "n"), SyntacticWord(7, 9, "'t"))
    for forms in (["de", "el"], ["d", "e"], ["del", "l"]):
        token = make_token("ver del mar", 4, 7, forms)
        assert token == Token(4, 7, tuple(SyntacticWord(4, 7, form) for form in forms))


def test_cut_sentence_cuts_at_punctuation_of_the_second_half_and_never_within_a_token() -> None:
    tokens = spaced_tokens(["a"] * 10)
    assert cut_sentence(tokens, cap=10) == [tokens]
    tokens = spaced_tokens(list("a,aaaa,aaaaaaaaaaa"))
    assert [len(piece) for piece in cut_sentence(tokens, cap=10)] == [7, 10, 1]
    tokens = [make_token("do" * 40, 2 * i, 2 * i + 2, ["d", "o"]) for i in range(40)]
    assert [len(piece) for piece in cut_sentence(tokens, cap=11)] == [5] * 8


@pytest.mark.slow
@given(st.lists(st.sampled_from(["a", ",", "b.", "??"]), min_size=1, max_size=60), st.integers(1, 12))
def test_pieces_respect_the_cap_and_cover_the_sentence(forms: list[str], cap: int) -> None:
    tokens = spaced_tokens(forms)
    pieces = cut_sentence(tokens, cap=cap)
    assert [token for piece in pieces for token in piece] == tokens
    assert all(1 <= len(piece) <= cap for piece in pieces)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([plain_token(0, "ab"), plain_token(3, "cd")], None),
        ([plain_token(0, "ab")], "code point U+0063 at 3 is in no token"),
        ([plain_token(3, "cd")], "code point U+0061 at 0 is in no token"),
        ([], "code point U+0061 at 0 is in no token"),
        ([plain_token(3, "cd"), plain_token(0, "ab")], "in no token"),
        ([plain_token(0, "ab"), plain_token(1, "b"), plain_token(3, "cd")], "does not follow"),
        ([plain_token(0, "ab"), Token(3, 9, (SyntacticWord(3, 9, "cd"),))], "does not follow"),
        ([plain_token(0, "ab"), plain_token(3, "xy")], "expected 'xy' at 3..5, got 'cd'"),
    ],
)
def test_find_token_fault_reports_the_position(tokens: list[Token], message: str | None) -> None:
    fault = find_token_fault("ab cd\n", tokens)
    assert (fault is None) == (message is None)
    assert (message or "") in (fault or "")
