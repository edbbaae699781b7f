"""Spans as BIO2 and BIOES labels: encoding, strict decoding, conversion, legal transitions."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.scheme import IOB2, IOBES, Entities

from concord.models.labels import (
    BIO,
    BIOES,
    LabelScheme,
    Span,
    SpanScheme,
    convert_labels,
    decode_spans,
    encode_spans,
    split_label,
)

SCHEMES: tuple[SpanScheme, ...] = ("BIO", "BIOES")
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
@pytest.mark.parametrize("scheme", SCHEMES)
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
def test_malformed_pieces_yield_no_span(scheme: SpanScheme, labels: str, spans: list[Span]) -> None:
    assert decode_spans(labels.split(), scheme) == tuple(spans)


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
