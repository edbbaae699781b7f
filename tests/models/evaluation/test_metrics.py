"""Span scores, computed by hand and with seqeval, and accuracy of token labels."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.evaluation.metrics import Scores, lenient_scores, seqeval_f1, span_scores, token_scores
from concord.models.labels import decode_spans, encode_spans

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
    assert scores.overall == Scores(gold=3, predicted=3, correct=1)
    assert scores.overall.f1 == pytest.approx(100 / 3)
    assert scores.by_type["LOC"] == Scores(gold=1, predicted=2, correct=1)
    assert (scores.by_type["LOC"].precision, scores.by_type["LOC"].recall) == (50.0, 100.0)
    assert scores.by_type["ORG"].f1 == 0.0


def test_scores_without_spans_are_zero() -> None:
    assert span_scores([("O",)], [("O",)]).overall.f1 == 0.0


def test_missing_label_raises_a_value_error() -> None:
    with pytest.raises(ValueError, match="sentence 0: expected 2 labels, got 1"):
        span_scores([("O", "O")], [("O",)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@given(sentences)
def test_f1_equals_strict_f1_of_seqeval(pairs: list[tuple[list[str], list[str]]]) -> None:
    gold, found = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert span_scores(gold, found).overall.f1 == pytest.approx(seqeval_f1(gold, found))


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


def test_lenient_score_counts_malformed_entities() -> None:
    gold = [("O", "B-PER", "I-PER", "E-PER")]
    assert lenient_scores(gold, [("O", "B-PER", "I-ORG", "E-LOC")]) == Scores(gold=1, predicted=1, correct=1)
    assert lenient_scores(gold, [("O", "B-ORG", "I-PER", "E-PER")]) == Scores(gold=1, predicted=1, correct=0)
    # NCRF++ closes what is open at the end of the sentence without its last place, as it writes single words.
    assert lenient_scores(gold, [("O", "B-PER", "I-PER", "I-PER")]) == Scores(gold=1, predicted=1, correct=0)
    single = [("O", "S-PER", "O", "O")]
    assert lenient_scores(single, [("O", "B-PER", "I-PER", "O")]) == Scores(gold=1, predicted=1, correct=1)


def test_lenient_entities_are_those_of_a_regular_expression() -> None:
    labels = ("O", "B-X", "I-X", "E-X", "S-X", "E-Y")
    pattern = re.compile(r"(?P<single>S)|B[OI]*(?P<last>E)|B[OI]*(?=[BS])|B(?=[OI]*$)")
    for length in range(1, 6):
        for found in product(labels, repeat=length):
            matches = list(pattern.finditer("".join(label[0] for label in found)))
            # Gold with one entity at each match, all of the type of its first label.
            gold = ["O"] * length
            for match in matches:
                size = match.end() - match.start()
                inside = ["S-X"] if size == 1 else ["B-X", *["I-X"] * (size - 2), "E-X"]
                gold[match.start() : match.end()] = inside
            number = len(matches)
            assert lenient_scores([gold], [found]) == Scores(gold=number, predicted=number, correct=number), found


@pytest.mark.slow
@given(sentences)
def test_lenient_score_of_well_formed_labels_is_the_strict_one(pairs: list[tuple[list[str], list[str]]]) -> None:
    sides = [
        [encode_spans(decode_spans(pair[side], "BIO"), len(pair[side]), "BIOES") for pair in pairs] for side in (0, 1)
    ]
    strict = span_scores(*[[pair[side] for pair in pairs] for side in (0, 1)]).overall
    assert lenient_scores(*sides) == strict
