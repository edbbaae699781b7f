"""Scores by group, counted by hand; the groups add up to the overall score."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import Scores, grouped_scores, span_scores
from concord.models.labels import TOKENS, convert_labels
from research.breakdown import (
    TokenScores,
    co_occurrence_scores,
    recurring_scores,
    scores_by_mention_length,
    scores_by_position,
    scores_by_sentence_length,
    sentence_length,
    uncertainty_by_outcome,
)

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
Pairs = list[tuple[list[str], list[str]]]

_label_lists = st.integers(1, 12).flatmap(
    lambda length: st.tuples(*[st.lists(st.sampled_from(LABELS), min_size=length, max_size=length)] * 2)
)
label_pairs = st.lists(_label_lists, min_size=1, max_size=6)


def tagged(text: str) -> Sentence:
    """Parse ``Ada/B-PER King/I-PER slept`` as a sentence; a word without a label is ``O``."""
    pairs = [word.partition("/") for word in text.split()]
    return Sentence(words=tuple(pair[0] for pair in pairs), labels=tuple(pair[2] or "O" for pair in pairs))


def found(scores: Mapping[str, Scores]) -> dict[str, tuple[int, int, int]]:
    """Return the gold, predicted and correct counts of groups that are not empty."""
    return {
        name: (part.gold, part.predicted, part.correct) for name, part in scores.items() if part.gold or part.predicted
    }


def test_mentions_are_grouped_by_number_of_words() -> None:
    gold = [["B-PER", "O", "B-LOC", "I-LOC", "O", "B-ORG", "I-ORG", "I-ORG", "I-ORG", "I-ORG"]]
    predicted = [["B-PER", "O", "B-LOC", "O", "O", "B-ORG", "I-ORG", "I-ORG", "I-ORG", "I-ORG"]]
    scores = scores_by_mention_length(gold, predicted)
    assert list(scores) == ["1", "2", "3", "4+"]
    assert found(scores) == {"1": (1, 2, 1), "2": (1, 0, 0), "4+": (1, 1, 1)}


def test_sentence_of_ten_words_is_in_the_first_bin() -> None:
    assert [sentence_length(words) for words in (1, 10, 11, 50, 51, 5000)] == [
        *("1-10", "1-10", "11-20", "41-50", "51+", "51+")
    ]
    gold = [["B-PER", *["O"] * 9], ["B-PER", *["O"] * 10], ["B-PER"]]
    predicted = [["B-PER", *["O"] * 9], ["B-LOC", *["O"] * 10], ["O"]]
    assert found(scores_by_sentence_length(gold, predicted)) == {"1-10": (2, 1, 1), "11-20": (1, 1, 0)}


def test_words_are_names_of_one_word_for_token_labels() -> None:
    gold = [tagged("The/DET run/VERB ran/VERB"), tagged("run/NOUN")]
    predicted = [("DET", "NOUN", "VERB"), ("NOUN",)]
    assert found(scores_by_sentence_length([row.labels or () for row in gold], predicted, scheme=TOKENS)) == {
        "1-10": (4, 4, 3)
    }
    assert recurring_scores([gold], predicted, scheme=TOKENS) == Scores(gold=2, predicted=2, correct=1)


def test_names_recur_only_within_a_document() -> None:
    documents = [
        [tagged("Ada/B-PER met Ford/B-PER"), tagged("ADA/B-ORG closed in Paris/B-LOC")],
        [tagged("Paris/B-LOC slept")],
    ]
    predicted = [("B-PER", "O", "B-PER"), ("B-PER", "O", "O", "B-LOC"), ("B-LOC", "O")]
    assert recurring_scores(documents, predicted) == Scores(gold=2, predicted=2, correct=1)
    assert recurring_scores(documents[1:], predicted[2:]) == Scores()


def test_co_occurrence_words_are_words_of_names_that_occur_again_in_their_document() -> None:
    documents = [
        [tagged("Lake/B-LOC Tamar/I-LOC met Ford/B-PER"), tagged("the lake met FORD/B-ORG in Paris/B-LOC")],
        [tagged("Paris/B-LOC slept")],
    ]
    predicted = [("B-LOC", "O", "O", "B-PER"), ("O", "O", "O", "B-PER", "O", "B-LOC"), ("B-LOC", "O")]
    # Lake (S-LOC instead of B-LOC), Ford (right) and FORD (wrong); Tamar and Paris occur once in their document.
    assert co_occurrence_scores(documents, predicted) == TokenScores(words=3, correct=1)
    assert co_occurrence_scores(documents[1:], predicted[2:]) == TokenScores(words=0, correct=0)


def test_words_are_scored_by_their_position_in_the_mention() -> None:
    gold = [["B-PER", "I-PER", "I-PER", "O", "B-LOC"]]
    predicted = [["B-PER", "I-PER", "O", "O", "B-ORG"]]
    # As BIOES: gold B I E O S, predicted B E O O S (of another type).
    assert found(scores_by_position(gold, predicted)) == {
        "O": (1, 2, 1),
        "S": (1, 1, 0),
        "B": (1, 1, 1),
        "I": (1, 0, 0),
        "E": (1, 1, 0),
    }


def test_uncertainty_is_split_by_outcome() -> None:
    parted = uncertainty_by_outcome([["O", "B-PER"], ["O"]], [["O", "O"], ["O"]], [[0.1, 0.9], [0.2]])
    assert (parted.right, parted.wrong) == ((0.1, 0.2), (0.9,))
    assert parted.mean_right == pytest.approx(0.15)
    assert parted.ratio == pytest.approx(6.0)


def test_ratio_requires_right_and_wrong_words() -> None:
    assert uncertainty_by_outcome([["O"]], [["O"]], [[0.5]]).ratio is None
    assert uncertainty_by_outcome([["O"]], [["B-PER"]], [[0.5]]).ratio is None
    certain = uncertainty_by_outcome([["O", "O"]], [["O", "B-PER"]], [[0.0, 0.5]])
    assert (certain.mean_right, certain.ratio) == (0.0, None)


@pytest.mark.slow
@given(label_pairs)
def test_groups_add_up_to_the_overall_score(pairs: Pairs) -> None:
    gold, predicted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    whole = span_scores(gold, predicted)["all"]
    for parts in (
        scores_by_mention_length(gold, predicted),
        scores_by_sentence_length(gold, predicted),
        grouped_scores(gold, predicted, lambda number, _: str(number)),
    ):
        assert sum(parts.values(), Scores()) == whole


@pytest.mark.slow
@given(label_pairs)
def test_positions_add_up_to_the_words_and_the_accuracy(pairs: Pairs) -> None:
    gold, predicted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    whole = sum(scores_by_position(gold, predicted).values(), Scores())
    assert whole.gold == whole.predicted == sum(map(len, gold))
    as_bioes = [[convert_labels(row, source="BIO", target="BIOES") for row in rows] for rows in (gold, predicted)]
    right = sum(wanted == given for rows in zip(*as_bioes, strict=True) for wanted, given in zip(*rows, strict=True))
    assert whole.correct == right
