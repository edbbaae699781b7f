"""Notations of labels, their spans, and the schemes that taggers predict."""

from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.scheme import IOB2, IOBES, Entities

from concord.models.labels import (
    BIO,
    BIOES,
    TOKENS,
    LabelScheme,
    Span,
    SpanScheme,
    convert_labels,
    decode_spans,
    encode_spans,
    label_scheme,
    split_label,
)

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
    assert TOKENS.from_gold(labels) == TOKENS.decode(labels)[0] == labels
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


NOTATIONS: tuple[SpanScheme, ...] = ("BIO", "BIOES")
SEQEVAL = {"BIO": IOB2, "BIOES": IOBES}
KINDS = ("LOC", "PER")


@st.composite
def spans_in_a_sentence(draw: st.DrawFn) -> tuple[tuple[Span, ...], int]:
    """Draw disjoint spans in order, some of them adjacent, and the sentence's length."""
    spans: list[Span] = []
    end = 0
    for gap, length, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(KINDS)), max_size=5)
    ):
        spans.append(Span(end + gap, end + gap + length, kind))
        end += gap + length
    return tuple(spans), end + draw(st.integers(0, 2))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", NOTATIONS)
@given(drawn=spans_in_a_sentence())
def test_decoding_returns_the_encoded_spans(scheme: SpanScheme, drawn: tuple[tuple[Span, ...], int]) -> None:
    spans, length = drawn
    assert decode_spans(encode_spans(spans, length, scheme), scheme) == spans


@pytest.mark.slow
@given(drawn=spans_in_a_sentence())
def test_converting_labels_keeps_their_spans(drawn: tuple[tuple[Span, ...], int]) -> None:
    bio, bioes = encode_spans(*drawn, "BIO"), encode_spans(*drawn, "BIOES")
    assert convert_labels(bio, source="BIO", target="BIOES") == bioes
    assert convert_labels(bioes, source="BIOES", target="BIO") == bio


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [BIO, BIOES])
@given(data=st.data())
def test_decoder_agrees_with_seqeval_strict_on_any_labels(scheme: LabelScheme, data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.sampled_from(scheme.label_set(KINDS)), min_size=1, max_size=8))
    found = Entities([labels], SEQEVAL[scheme.name], suffix=False).entities[0]
    assert scheme.entities(labels) == tuple(sorted(Span(entity.start, entity.end, entity.tag) for entity in found))


@pytest.mark.parametrize("scheme", [BIO, BIOES])
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_legal_transitions_admit_exactly_the_well_formed_sequences(scheme: LabelScheme, length: int) -> None:
    assert scheme.spans is not None
    for labels in product(scheme.label_set(KINDS), repeat=length):
        steps = pairwise((None, *labels, None))
        well_formed = encode_spans(scheme.entities(labels), length, scheme.spans) == labels
        assert all(scheme.allows(left, right) for left, right in steps) == well_formed, labels


def test_entity_type_may_contain_a_dash() -> None:
    assert split_label("B-work-of-art") == ("B", "work-of-art")


@pytest.mark.parametrize("label", ["", "B", "B-", "X-PER", "PER", "b-PER"])
def test_split_label_rejects_other_labels(label: str) -> None:
    with pytest.raises(ValueError, match="expected O or one of B-, I-, E-, S-"):
        split_label(label)


@pytest.mark.parametrize(
    "spans", [[Span(0, 2, "X"), Span(1, 3, "X")], [Span(2, 4, "X")], [Span(1, 1, "X")], [Span(-1, 1, "X")]]
)
def test_encode_spans_rejects_spans_that_overlap_or_exceed_the_sentence(spans: list[Span]) -> None:
    with pytest.raises(ValueError, match=r"expected disjoint spans within 0\.\.3"):
        encode_spans(spans, 3, "BIO")
