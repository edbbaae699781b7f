"""Spans and their labels in BIO2 and BIOES: encoding, strict decoding, conversion and legal transitions.

The decoder is strict and type-consistent, as seqeval's strict mode: a span counts only if all of its labels are in
place, and a malformed piece yields no span. ``schemes`` puts these functions and word labels behind one interface.

Label schemes: what a tagger's labels mean, and how they are read, written, scored and described.

Corpora and predictions are written in one form whichever scheme a tagger uses: BIO2 for entities, plain labels for
words. Everything that differs between entities and word labels is decided here.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
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


SchemeName = Literal["BIO", "BIOES", "TOKENS"]
"""The name of a scheme in configurations and saved taggers."""


@dataclass(frozen=True, slots=True)
class LabelScheme:
    """What a tagger's labels mean."""

    name: SchemeName
    """The scheme's name in configurations and saved taggers."""
    spans: SpanScheme | None
    """How labels encode entities; None if each word has a label of its own, such as a part of speech or a supertag,
    which has no prefix and may follow any other."""

    @property
    def has_entities(self) -> bool:
        """Whether labels encode entities; otherwise each word has a label of its own."""
        return self.spans is not None

    @property
    def measure(self) -> Literal["F1", "accuracy"]:
        """The score of predicted labels: F1 of entities or accuracy of words."""
        return "F1" if self.has_entities else "accuracy"

    @property
    def rule(self) -> str:
        """Which labels make a complete label set, in words."""
        return f"O and all of each type in {self.name}" if self.has_entities else "one label or more, sorted"

    def types(self, labels: Iterable[str]) -> set[str]:
        """Collect what labels distinguish: entity types, or the labels themselves."""
        return {kind for label in labels if (kind := split_label(label)[1])} if self.has_entities else set(labels)

    def label_set(self, types: Iterable[str]) -> tuple[str, ...]:
        """Return every label for these types, in the order in which a vocabulary numbers them."""
        ordered = sorted(set(types))
        if not self.has_entities:
            return tuple(ordered)
        prefixes = "BI" if self.spans == "BIO" else "BIES"
        return (OUTSIDE, *(f"{prefix}-{kind}" for kind in ordered for prefix in prefixes))

    def from_gold(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Convert gold labels to this scheme; malformed pieces of entities become ``O``."""
        return tuple(labels) if self.spans is None else convert_labels(labels, source="BIO", target=self.spans)

    def decode(self, labels: Sequence[str]) -> tuple[tuple[str, ...], tuple[Span, ...]]:
        """Return labels of this scheme in the form of gold labels, without malformed pieces, and the entities."""
        spans = self.entities(labels)
        return encode_spans(spans, len(labels), "BIO") if self.has_entities else tuple(labels), spans

    def scored_spans(self, gold_labels: Sequence[str]) -> tuple[Span, ...]:
        """Return what a sentence is scored by, from labels in gold form: its entities, or each word by itself."""
        if self.has_entities:
            return decode_spans(gold_labels, "BIO")
        return tuple(Span(place, place + 1, label) for place, label in enumerate(gold_labels))

    def entities(self, labels: Sequence[str]) -> tuple[Span, ...]:
        """Decode the well-formed entities of a sentence, in order."""
        return () if self.spans is None else decode_spans(labels, self.spans)

    def entity_pieces(self, labels: Sequence[str]) -> tuple[Span, ...]:
        """Decode the entities of a part of a sentence, including those cut off at its ends."""
        if self.spans is None:
            return ()
        first, last = (split_label(label) for label in (labels[0], labels[-1]))
        before = [f"B-{first[1]}"] if first[0] in {"I", "E"} else []
        after = [f"E-{last[1]}"] if self.spans == "BIOES" and last[0] in {"B", "I"} else []
        shift, length = len(before), len(labels)
        spans = decode_spans([*before, *labels, *after], self.spans)
        return tuple(Span(max(0, span.start - shift), min(span.end - shift, length), span.label) for span in spans)

    def continuation(self, entity_type: str) -> str | None:
        """Return the label by which the next word would prolong an entity; None if the entity's own labels end it."""
        return f"I-{entity_type}" if self.spans == "BIO" else None

    def allows(self, left: str | None, right: str | None) -> bool:
        """Return whether ``right`` may follow ``left``; None is the sentence's start or end."""
        return self.spans is None or is_legal_transition(left, right, self.spans)

    def transitions(self, labels: Sequence[str]) -> list[list[bool]]:
        """Tabulate ``allows`` for all pairs of labels; rows are left labels.

        Labels of different types may follow each other exactly where the left may end a sentence and the right may
        begin one. So only pairs of the same type are checked one by one, and a thousand labels need no million calls.
        """
        starts = [self.allows(None, label) for label in labels]
        none = [False] * len(labels)
        rows = [list(starts if self.allows(label, None) else none) for label in labels]
        by_type: defaultdict[str, list[int]] = defaultdict(list)
        for number, label in enumerate(labels if self.has_entities else ()):
            by_type[split_label(label)[1]].append(number)
        for numbers in by_type.values():
            for left, right in product(numbers, repeat=2):
                rows[left][right] = self.allows(labels[left], labels[right])
        return rows


BIO = LabelScheme("BIO", "BIO")
BIOES = LabelScheme("BIOES", "BIOES")
TOKENS = LabelScheme("TOKENS", None)


def label_scheme(name: str) -> LabelScheme:
    """Return the scheme with a name; raise ValueError for an unknown one."""
    for scheme in (BIO, BIOES, TOKENS):
        if scheme.name == name:
            return scheme
    raise ValueError(f"scheme: expected BIO, BIOES or TOKENS, got {name!r}")
