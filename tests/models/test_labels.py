"""Labels: schemes, the strict span decoder, legal transitions."""

from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.scheme import IOB2, IOBES, Entities

from concord.models.labels import (
    Scheme,
    Span,
    SpanScheme,
    convert_labels,
    decode_spans,
    encode_spans,
    from_gold,
    is_legal_transition,
    label_set,
    legal_transitions,
    split_label,
    to_gold,
)

SCHEMES: tuple[SpanScheme, ...] = ("BIO", "BIOES")
SEQEVAL = {"BIO": IOB2, "BIOES": IOBES}
KINDS = ("LOC", "PER")


@st.composite
def spans_in_a_sentence(draw: st.DrawFn) -> tuple[tuple[Span, ...], int]:
    """Draw disjoint spans in order, some of them adjacent, and the sentence's length."""
    spans, end = [], 0
    for gap, length, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(KINDS)), max_size=5)
    ):
        spans.append(Span(end + gap, end + gap + length, kind))
        end += gap + length
    return tuple(spans), end + draw(st.integers(0, 2))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@given(drawn=spans_in_a_sentence())
@settings(deadline=None)
def test_spans_survive_writing_and_reading(scheme: Scheme, drawn: tuple[tuple[Span, ...], int]) -> None:
    spans, length = drawn
    assert decode_spans(encode_spans(spans, length, scheme), scheme) == spans


@given(drawn=spans_in_a_sentence())
@settings(deadline=None)
def test_schemes_convert_into_each_other(drawn: tuple[tuple[Span, ...], int]) -> None:
    bio, bioes = encode_spans(*drawn, "BIO"), encode_spans(*drawn, "BIOES")
    assert convert_labels(bio, source="BIO", target="BIOES") == bioes
    assert convert_labels(bioes, source="BIOES", target="BIO") == bio


@pytest.mark.parametrize("scheme", SCHEMES)
@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_decoder_agrees_with_seqeval_strict_on_any_labels(scheme: Scheme, data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.sampled_from(label_set(KINDS, scheme)), min_size=1, max_size=8))
    found = Entities([labels], SEQEVAL[scheme], suffix=False).entities[0]
    assert decode_spans(labels, scheme) == tuple(sorted(Span(entity.start, entity.end, entity.tag) for entity in found))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_legal_transitions_allow_exactly_the_well_formed_sequences(scheme: Scheme, length: int) -> None:
    for labels in product(label_set(KINDS, scheme), repeat=length):
        steps = pairwise((None, *labels, None))
        well_formed = encode_spans(decode_spans(labels, scheme), length, scheme) == labels
        assert all(is_legal_transition(left, right, scheme) for left, right in steps) == well_formed, labels


@pytest.mark.parametrize("scheme", [*SCHEMES, "TOKENS"])
def test_the_table_of_transitions_is_that_of_the_pairs(scheme: Scheme) -> None:
    labels = label_set(["NN", "VB", "X-Y"], scheme)
    pairs = [[is_legal_transition(left, right, scheme) for right in labels] for left in labels]
    assert legal_transitions(labels, scheme) == pairs


@pytest.mark.parametrize("scheme", [*SCHEMES, "TOKENS"])
def test_the_table_of_transitions_takes_few_calls(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count(*arguments: Any) -> bool:
        calls.append(arguments)
        return True

    monkeypatch.setattr("concord.models.labels.is_legal_transition", count)
    labels = label_set(map(str, range(250)), scheme)
    assert len(legal_transitions(labels, scheme)) == len(labels)
    assert len(calls) <= 6 * len(labels) + 1


def test_token_labels_have_no_spans_and_stay_as_they_are() -> None:
    labels = ("B-NP", "I-VP", "", "O")
    assert decode_spans(labels, "TOKENS") == ()
    assert from_gold(labels, "TOKENS") == to_gold(labels, "TOKENS") == labels
    assert label_set(["VB", "NN", "NN"], "TOKENS") == ("NN", "VB")


@pytest.mark.parametrize(
    ("scheme", "labels", "spans"),
    [
        ("BIOES", "O B-PER I-ORG E-LOC", []),
        ("BIOES", "B-PER O E-PER", []),
        ("BIOES", "B-PER I-PER", []),
        ("BIOES", "B-PER S-LOC E-PER", [Span(1, 2, "LOC")]),
        ("BIOES", "S-PER B-LOC E-LOC", [Span(0, 1, "PER"), Span(1, 3, "LOC")]),
        ("BIO", "I-PER I-PER B-PER", [Span(2, 3, "PER")]),
        ("BIO", "B-PER I-LOC I-PER", [Span(0, 1, "PER")]),
        ("BIO", "B-PER B-PER I-PER", [Span(0, 1, "PER"), Span(1, 3, "PER")]),
    ],
)
def test_malformed_pieces_give_no_span(scheme: Scheme, labels: str, spans: list[Span]) -> None:
    assert decode_spans(labels.split(), scheme) == tuple(spans)


def test_label_set_is_sorted_with_outside_first() -> None:
    assert label_set(["PER", "LOC", "PER"], "BIO") == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert label_set(["X"], "BIOES") == ("O", "B-X", "I-X", "E-X", "S-X")
    assert label_set([], "BIOES") == ("O",)


def test_types_may_hold_a_dash() -> None:
    assert split_label("B-work-of-art") == ("B", "work-of-art")


@pytest.mark.parametrize("label", ["", "B", "B-", "X-PER", "PER", "b-PER"])
def test_a_label_that_is_none_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match="expected O or one of B-, I-, E-, S-"):
        split_label(label)


@pytest.mark.parametrize(
    "spans", [[Span(0, 2, "X"), Span(1, 3, "X")], [Span(2, 4, "X")], [Span(1, 1, "X")], [Span(-1, 1, "X")]]
)
def test_spans_that_overlap_or_leave_the_sentence_are_refused(spans: list[Span]) -> None:
    with pytest.raises(ValueError, match=r"expected disjoint spans within 0\.\.3"):
        encode_spans(spans, 3, "BIO")
