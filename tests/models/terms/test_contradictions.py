"""What a list of terms changes in the labels of a tagger, and what it leaves alone."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch

from concord.models.data.options import PredictOptions
from concord.models.data.outputs import Draft, Prediction
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels.spans import Span, encode_spans
from concord.models.terms.contradictions import (
    Contradiction,
    find_contradictions,
    leave_matches_to_stage_two,
    overrule_unsure,
)

Build = Callable[..., Any]
Documents = list[list[Sentence]]
Draw = Callable[..., Documents]

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
