"""Lists of terms: which words match, which match counts, and what it changes in the labels of a tagger."""

import random
import string
import time
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import pytest
import spacy
import torch
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc

from concord.models.data.outputs import Draft, Prediction, PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.labels import Span, encode_spans
from concord.models.terms import (
    Contradiction,
    Term,
    TermMatcher,
    find_contradictions,
    leave_matches_to_stage_two,
    overrule_unsure,
)

Build = Callable[..., Any]
Documents = list[list[Sentence]]
Draw = Callable[..., Documents]

NLP = spacy.blank("en")
RULER: Any = NLP.add_pipe("entity_ruler")


def matcher(*lines: dict[str, Any]) -> TermMatcher:
    return TermMatcher([Term.from_mapping(line) for line in lines])


def text_term(pattern: str, label: str = "DRUG", **more: str) -> dict[str, Any]:
    return {"label": label, "pattern": pattern, **more}


OVERLAPPING = [text_term("b c", "SHORT"), text_term("a b", "FIRST"), text_term("c d e", "LONG")]


def found(terms: TermMatcher, words: str) -> list[tuple[str, str]]:
    sentence = Sentence(words=tuple(words.split()))
    return [(" ".join(sentence.words[span.start : span.end]), span.label) for span in terms.spans(sentence)]


@pytest.mark.parametrize("hidden", ["\u00ad", "\u200b", "\u200c", "\u202a", "\u2060", "\ufeff"])
def test_invisible_characters_hide_no_match(hidden: str) -> None:
    plain, marked = "vitamin c and Aspirin 5 mg", f"vita{hidden}min {hidden}c and Aspirin{hidden} 5{hidden} m{hidden}g"
    for mark in ("", hidden):
        dose = text_term(f"asp{mark}irin 5 mg{mark}", f"{mark}DOSE", phrase_matcher_attr="LOWER")
        terms = matcher(text_term(f"vitamin{mark} c"), dose)
        assert found(terms, marked) == found(terms, plain) == [("vitamin c", "DRUG"), ("Aspirin 5 mg", "DOSE")]


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("phrase", ["Åsa Lindström", "sécurité", "İstanbul", "Hà Nội", "한국"])
@pytest.mark.parametrize(("of_list", "of_text"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD"), ("NFC", "NFC")])
def test_a_text_matches_in_either_form_of_unicode(
    phrase: str, of_list: Literal["NFC", "NFD"], of_text: Literal["NFC", "NFD"], fold: bool
) -> None:
    attributes = {"phrase_matcher_attr": "LOWER"} if fold else {}
    terms = matcher(text_term(unicodedata.normalize(of_list, phrase), **attributes))
    words = unicodedata.normalize(of_text, phrase.upper() if fold and phrase[0] != "İ" else phrase)
    assert found(terms, f"in {words} now") == [(words, "DRUG")]
    assert found(terms, f"in {words}x now") == []


@pytest.mark.parametrize(
    ("lines", "words", "matches"),
    [
        (
            [text_term("aspirin"), text_term("Vitamin C")],
            "aspirin and Vitamin C , not Aspirin , aspirins or Vitamin Cx",
            [("aspirin", "DRUG"), ("Vitamin C", "DRUG")],
        ),
        (
            [text_term("aspirin", phrase_matcher_attr="LOWER"), text_term("Zinc", phrase_matcher_attr="ORTH")],
            "ASPIRIN Aspirin zinc Zinc",
            [("ASPIRIN", "DRUG"), ("Aspirin", "DRUG"), ("Zinc", "DRUG")],
        ),
        ([text_term("information"), text_term("New York")], "in formation NewYork", []),
        (OVERLAPPING, "a b c d e", [("a b", "FIRST"), ("c d e", "LONG")]),
        (OVERLAPPING, "a b c d", [("a b", "FIRST")]),
        ([text_term("iron", "METAL"), text_term("iron", "DRUG")], "iron", [("iron", "METAL")]),
    ],
    ids=[
        "whole words in their case",
        "case ignored",
        "no words joined",
        "longest",
        "then first",
        "first of equal ones",
    ],
)
def test_a_text_matches(lines: list[dict[str, Any]], words: str, matches: list[tuple[str, str]]) -> None:
    assert found(matcher(*lines), words) == matches


@pytest.mark.parametrize("words", ["beta-blocker", "beta - blocker", "beta- blocker"])
def test_a_text_matches_however_the_words_are_cut(words: str) -> None:
    assert found(matcher(text_term("beta-blocker")), f"a {words} helps") == [(words, "DRUG")]


def test_sentences_are_marked_with_labels() -> None:
    marked = matcher(text_term("vitamin C")).mark(Sentence(words=("take", "vitamin", "C")))
    assert marked.terms == ("O", "B-DRUG", "I-DRUG")
    assert marked.part(1, 3).terms == ("B-DRUG", "I-DRUG")
    plain = Sentence(words=("take", "it"))
    assert matcher(text_term("vitamin C")).mark(plain) is plain


WORDS = ("a", "b", "B", "c", "d")
LINES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(lambda words: text_term(" ".join(words)))


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
        ({"label": "DRUG", "pattern": "x", "lable": 1}, "lable: unknown key; did you mean 'label'"),
        ({"pattern": "x"}, "label: expected a value, got none"),
        ({"label": "DRUG", "pattern": " "}, "pattern: expected a text, got ' '"),
        ({"label": "DRUG", "pattern": "\u200b"}, "pattern: expected a text, got"),
        ({"label": "DRUG", "pattern": [{"LOWER": "mg"}]}, "pattern: input should be a valid string, got .*LOWER"),
        ({"label": "\u200b", "pattern": "x"}, "label: expected a text, got"),
        ({"label": "D", "pattern": "x", "phrase_matcher_attr": "LEMMA"}, "'ORTH', 'TEXT' or 'LOWER', got 'LEMMA'"),
    ],
)
def test_other_forms_are_explained(line: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Term.from_mapping(line)


TWO_STAGES = ("uanet", "doc_uanet")
TAGGERS = ("bilstm_softmax", "bilstm_crf", *TWO_STAGES)


def with_terms(documents: Documents, spans: dict[tuple[int, int], tuple[Span, ...]]) -> Documents:
    """Mark matches in the sentences of documents, by the numbers of document and sentence."""
    return [
        [
            replace(sentence, terms=encode_spans(spans[number, place], len(sentence.words), "BIO"))
            if spans.get((number, place))
            else sentence
            for place, sentence in enumerate(document)
        ]
        for number, document in enumerate(documents)
    ]


def each(predictions: list[list[Prediction]]) -> dict[tuple[int, int], Prediction]:
    return {(number, place): found for number, row in enumerate(predictions) for place, found in enumerate(row)}


def contradicting(tagger: Any, documents: Documents) -> Documents:
    """Mark the first word of every other sentence as a location, where the tagger says otherwise."""
    found = each(tagger.predict_documents(documents, PredictOptions(threshold=99.0)))
    match = Span(0, 1, "LOC")
    return with_terms(
        documents, {key: (match,) for number, key in enumerate(found) if number % 2 and match not in found[key].spans}
    )


@pytest.mark.parametrize("name", ["bilstm_crf", *TWO_STAGES])
def test_matches_that_the_tagger_agrees_with_change_nothing(name: str, build: Build, random_documents: Draw) -> None:
    tagger, documents = build(name), random_documents(0, documents=4)
    plain = tagger.predict_documents(documents)
    drafted = tagger.predict_documents(documents, PredictOptions(threshold=99.0))
    agreed = {key: found.spans for key, found in each(drafted).items()}
    assert any(agreed.values())
    assert tagger.predict_documents(with_terms(documents, agreed), PredictOptions(threshold=99.0)) == drafted
    if name not in TWO_STAGES:
        assert drafted == plain


@pytest.mark.parametrize("name", TWO_STAGES)
def test_stage_two_decides_the_words_of_a_contradicted_match(name: str, build: Build, random_documents: Draw) -> None:
    tagger, documents = build(name), random_documents(0, documents=4)
    marked = contradicting(tagger, documents)
    plain, found = (
        each(tagger.predict_documents(documents, PredictOptions(threshold=99.0))),
        each(tagger.predict_documents(marked, PredictOptions(threshold=99.0))),
    )
    for (number, place), prediction in found.items():
        before, contradicted = plain[number, place], marked[number][place].terms is not None
        assert prediction.draft_labels == before.draft_labels
        assert prediction.uncertainty == before.uncertainty
        assert prediction.refined[0] is contradicted
        if not contradicted:
            assert prediction == before


@pytest.mark.parametrize("name", TAGGERS)
def test_labels_with_terms_depend_on_no_batch(name: str, build: Build, random_documents: Draw) -> None:
    tagger, documents = build(name), random_documents(0, documents=4)
    marked = contradicting(tagger, documents)
    together = [found.labels for found in chain.from_iterable(tagger.predict_documents(marked))]
    alone = [
        found.labels for found in chain.from_iterable(tagger.predict_documents(marked, PredictOptions(batch_words=1)))
    ]
    assert together == alone


def draft_of(probabilities: torch.Tensor) -> Draft:
    shape = probabilities.shape
    return Draft(
        probabilities=probabilities,
        labels=probabilities.argmax(-1),
        uncertainty=torch.zeros(shape[:2]),
        hidden=torch.zeros(*shape[:2], 1),
        samples=probabilities[None],
    )


def test_words_of_overlapping_entities_are_decided_with_the_match(build: Build, vocabulary: Vocabulary) -> None:
    tagger = build("uanet")
    names = ["O", "B-PER", "E-PER", "O", "S-ORG"]
    labels = torch.tensor([[vocabulary.labels.index(name) for name in names]])
    sentence = Sentence(words=tuple("abcde"), terms=("O", "O", "B-LOC", "I-LOC", "B-ORG"))
    (found,) = find_contradictions(tagger.encode([sentence]), labels, vocabulary)
    assert (found.match, found.words) == (Span(2, 4, "LOC"), (1, 2, 3))
    assert [vocabulary.labels[number] for number in found.labels] == ["B-LOC", "E-LOC"]
    probabilities = torch.full((1, 5, len(vocabulary.labels)), 0.01)
    draft = leave_matches_to_stage_two(draft_of(probabilities), [found])
    assert draft.uncertainty.isinf().tolist() == [[False, True, True, True, False]]
    assert draft.probabilities[0, 2].argmax() == found.labels[0]
    assert torch.equal(draft.probabilities[0, 2:4].sum(-1), torch.ones(2))
    assert torch.equal(draft.probabilities[0, [0, 1, 4]], probabilities[0, [0, 1, 4]])


def test_a_tagger_of_one_stage_is_overruled_where_it_is_not_sure() -> None:
    labels = torch.tensor([[1, 2, 0, 0]])
    found = Contradiction(sentence=0, match=Span(1, 3, "X"), labels=(3, 4), words=(0, 1, 2))
    marginals = torch.full((1, 4, 5), 0.025)
    marginals[0, range(4), labels[0]] = 0.95
    assert overrule_unsure(labels, marginals, [found]) is labels
    marginals[0, 2, 0] = 0.85
    assert overrule_unsure(labels, marginals, [found]).tolist() == [[0, 3, 4, 0]]
    assert overrule_unsure(labels, marginals, []) is labels
