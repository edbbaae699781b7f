"""Detection of entity label schemes and conversion to BIO2, with the positions of faults."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.labels import Span, encode_spans
from concord.pipeline.corpora.corpus_format import EntityScheme, detect_scheme, to_bio2

Faults = list[tuple[int, str, str | None]]
BIOES = "use label_scheme=BIOES, which also stands for BILOU and BMES, or convert the corpus with concord prepare"


def read(labels: str, scheme: EntityScheme) -> tuple[tuple[str, ...], Faults]:
    faults: Faults = []
    found = to_bio2(labels.split(), scheme, lambda *fault: faults.append(fault))
    return found, faults


@st.composite
def sentences(draw: st.DrawFn) -> list[tuple[Span, ...]]:
    """Draw the spans of sentences of nine words; at least one sentence has an entity."""
    kinds = st.sampled_from(["LOC", "PER"])
    drawn: list[tuple[Span, ...]] = [(Span(2, 4, draw(kinds)),)]
    for _ in range(draw(st.integers(0, 3))):
        borders = sorted(draw(st.sets(st.integers(0, 9), max_size=6)))
        drawn.append(
            tuple(Span(start, end, draw(kinds)) for start, end in zip(borders[::2], borders[1::2], strict=False))
        )
    return drawn


def as_iob1(spans: tuple[Span, ...]) -> list[str]:
    labels = ["O"] * 9
    for span in spans:
        separated = span.start > 0 and labels[span.start - 1].endswith(f"-{span.label}")
        labels[span.start : span.end] = [f"I-{span.label}"] * (span.end - span.start)
        labels[span.start] = f"{'B' if separated else 'I'}-{span.label}"
    return labels


@given(sentences())
def test_every_scheme_is_detected_and_converted_to_the_same_bio2(corpus: list[tuple[Span, ...]]) -> None:
    written: dict[EntityScheme, list[list[str]]] = {
        "BIO2": [list(encode_spans(spans, 9, "BIO")) for spans in corpus],
        "BIOES": [list(encode_spans(spans, 9, "BIOES")) for spans in corpus],
        "IOB1": [as_iob1(spans) for spans in corpus],
    }
    for scheme, labels in written.items():
        assert detect_scheme(labels) == scheme
        for sentence, expected in zip(labels, written["BIO2"], strict=True):
            found, faults = read(" ".join(sentence), scheme)
            assert (list(found), faults) == (expected, [])


@pytest.mark.parametrize(
    "names", [{"E": "L", "S": "U"}, {"I": "M"}, {"I": "M", "S": "W"}], ids=["BILOU", "BMES", "BMEWO"]
)
@given(corpus=sentences())
def test_other_names_of_bioes_are_read_as_bioes(corpus: list[tuple[Span, ...]], names: dict[str, str]) -> None:
    written = [
        [names.get(label[0], label[0]) + label[1:] for label in encode_spans(spans, 9, "BIOES")] for spans in corpus
    ]
    assert detect_scheme(written) == "BIOES"
    for labels, spans in zip(written, corpus, strict=True):
        assert read(" ".join(labels), "BIOES") == (encode_spans(spans, 9, "BIO"), [])


def test_corpus_without_entities_is_bio2() -> None:
    assert detect_scheme([["O", "O"], []]) == "BIO2"


def test_corpus_with_both_ways_to_start_an_entity_is_bio2_with_faults() -> None:
    labels = "B-PER O I-PER"
    assert detect_scheme([labels.split()]) == "BIO2"
    found, ((position, message, repaired),) = read(labels, "BIO2")
    assert (found, position, repaired) == (("B-PER", "O", "B-PER"), 2, "B-PER")
    assert message.startswith("'I-PER' cannot follow O; in BIO2 every entity starts with B-")


@pytest.mark.parametrize(
    ("scheme", "labels", "faults"),
    [
        ("BIO2", "O PER", [(1, "label: expected O or one of B-, I-, E-, S- with a type, got 'PER'")]),
        ("BIO2", "B-PER E-PER", [(1, f"expected BIO2 labels (O, B-, I-), got 'E-PER'; {BIOES}")]),
        ("BIO2", "B-PER L-PER", [(1, f"expected BIO2 labels (O, B-, I-), got 'L-PER'; {BIOES}")]),
        ("IOB1", "I-PER S-PER", [(1, f"expected IOB1 labels (O, B-, I-), got 'S-PER'; {BIOES}")]),
        ("BIOES", "B-PER O", [(1, "'O' cannot follow 'B-PER' in BIOES")]),
        ("BIOES", "I-PER E-PER", [(0, "'I-PER' cannot follow the start of the sentence in BIOES")]),
        ("BIOES", "S-PER B-LOC", [(1, "the end of the sentence cannot follow 'B-LOC' in BIOES")]),
        ("BIOES", "B-PER E-LOC", [(1, "'E-LOC' cannot follow 'B-PER' in BIOES")]),
        ("BIOES", "B-PER L-LOC", [(1, "'L-LOC' cannot follow 'B-PER' in BIOES")]),
        ("BIOES", "U-PER L-PER", [(1, "'L-PER' cannot follow 'U-PER' in BIOES")]),
    ],
)
def test_invalid_labels_are_reported_and_become_o(
    scheme: EntityScheme, labels: str, faults: list[tuple[int, str]]
) -> None:
    _, found = read(labels, scheme)
    assert found == [(*fault, None) for fault in faults]
