"""Label schemes: what a tagger's labels mean, and how they are read, written, scored and described.

Corpora and predictions are written in one form whatever a tagger uses inside: BIO2 for entities, plain labels for
words. Everything that differs between entities and word labels is asked of the scheme.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

from typing_extensions import override

from concord.models.labels import (
    OUTSIDE,
    Span,
    SpanScheme,
    convert_labels,
    decode_pieces,
    decode_spans,
    is_legal_transition,
    split_label,
)

SchemeName = Literal["BIO", "BIOES", "TOKENS"]
"""The name of a scheme in configurations and saved taggers."""


class LabelScheme(ABC):
    """What a tagger's labels mean.

    Attributes:
        name: the scheme's name in configurations and saved taggers.
        has_entities: whether labels make up entities; otherwise each word has a label of its own.
        measure: the score of predicted labels: ``F1`` of entities or ``accuracy`` of words.
    """

    name: SchemeName
    has_entities: ClassVar[bool]
    measure: ClassVar[Literal["F1", "accuracy"]]

    @property
    @abstractmethod
    def rule(self) -> str:
        """Which labels make a complete label set, in words."""

    @abstractmethod
    def types(self, labels: Iterable[str]) -> set[str]:
        """Collect what labels tell apart: entity types, or the labels themselves."""

    @abstractmethod
    def label_set(self, types: Iterable[str]) -> tuple[str, ...]:
        """Return every label for these types, in the order in which a vocabulary numbers them."""

    @abstractmethod
    def from_gold(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Convert gold labels to this scheme; malformed pieces of entities become ``O``."""

    @abstractmethod
    def to_gold(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Convert labels of this scheme to the form of gold labels; malformed pieces of entities become ``O``."""

    @abstractmethod
    def entities(self, labels: Sequence[str]) -> tuple[Span, ...]:
        """Decode the well-formed entities of a sentence, in order."""

    @abstractmethod
    def entity_pieces(self, labels: Sequence[str]) -> tuple[Span, ...]:
        """Decode the entities of a part of a sentence, including those cut off at its ends."""

    @abstractmethod
    def continuation(self, entity_type: str) -> str | None:
        """Return the label by which the next word would prolong an entity; None if the entity's own labels end it."""

    @abstractmethod
    def scored_spans(self, gold_labels: Sequence[str]) -> tuple[Span, ...]:
        """Return what a sentence is scored by, from labels in gold form: its entities, or each word by itself."""

    @abstractmethod
    def allows(self, left: str | None, right: str | None) -> bool:
        """Return whether ``right`` may follow ``left``; None stands for the sentence's start or end."""

    def transitions(self, labels: Sequence[str]) -> list[list[bool]]:
        """Tabulate ``allows`` for all pairs of labels; rows are left labels.

        Labels of different types may follow each other exactly where the left may end a sentence and the right may
        begin one. So only pairs of the same type are checked one by one, and a thousand labels need no million calls.
        """
        starts = [self.allows(None, label) for label in labels]
        none = [False] * len(labels)
        rows = [list(starts if self.allows(label, None) else none) for label in labels]
        for numbers in self._groups(labels):
            for left, right in product(numbers, repeat=2):
                rows[left][right] = self.allows(labels[left], labels[right])
        return rows

    def _groups(self, labels: Sequence[str]) -> Iterable[Sequence[int]]:
        """Group the labels whose transitions depend on each other; returns their numbers."""
        del labels
        return ()


@dataclass(frozen=True, slots=True)
class EntityLabels(LabelScheme):
    """Labels with a prefix that says where in an entity a word is."""

    name: SpanScheme
    has_entities: ClassVar[bool] = True
    measure: ClassVar[Literal["F1", "accuracy"]] = "F1"

    @property
    @override
    def rule(self) -> str:
        return f"O and all of each type in {self.name}"

    @override
    def types(self, labels: Iterable[str]) -> set[str]:
        return {kind for label in labels if (kind := split_label(label)[1])}

    @override
    def label_set(self, types: Iterable[str]) -> tuple[str, ...]:
        prefixes = "BI" if self.name == "BIO" else "BIES"
        return (OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(set(types)) for prefix in prefixes))

    @override
    def from_gold(self, labels: Sequence[str]) -> tuple[str, ...]:
        return convert_labels(labels, source="BIO", target=self.name)

    @override
    def to_gold(self, labels: Sequence[str]) -> tuple[str, ...]:
        return convert_labels(labels, source=self.name, target="BIO")

    @override
    def entities(self, labels: Sequence[str]) -> tuple[Span, ...]:
        return decode_spans(labels, self.name)

    @override
    def entity_pieces(self, labels: Sequence[str]) -> tuple[Span, ...]:
        return decode_pieces(labels, self.name)

    @override
    def continuation(self, entity_type: str) -> str | None:
        return f"I-{entity_type}" if self.name == "BIO" else None

    @override
    def scored_spans(self, gold_labels: Sequence[str]) -> tuple[Span, ...]:
        return decode_spans(gold_labels, "BIO")

    @override
    def allows(self, left: str | None, right: str | None) -> bool:
        return is_legal_transition(left, right, self.name)

    @override
    def _groups(self, labels: Sequence[str]) -> Iterable[Sequence[int]]:
        by_type: defaultdict[str, list[int]] = defaultdict(list)
        for number, label in enumerate(labels):
            by_type[split_label(label)[1]].append(number)
        return by_type.values()


@dataclass(frozen=True, slots=True)
class WordLabels(LabelScheme):
    """A label of its own for each word, such as a part of speech or a supertag; any may follow any."""

    name: Literal["TOKENS"] = "TOKENS"
    has_entities: ClassVar[bool] = False
    measure: ClassVar[Literal["F1", "accuracy"]] = "accuracy"

    @property
    @override
    def rule(self) -> str:
        return "one label or more, sorted"

    @override
    def types(self, labels: Iterable[str]) -> set[str]:
        return set(labels)

    @override
    def label_set(self, types: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(types)))

    @override
    def from_gold(self, labels: Sequence[str]) -> tuple[str, ...]:
        return tuple(labels)

    @override
    def to_gold(self, labels: Sequence[str]) -> tuple[str, ...]:
        return tuple(labels)

    @override
    def entities(self, labels: Sequence[str]) -> tuple[Span, ...]:
        return ()

    @override
    def entity_pieces(self, labels: Sequence[str]) -> tuple[Span, ...]:
        return ()

    @override
    def continuation(self, entity_type: str) -> str | None:
        return None

    @override
    def scored_spans(self, gold_labels: Sequence[str]) -> tuple[Span, ...]:
        return tuple(Span(place, place + 1, label) for place, label in enumerate(gold_labels))

    @override
    def allows(self, left: str | None, right: str | None) -> bool:
        return True


BIO = EntityLabels("BIO")
BIOES = EntityLabels("BIOES")
TOKENS = WordLabels()


def label_scheme(name: str) -> LabelScheme:
    """Look up a scheme by its name.

    Raises:
        ValueError: for an unknown name.
    """
    schemes: tuple[LabelScheme, ...] = (BIO, BIOES, TOKENS)
    for scheme in schemes:
        if scheme.name == name:
            return scheme
    raise ValueError(f"scheme: expected BIO, BIOES or TOKENS, got {name!r}")
