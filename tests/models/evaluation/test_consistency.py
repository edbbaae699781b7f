"""Names and their labels within a document, and how far the labels agree."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.evaluation.consistency import count_unlabelled, name_labels


def labelled(*sentences: str) -> list[tuple[list[str], list[str]]]:
    """Parse sentences of ``word`` or ``word|label`` separated by spaces."""
    rows = [[(*item.split("|"), "O")[:2] for item in sentence.split()] for sentence in sentences]
    return [([word for word, _ in row], [label for _, label in row]) for row in rows]


def test_name_labels_counts_entities_and_other_occurrences_in_any_case() -> None:
    document = labelled("Baxter|B-PER left", "BAXTER closes", "Baxter|B-ORG said so")
    assert name_labels(document) == {"baxter": Counter({"PER": 1, "O": 1, "ORG": 1})}


def test_name_labels_ignores_words_inside_a_longer_entity() -> None:
    document = labelled("Lincoln|B-LOC sleeps", "Lincoln|B-ORG Freight|I-ORG grows")
    assert name_labels(document) == {"lincoln": Counter({"LOC": 1}), "lincoln freight": Counter({"ORG": 1})}


def test_name_labels_counts_a_partly_labelled_name() -> None:
    document = labelled("Alan|B-PER Baxter|I-PER left", "Alan Baxter|B-ORG left")
    assert name_labels(document)["alan baxter"] == Counter({"PER": 1, "O": 1})


def test_name_labels_ignores_lower_case_words_unless_an_entity_is_in_lower_case() -> None:
    assert name_labels(labelled("Rose|B-PER sings", "a rose grows")) == {"rose": Counter({"PER": 1})}
    in_lower_case = name_labels(labelled("rose|B-PER sings", "a rose grows"))
    assert in_lower_case == {"rose": Counter({"PER": 1, "O": 1})}


def test_name_labels_counts_words_in_a_script_without_case() -> None:
    document = labelled("\u6771\u4eac|B-LOC \u306f", "\u6771\u4eac \u306e")
    assert name_labels(document) == {"\u6771\u4eac": Counter({"LOC": 1, "O": 1})}


def test_name_labels_continues_an_entity_in_the_next_sentence() -> None:
    document = labelled("the Bank|B-ORG of|I-ORG", "Tamar|I-ORG lent", "Bank of Tamar", "Bank of", "Tamar ran")
    assert name_labels(document) == {"bank of tamar": Counter({"ORG": 1, "O": 1})}


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
