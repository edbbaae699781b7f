"""Label schemes BIO2 and BIOES, legal transitions, and the one span decoder.

The decoder is strict and type-consistent: a span counts only if every one of its labels is in place, as
seqeval's strict mode has it. A malformed piece gives no span.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

OUTSIDE = "O"
Scheme = Literal["BIO", "BIOES"]


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
    """Give every label of a scheme for the entity types, ``O`` first, types in sorted order."""
    prefixes = "BI" if scheme == "BIO" else "BIES"
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(set(kinds)) for prefix in prefixes))


def decode_spans(labels: Sequence[str], scheme: Scheme) -> tuple[Span, ...]:
    """Read the well-formed spans off a label sequence, in order."""
    return _decode_bio(labels) if scheme == "BIO" else _decode_bioes(labels)


def encode_spans(spans: Iterable[Span], length: int, scheme: Scheme) -> tuple[str, ...]:
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


def convert_labels(labels: Sequence[str], *, source: Scheme, target: Scheme) -> tuple[str, ...]:
    """Write the well-formed spans of one scheme in another; malformed pieces become ``O``."""
    return encode_spans(decode_spans(labels, source), len(labels), target)


def is_legal_transition(left: str | None, right: str | None, scheme: Scheme) -> bool:
    """Say whether ``right`` may follow ``left``; None stands for the sentence's start or end."""
    left_prefix, left_kind = split_label(left) if left is not None else (OUTSIDE, "")
    right_prefix, right_kind = split_label(right) if right is not None else (OUTSIDE, "")
    continues = right_prefix in {"I", "E"}
    if scheme == "BIO":
        return not continues or (left_prefix in {"B", "I"} and left_kind == right_kind)
    left_open = left_prefix in {"B", "I"}
    return continues == left_open and (not continues or left_kind == right_kind)


def _span_labels(span: Span, scheme: Scheme) -> list[str]:
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
