"""Scores of entities and token labels, and the occurrences of names."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.scheme import IOB2

from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import (
    Scores,
    count_unlabelled,
    group_counts_by_document,
    known_names,
    name_labels,
    span_scores,
)
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
    scores = span_scores([("NN", "VB"), ("NN",)], [("NN", "NN"), ("NN",)], scheme=TOKENS)
    assert scores == {
        "all": Scores(gold=3, predicted=3, correct=2),
        "NN": Scores(gold=2, predicted=3, correct=2),
        "VB": Scores(gold=1, predicted=0, correct=0),
    }
    assert scores["all"].recall == pytest.approx(200 / 3)
    assert span_scores([], [], scheme=TOKENS)["all"].recall == 0.0
    with pytest.raises(ValueError, match="sentence 0: expected 2 labels, got 1"):
        span_scores([("NN", "VB")], [("NN",)], scheme=TOKENS)


def test_names_of_training_corpora_are_known_in_any_case(sentence: Callable[[str], Sentence]) -> None:
    corpus = [sentence("Lake/B-LOC Tamar/I-LOC met Ada/B-PER"), sentence("ADA/B-ORG closed")]
    assert known_names(corpus) == {("lake", "tamar"), ("ada",)}
    assert known_names([sentence("the/DET run/NOUN")], scheme=TOKENS) == {("the",), ("run",)}


Pairs = list[tuple[list[str], list[str]]]

_label_lists = st.integers(1, 12).flatmap(
    lambda length: st.tuples(*[st.lists(st.sampled_from(LABELS), min_size=length, max_size=length)] * 2)
)
label_pairs = st.lists(_label_lists, min_size=1, max_size=6)


@pytest.mark.slow
@given(label_pairs)
def test_groups_by_document_add_up_to_the_scores(pairs: Pairs) -> None:
    gold, predicted = ([list(labels) for labels in side] for side in zip(*pairs, strict=True))
    counts = group_counts_by_document(
        [gold, []], [predicted, []], lambda _, place, span: ("all", span.label, place % 2)
    )
    scores = span_scores(gold, predicted)
    for name, part in scores.items():
        assert counts.get(name, np.zeros((2, 3)))[0].tolist() == [part.gold, part.predicted, part.correct]
    assert all((own[1] == 0).all() for own in counts.values())
    if "all" in counts:
        halves = [counts[half] for half in (0, 1) if half in counts]
        assert np.sum(halves, axis=0).tolist() == counts["all"].tolist()


def labelled(*sentences: str) -> list[tuple[list[str], list[str]]]:
    """Parse sentences of ``word`` or ``word|label`` separated by spaces."""
    rows = [[(*item.split("|"), "O")[:2] for item in sentence.split()] for sentence in sentences]
    return [([word for word, _ in row], [label for _, label in row]) for row in rows]


@pytest.mark.parametrize(
    ("document", "names"),
    [
        (("Baxter|B-PER left", "BAXTER closes", "Baxter|B-ORG said so"), {"baxter": "PER O ORG"}),
        (("Lincoln|B-LOC sleeps", "Lincoln|B-ORG Freight|I-ORG grows"), {"lincoln": "LOC", "lincoln freight": "ORG"}),
        (("Alan|B-PER Baxter|I-PER left", "Alan Baxter|B-ORG left"), {"alan baxter": "PER O", "baxter": "ORG"}),
        (("Rose|B-PER sings", "a rose grows"), {"rose": "PER"}),
        (("rose|B-PER sings", "a rose grows"), {"rose": "PER O"}),
        (("\u6771\u4eac|B-LOC \u306f", "\u6771\u4eac \u306e"), {"\u6771\u4eac": "LOC O"}),
        (
            ("the Bank|B-ORG of|I-ORG", "Tamar|I-ORG lent", "Bank of Tamar", "Bank of", "Tamar ran"),
            {"bank of tamar": "ORG O"},
        ),
    ],
    ids=["case", "longer", "part", "lower case", "name in lower case", "no case", "next sentence"],
)
def test_name_labels_counts_entities_and_other_occurrences(document: tuple[str, ...], names: dict[str, str]) -> None:
    assert name_labels(labelled(*document)) == {name: Counter(labels.split()) for name, labels in names.items()}


def test_count_unlabelled_counts_recurring_names_of_two_words_and_more() -> None:
    document = labelled(
        "Alan|B-PER Baxter|I-PER left", "ALAN BAXTER slept", "Alan Baxter|B-ORG sat", "Ada|B-PER Li|I-PER"
    )
    assert count_unlabelled(name_labels(document), values=()) == (3, 2)
    assert count_unlabelled(name_labels(labelled("Baxter|B-PER left", "Baxter slept")), values=()) == (0, 0)
    dates = name_labels(labelled("A|B-DATE year|I-DATE", "a|B-DATE year|I-DATE", "twice a year"))
    assert count_unlabelled(dates, values=()) == (3, 1)
    assert count_unlabelled(dates, values=("DATE",)) == (0, 0)


@pytest.mark.slow
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("aAbB"), st.sampled_from(["O", "B-X", "B-Y"])), max_size=5), max_size=4)
)
def test_name_labels_of_single_words_equals_plain_counting(rows: list[list[tuple[str, str]]]) -> None:
    document = [([word for word, _ in row], [label for _, label in row]) for row in rows]
    words = [pair for row in rows for pair in row]
    expected: dict[str, Counter[str]] = {}
    for name in {word.lower() for word, label in words if label != "O"}:
        lower_case_counts = (name, "B-X") in words or (name, "B-Y") in words
        expected[name] = Counter(
            label.removeprefix("B-")
            for word, label in words
            if word.lower() == name and (label != "O" or lower_case_counts or not word.islower())
        )
    assert name_labels(document) == expected
