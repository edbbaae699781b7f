"""What words of names attend to: which word is counted, and how far away it is in the sentence and in its tree."""

import numpy as np
import pytest

from concord.models.data.sentence import Sentence
from concord.models.labels import Span
from concord.pipeline.errors import InputError
from research.attended import count_attended, hops_from

# "Ada Lovelace was born in London": born has Lovelace, was and London as children.
SENTENCE = Sentence(
    words=("Ada", "Lovelace", "was", "born", "in", "London"),
    tags=("PROPN", "PROPN", "AUX", "VERB", "ADP", "PROPN"),
    heads=(2, 4, 4, 0, 6, 4),
    relations=("flat", "nsubj", "aux", "root", "case", "obl"),
)
NAMES = (Span(start=0, end=2, label="PER"), Span(start=5, end=6, label="LOC"))


def attention(*chosen: int) -> np.ndarray:
    """Return weights by which each word attends most to one other, and next to the word before the last."""
    weights = np.full((len(chosen), len(chosen)), 0.1)
    weights[:, -2] = 0.2
    weights[range(len(chosen)), chosen] = 0.5
    np.fill_diagonal(weights, 0.0)
    return weights


def test_hops_in_a_tree_lead_over_the_word_that_both_are_under() -> None:
    assert hops_from(SENTENCE.heads or (), 0, range(6)) == [0, 1, 3, 2, 4, 3]


def test_words_of_two_trees_meet_above_both_roots() -> None:
    assert hops_from((0, 1, 0), 1, [0, 2]) == [1, 3]


def test_most_attended_word_is_counted_by_its_hops() -> None:
    found = count_attended([(SENTENCE, NAMES, attention(1, 3, 0, 0, 0, 3))])
    assert (found["words"], found["own_name"]) == (3, pytest.approx(100 / 3))
    sequence, tree = found["hops"]["sequence"], found["hops"]["tree"]
    assert sequence["attended"]["mean"] == pytest.approx((1 + 2 + 2) / 3)
    assert tree["attended"]["mean"] == pytest.approx(1.0)
    assert sequence["attended"]["shares"][:3] == [pytest.approx(100 / 3), pytest.approx(200 / 3), 0.0]
    assert sequence["by_chance"]["mean"] == pytest.approx((15 + 11 + 15) / 5 / 3)
    assert sum(tree["by_chance"]["shares"]) == pytest.approx(100.0)


def test_hops_beyond_the_farthest_are_counted_together() -> None:
    words = 14
    heads = tuple(range(words))
    sentence = Sentence(words=("w",) * words, tags=("X",) * words, heads=heads, relations=("dep",) * words)
    weights = attention(*(words - 1,) * words)
    shares = count_attended([(sentence, [Span(start=0, end=1, label="PER")], weights)])["hops"]["tree"]
    assert shares["attended"]["shares"] == [0.0] * 10 + [100.0]
    assert shares["by_chance"]["shares"][-1] == pytest.approx(300 / 13)


def test_context_of_a_type_leaves_out_words_of_all_names() -> None:
    found = count_attended([(SENTENCE, NAMES, attention(5, 3, 0, 0, 0, 0))])["outside_names"]
    assert found["PER"]["words"] == {"in": 1, "born": 1}
    assert found["LOC"]["words"] == {"in": 1}
    assert found["PER"]["tags"] == {
        "ADP": {"attended": 50.0, "by_chance": pytest.approx(100 / 3)},
        "VERB": {"attended": 50.0, "by_chance": pytest.approx(100 / 3)},
    }


def test_numbers_and_marks_count_by_their_part_of_speech_alone() -> None:
    sentence = Sentence(words=("Ada", ":"), tags=("PROPN", "PUNCT"), heads=(0, 1), relations=("root", "punct"))
    (found,) = count_attended([(sentence, [Span(start=0, end=1, label="PER")], attention(1, 0))])[
        "outside_names"
    ].values()
    assert (found["counted"], found["words"], list(found["tags"])) == (1, {}, ["PUNCT"])


def test_names_alone_in_their_sentences_are_an_input_error() -> None:
    alone = Sentence(words=("Ada",), tags=("PROPN",), heads=(0,), relations=("root",))
    with pytest.raises(InputError, match="another word in its sentence"):
        count_attended([(alone, [Span(start=0, end=1, label="PER")], np.zeros((1, 1)))])
