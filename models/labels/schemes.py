"""Label schemes: what a tagger's labels mean, and how they are read, written, scored and described.

Corpora and predictions are written in one form whichever scheme a tagger uses: BIO2 for entities, plain labels for
words. Everything that differs between entities and word labels is decided here.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from concord.models.labels.spans import (
    OUTSIDE,
    Span,
    SpanScheme,
    convert_labels,
    decode_pieces,
    decode_spans,
    encode_spans,
    is_legal_transition,
    split_label,
)

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

    def to_gold(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Convert labels of this scheme to the form of gold labels; malformed pieces of entities become ``O``."""
        return tuple(labels) if self.spans is None else convert_labels(labels, source=self.spans, target="BIO")

    def decode(self, labels: Sequence[str]) -> tuple[tuple[str, ...], tuple[Span, ...]]:
        """Return ``to_gold`` and ``entities`` of labels of this scheme."""
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
        return () if self.spans is None else decode_pieces(labels, self.spans)

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
