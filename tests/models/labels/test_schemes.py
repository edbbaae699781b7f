"""Label schemes: label sets, the table of transitions, word labels."""

from typing import Any

import pytest

from concord.models.labels import BIO, BIOES, TOKENS, LabelScheme, Span, label_scheme

SCHEMES = pytest.mark.parametrize("scheme", [BIO, BIOES, TOKENS], ids=lambda scheme: scheme.name)


@SCHEMES
def test_transitions_equal_those_of_each_pair(scheme: LabelScheme) -> None:
    labels = scheme.label_set(["NN", "VB", "X-Y"])
    assert scheme.transitions(labels) == [[scheme.allows(left, right) for right in labels] for left in labels]


@SCHEMES
def test_transitions_check_few_pairs(scheme: LabelScheme, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count(*arguments: Any) -> bool:
        calls.append(arguments)
        return True

    monkeypatch.setattr(type(scheme), "allows", count)
    labels = scheme.label_set(map(str, range(250)))
    assert len(scheme.transitions(labels)) == len(labels)
    assert len(calls) <= 6 * len(labels) + 1


def test_word_labels_stay_as_they_are_and_hold_no_entities() -> None:
    labels = ("B-NP", "I-VP", "", "O")
    assert TOKENS.entities(labels) == TOKENS.entity_pieces(labels) == ()
    assert TOKENS.from_gold(labels) == TOKENS.to_gold(labels) == labels
    assert TOKENS.label_set(["VB", "NN", "NN"]) == ("NN", "VB")


def test_scored_spans_are_bio2_entities_or_single_words() -> None:
    assert BIOES.scored_spans(("B-X", "I-X", "O")) == (Span(0, 2, "X"),)
    assert TOKENS.scored_spans(("B-X", "O")) == (Span(0, 1, "B-X"), Span(1, 2, "O"))


def test_label_set_of_entities_is_sorted_with_outside_first() -> None:
    assert BIO.label_set(["PER", "LOC", "PER"]) == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert BIOES.label_set(["X"]) == ("O", "B-X", "I-X", "E-X", "S-X")
    assert BIOES.label_set([]) == ("O",)


def test_label_scheme_rejects_an_unknown_name() -> None:
    assert label_scheme("BIOES") is BIOES
    with pytest.raises(ValueError, match="scheme: expected BIO, BIOES or TOKENS, got 'IOB1'"):
        label_scheme("IOB1")
