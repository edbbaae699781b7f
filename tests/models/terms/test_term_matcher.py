"""Lists of terms: which words match, which match counts, and agreement with spaCy's EntityRuler."""

import random
import string
import time
from typing import Any

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc

from concord.models.data.sentence import Sentence
from concord.models.labels.spans import Span
from concord.models.terms.term_matcher import TermMatcher, read_term
from concord.models.terms.token_pattern import PatternError

NLP = spacy.blank("en")
RULER: Any = NLP.add_pipe("entity_ruler")


def matcher(*lines: dict[str, Any]) -> TermMatcher:
    return TermMatcher([read_term(line) for line in lines])


def text_term(pattern: str, label: str = "DRUG", **more: str) -> dict[str, Any]:
    return {"label": label, "pattern": pattern, **more}


def found(terms: TermMatcher, words: str) -> list[tuple[str, str]]:
    sentence = Sentence(words=tuple(words.split()))
    return [(" ".join(sentence.words[span.start : span.end]), span.label) for span in terms.spans(sentence)]


@pytest.mark.parametrize("hidden", ["\u00ad", "\u200b", "\u200c", "\u202a", "\u2060", "\ufeff"])
def test_invisible_characters_hide_no_match(hidden: str) -> None:
    plain, marked = "vitamin c and Aspirin 5 mg", f"vita{hidden}min {hidden}c and Aspirin{hidden} 5{hidden} m{hidden}g"
    for mark in ("", hidden):
        patterns = [{"LOWER": f"asp{mark}irin"}, {"IS_DIGIT": True}, {"TEXT": {"IN": [f"mg{mark}"]}}]
        terms = matcher(text_term(f"vitamin{mark} c"), {"label": "DOSE", "pattern": patterns})
        assert found(terms, marked) == found(terms, plain) == [("vitamin c", "DRUG"), ("Aspirin 5 mg", "DOSE")]


def test_a_text_matches_whole_words_in_its_case() -> None:
    terms = matcher(text_term("aspirin"), text_term("Vitamin C"))
    assert found(terms, "aspirin and Vitamin C , not Aspirin , aspirins or Vitamin Cx") == [
        ("aspirin", "DRUG"),
        ("Vitamin C", "DRUG"),
    ]


def test_a_text_ignores_case_where_its_line_says_so() -> None:
    terms = matcher(text_term("aspirin", phrase_matcher_attr="LOWER"), text_term("Zinc", phrase_matcher_attr="ORTH"))
    assert found(terms, "ASPIRIN Aspirin zinc Zinc") == [("ASPIRIN", "DRUG"), ("Aspirin", "DRUG"), ("Zinc", "DRUG")]


@pytest.mark.parametrize("words", ["beta-blocker", "beta - blocker", "beta- blocker"])
def test_a_text_matches_however_the_words_are_cut(words: str) -> None:
    assert found(matcher(text_term("beta-blocker")), f"a {words} helps") == [(words, "DRUG")]


def test_a_text_does_not_join_words() -> None:
    assert found(matcher(text_term("information"), text_term("New York")), "in formation NewYork") == []


def test_the_longest_match_counts_then_the_first() -> None:
    terms = matcher(text_term("b c", "SHORT"), text_term("a b", "FIRST"), text_term("c d e", "LONG"))
    assert found(terms, "a b c d e") == [("a b", "FIRST"), ("c d e", "LONG")]
    assert found(terms, "a b c d") == [("a b", "FIRST")]


def test_the_first_of_equal_terms_counts() -> None:
    assert found(matcher(text_term("iron", "METAL"), text_term("iron", "DRUG")), "iron") == [("iron", "METAL")]


def test_patterns_and_texts_are_found_together() -> None:
    dose = {"label": "DOSE", "pattern": [{"LIKE_NUM": True}, {"LOWER": {"IN": ["mg", "ml"]}}], "id": "d1"}
    daily = {"label": "DOSE", "pattern": [{"LOWER": "twice"}, {"OP": "?", "LOWER": "every"}, {"LOWER": "day"}]}
    terms = matcher(text_term("aspirin"), dose, daily)
    assert terms.labels == {"DRUG", "DOSE"}
    assert found(terms, "aspirin 100 mg Twice every day , or twice day") == [
        ("aspirin", "DRUG"),
        ("100 mg", "DOSE"),
        ("Twice every day", "DOSE"),
        ("twice day", "DOSE"),
    ]


def test_sentences_are_marked_with_labels() -> None:
    marked = matcher(text_term("vitamin C")).mark(Sentence(words=("take", "vitamin", "C")))
    assert marked.terms == ("O", "B-DRUG", "I-DRUG")
    assert marked.part(1, 3).terms == ("B-DRUG", "I-DRUG")
    plain = Sentence(words=("take", "it"))
    assert matcher(text_term("vitamin C")).mark(plain) is plain


def test_parts_of_speech_are_required_where_a_pattern_reads_them() -> None:
    terms = matcher({"label": "METAL", "pattern": [{"LOWER": "iron", "POS": "NOUN"}]})
    assert terms.spans(Sentence(words=("iron", "iron"), tags=("VERB", "NOUN"))) == (Span(1, 2, "METAL"),)
    with pytest.raises(PatternError, match="needs parts of speech, which a sentence lacks: 'iron'"):
        terms.spans(Sentence(words=("iron",)))


WORDS = ("a", "b", "c", "d")
TOKENS: tuple[dict[str, Any], ...] = (
    {"LOWER": "a"},
    {"TEXT": {"IN": ["b", "c"]}, "OP": "+"},
    {"OP": "?"},
    {"TEXT": "d"},
)


def has_a_word(pattern: list[dict[str, Any]]) -> bool:
    return any(token.get("OP") != "?" for token in pattern)


LINES = st.one_of(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(lambda words: text_term(" ".join(words))),
    st.lists(st.sampled_from(TOKENS), min_size=1, max_size=3)
    .filter(has_a_word)
    .map(lambda pattern: {"label": "DRUG", "pattern": pattern}),
)


@given(st.lists(LINES, min_size=1, max_size=5), st.lists(st.sampled_from(WORDS), max_size=8))
def test_matches_are_those_of_spacys_entity_ruler(lines: list[dict[str, Any]], words: list[str]) -> None:
    RULER.clear()
    RULER.add_patterns(lines)
    expected = [(entity.start, entity.end) for entity in RULER(Doc(NLP.vocab, words=words)).ents]
    spans = matcher(*lines).spans(Sentence(words=tuple(words)))
    assert [(span.start, span.end) for span in spans] == expected


@pytest.mark.slow
def test_a_long_list_is_fast() -> None:
    chooser = random.Random(1)
    words = ["".join(chooser.choices(string.ascii_lowercase, k=chooser.randint(2, 9))) for _ in range(30_000)]
    lines = [text_term(" ".join(chooser.choices(words, k=chooser.randint(1, 4)))) for _ in range(100_000)]
    terms = matcher(*lines)
    sentences = [Sentence(words=tuple(chooser.choices(words, k=20))) for _ in range(5_000)]
    before = time.process_time()
    matches = sum(len(terms.spans(sentence)) for sentence in sentences)
    assert matches > 10_000
    assert time.process_time() - before < 5  # seconds for 100,000 words; usually a tenth


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"label": "DRUG", "pattern": "x", "lable": 1}, "expected the keys label, pattern, .*, got 'lable'"),
        ({"pattern": "x"}, "label: expected an entity type, got None"),
        ({"label": "DRUG", "pattern": " "}, "pattern: expected a text, or a list of one word's description or more"),
        ({"label": "DRUG", "pattern": []}, "pattern: expected a text, or a list"),
        ({"label": "DRUG", "pattern": [{"OP": "?"}]}, "expected a word that must be there"),
        ({"label": "D", "pattern": "x", "phrase_matcher_attr": "LEMMA"}, "expected one of ORTH, TEXT, LOWER beside"),
        ({"label": "D", "pattern": [{}], "phrase_matcher_attr": "LOWER"}, "beside a pattern that is a string"),
    ],
)
def test_other_forms_are_explained(line: dict[str, Any], message: str) -> None:
    with pytest.raises(PatternError, match=message):
        read_term(line)
