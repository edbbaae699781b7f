"""Label schemes BIO2, BIOES and plain token labels, legal transitions, and the one span decoder.

Under ``TOKENS`` every word has a label of its own, such as a part of speech or a supertag: labels have no prefix, any
may follow any, and there are no spans.

The decoder is strict and type-consistent: a span counts only if every one of its labels is in place, as
seqeval's strict mode has it. A malformed piece gives no span.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

OUTSIDE = "O"
SpanScheme = Literal["BIO", "BIOES"]
Scheme = Literal["BIO", "BIOES", "TOKENS"]


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """A labelled stretch of words, half-open."""

    start: int
    end: int
    label: str


def split_label(label: str) -> tuple[str, str]:
    """Split ``B-PER`` into ``("B", "PER")``; ``O`` gives ``("O", "")``.

    Raises:
        ValueError: for anything that is no BIO2 or BIOES label.
    """
    if label == OUTSIDE:
        return OUTSIDE, ""
    prefix, dash, kind = label.partition("-")
    if not dash or not kind or prefix not in {"B", "I", "E", "S"}:
        raise ValueError(f"label: expected O or one of B-, I-, E-, S- with a type, got {label!r}")
    return prefix, kind


def label_set(kinds: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Give every label of a scheme for the entity types, ``O`` first, types in sorted order.

    Under ``TOKENS`` the kinds are the labels themselves.
    """
    if scheme == "TOKENS":
        return tuple(sorted(set(kinds)))
    prefixes = "BI" if scheme == "BIO" else "BIES"
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(set(kinds)) for prefix in prefixes))


def decode_spans(labels: Sequence[str], scheme: Scheme) -> tuple[Span, ...]:
    """Read the well-formed spans off a label sequence, in order; token labels have none."""
    if scheme == "TOKENS":
        return ()
    return _decode_bio(labels) if scheme == "BIO" else _decode_bioes(labels)


def decode_pieces(labels: Sequence[str], scheme: SpanScheme) -> tuple[Span, ...]:
    """Read the spans off a stretch of a label sequence, those cut off at its ends too."""
    first, last = (split_label(label) for label in (labels[0], labels[-1]))
    before = [f"B-{first[1]}"] if first[0] in {"I", "E"} else []
    after = [f"E-{last[1]}"] if scheme == "BIOES" and last[0] in {"B", "I"} else []
    shift, length = len(before), len(labels)
    spans = decode_spans([*before, *labels, *after], scheme)
    return tuple(Span(max(0, span.start - shift), min(span.end - shift, length), span.label) for span in spans)


def encode_spans(spans: Iterable[Span], length: int, scheme: SpanScheme) -> tuple[str, ...]:
    """Write disjoint spans as labels of a scheme.

    Raises:
        ValueError: when spans overlap or leave the sentence.
    """
    labels = [OUTSIDE] * length
    for span in spans:
        if not 0 <= span.start < span.end <= length or any(label != OUTSIDE for label in labels[span.start : span.end]):
            raise ValueError(f"span {span}: expected disjoint spans within 0..{length}")
        labels[span.start : span.end] = _span_labels(span, scheme)
    return tuple(labels)


def convert_labels(labels: Sequence[str], *, source: SpanScheme, target: SpanScheme) -> tuple[str, ...]:
    """Write the well-formed spans of one scheme in another; malformed pieces become ``O``."""
    return encode_spans(decode_spans(labels, source), len(labels), target)


def from_gold(labels: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """Write gold labels, in BIO2 or plain, in a tagger's scheme."""
    return tuple(labels) if scheme == "TOKENS" else convert_labels(labels, source="BIO", target=scheme)


def to_gold(labels: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """Write a tagger's labels as gold labels are written: in BIO2, or plain."""
    return tuple(labels) if scheme == "TOKENS" else convert_labels(labels, source=scheme, target="BIO")


def is_legal_transition(left: str | None, right: str | None, scheme: Scheme) -> bool:
    """Say whether ``right`` may follow ``left``; None stands for the sentence's start or end."""
    if scheme == "TOKENS":
        return True
    left_prefix, left_kind = split_label(left) if left is not None else (OUTSIDE, "")
    right_prefix, right_kind = split_label(right) if right is not None else (OUTSIDE, "")
    continues = right_prefix in {"I", "E"}
    if scheme == "BIO":
        return not continues or (left_prefix in {"B", "I"} and left_kind == right_kind)
    left_open = left_prefix in {"B", "I"}
    return continues == left_open and (not continues or left_kind == right_kind)


def legal_transitions(labels: Sequence[str], scheme: Scheme) -> list[list[bool]]:
    """Give ``is_legal_transition`` for all pairs of labels; rows are left labels.

    Labels of different types follow one another just where the left may end a sentence and the right begin one, so
    that only pairs of one type are looked at singly: a thousand labels take no million calls.
    """
    starts = [is_legal_transition(None, label, scheme) for label in labels]
    closed = [False] * len(labels)
    rows = [list(starts if is_legal_transition(label, None, scheme) else closed) for label in labels]
    if scheme == "TOKENS":
        return rows
    by_kind: defaultdict[str, list[int]] = defaultdict(list)
    for number, label in enumerate(labels):
        by_kind[split_label(label)[1]].append(number)
    for numbers in by_kind.values():
        for left, right in product(numbers, repeat=2):
            rows[left][right] = is_legal_transition(labels[left], labels[right], scheme)
    return rows


def _span_labels(span: Span, scheme: SpanScheme) -> list[str]:
    length = span.end - span.start
    if scheme == "BIO":
        prefixes = "B" + "I" * (length - 1)
    else:
        prefixes = "S" if length == 1 else "B" + "I" * (length - 2) + "E"
    return [f"{prefix}-{span.label}" for prefix in prefixes]


def _decode_bio(labels: Sequence[str]) -> tuple[Span, ...]:
    spans: list[Span] = []
    start, open_kind = 0, ""
    for index, label in enumerate((*labels, OUTSIDE)):
        prefix, kind = split_label(label)
        if prefix == "I" and kind == open_kind:
            continue
        if open_kind:
            spans.append(Span(start, index, open_kind))
        start, open_kind = index, kind if prefix == "B" else ""
    return tuple(spans)


def _decode_bioes(labels: Sequence[str]) -> tuple[Span, ...]:
    spans: list[Span] = []
    start, open_kind = 0, ""
    for index, label in enumerate(labels):
        prefix, kind = split_label(label)
        if prefix == "S":
            spans.append(Span(index, index + 1, kind))
        if prefix == "E" and kind == open_kind:
            spans.append(Span(start, index + 1, kind))
        if prefix == "B":
            start, open_kind = index, kind
        elif prefix != "I" or kind != open_kind:
            open_kind = ""
    return tuple(spans)
