"""Span scores, computed by hand and with seqeval, accuracy of token labels, and names of training corpora."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.scheme import IOB2

from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import Scores, known_names, span_scores, token_scores
from concord.models.labels import TOKENS

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
sentences = st.lists(
    st.integers(1, 8).flatmap(
        lambda length: st.tuples(
            st.lists(st.sampled_from(LABELS), min_size=length, max_size=length),
            st.lists(st.sampled_from(LABELS), min_size=length, max_size=length),
        )
    ),
    min_size=1,
    max_size=6,
)


def test_span_counts_only_with_exact_bounds_and_type() -> None:
    gold = [("B-PER", "I-PER", "O", "B-LOC"), ("B-ORG", "O")]
    found = [("B-PER", "O", "O", "B-LOC"), ("B-LOC", "O")]
    scores = span_scores(gold, found)
    assert scores["all"] == Scores(gold=3, predicted=3, correct=1)
    assert scores["all"].f1 == pytest.approx(100 / 3)
    assert scores["LOC"] == Scores(gold=1, predicted=2, correct=1)
    assert (scores["LOC"].precision, scores["LOC"].recall) == (50.0, 100.0)
    assert scores["ORG"].f1 == 0.0


def test_scores_without_spans_are_zero() -> None:
    assert span_scores([("O",)], [("O",)])["all"].f1 == 0.0


def test_missing_label_raises_a_value_error() -> None:
    with pytest.raises(ValueError, match="sentence 0: expected 2 labels, got 1"):
        span_scores([("O", "O")], [("O",)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@given(sentences)
def test_f1_equals_strict_f1_of_seqeval(pairs: list[tuple[list[str], list[str]]]) -> None:
    gold, found = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert span_scores(gold, found)["all"].f1 == pytest.approx(
        100.0 * f1_score(gold, found, mode="strict", scheme=IOB2, zero_division=0)
    )


def test_accuracy_counts_words_and_labels() -> None:
    scores = token_scores([("NN", "VB"), ("NN",)], [("NN", "NN"), ("NN",)])
    assert (scores.words, scores.correct) == (3, 2)
    assert scores.accuracy == pytest.approx(200 / 3)
    assert scores.by_label == {
        "NN": Scores(gold=2, predicted=3, correct=2),
        "VB": Scores(gold=1, predicted=0, correct=0),
    }
    assert token_scores([], []).accuracy == 0.0
    with pytest.raises(ValueError, match="sentence 0: expected 2 labels, got 1"):
        token_scores([("NN", "VB")], [("NN",)])


def test_names_of_training_corpora_are_known_in_any_case(sentence: Callable[[str], Sentence]) -> None:
    corpus = [sentence("Lake/B-LOC Tamar/I-LOC met Ada/B-PER"), sentence("ADA/B-ORG closed")]
    assert known_names(corpus) == {("lake", "tamar"), ("ada",)}
    assert known_names([sentence("the/DET run/NOUN")], scheme=TOKENS) == {("the",), ("run",)}
