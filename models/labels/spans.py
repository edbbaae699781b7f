"""Spans and their labels in BIO2 and BIOES: encoding, strict decoding, conversion and legal transitions.

The decoder is strict and type-consistent, as seqeval's strict mode: a span counts only if all of its labels are in
place, and a malformed piece yields no span. ``schemes`` puts these functions and word labels behind one interface.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

OUTSIDE = "O"
SpanScheme = Literal["BIO", "BIOES"]
BIOES_PREFIXES = {"L": "E", "U": "S", "M": "I", "W": "S"}
"""What other names of BIOES (BILOU, BMES, BMEWO) call its prefixes -> the prefix of BIOES."""


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """A labelled range of words, half-open."""

    start: int
    end: int
    label: str


@lru_cache(maxsize=4096)
def split_label(label: str) -> tuple[str, str]:
    """Split ``B-PER`` into ``("B", "PER")`` and ``O`` into ``("O", "")``; raise ValueError for any other label."""
    if label == OUTSIDE:
        return OUTSIDE, ""
    prefix, dash, kind = label.partition("-")
    if not dash or not kind or prefix not in {"B", "I", "E", "S"}:
        raise ValueError(f"label: expected O or one of B-, I-, E-, S- with a type, got {label!r}")
    return prefix, kind


def decode_spans(labels: Sequence[str], scheme: SpanScheme) -> tuple[Span, ...]:
    """Decode the well-formed spans of a label sequence, in order."""
    return _decode_bio(labels) if scheme == "BIO" else _decode_bioes(labels)


def decode_pieces(labels: Sequence[str], scheme: SpanScheme) -> tuple[Span, ...]:
    """Decode the spans of a part of a label sequence, including those cut off at its ends."""
    first, last = (split_label(label) for label in (labels[0], labels[-1]))
    before = [f"B-{first[1]}"] if first[0] in {"I", "E"} else []
    after = [f"E-{last[1]}"] if scheme == "BIOES" and last[0] in {"B", "I"} else []
    shift, length = len(before), len(labels)
    spans = decode_spans([*before, *labels, *after], scheme)
    return tuple(Span(max(0, span.start - shift), min(span.end - shift, length), span.label) for span in spans)


def encode_spans(spans: Iterable[Span], length: int, scheme: SpanScheme) -> tuple[str, ...]:
    """Encode disjoint spans as labels; raise ValueError if spans overlap or exceed the sentence."""
    labels = [OUTSIDE] * length
    for span in spans:
        if not 0 <= span.start < span.end <= length or any(label != OUTSIDE for label in labels[span.start : span.end]):
            raise ValueError(f"span {span}: expected disjoint spans within 0..{length}")
        labels[span.start : span.end] = _span_labels(span, scheme)
    return tuple(labels)


def convert_labels(labels: Sequence[str], *, source: SpanScheme, target: SpanScheme) -> tuple[str, ...]:
    """Convert labels from one scheme to another; malformed pieces become ``O``."""
    return encode_spans(decode_spans(labels, source), len(labels), target)


def is_legal_transition(left: str | None, right: str | None, scheme: SpanScheme) -> bool:
    """Return whether ``right`` may follow ``left``; None is the sentence's start or end."""
    left_prefix, left_kind = split_label(left) if left is not None else (OUTSIDE, "")
    right_prefix, right_kind = split_label(right) if right is not None else (OUTSIDE, "")
    continues = right_prefix in {"I", "E"}
    if scheme == "BIO":
        return not continues or (left_prefix in {"B", "I"} and left_kind == right_kind)
    left_open = left_prefix in {"B", "I"}
    return continues == left_open and (not continues or left_kind == right_kind)


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
        if label == OUTSIDE and not open_kind:  # nearly every word
            continue
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
        if label == OUTSIDE:  # nearly every word
            open_kind = ""
            continue
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
