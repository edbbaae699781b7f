"""Scores: strict span F1 and seqeval's strict F1 beside it for entities, accuracy for token labels."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from concord.models.labels import Span, decode_spans

Grouping = Callable[[int, Span], str]
"""Names the group of a span, given the number of its sentence."""

Reading = Callable[[Sequence[str]], Iterable[Span]]
"""Reads the spans off the labels of a sentence: ``entity_spans`` or ``word_spans``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Precision, recall and F1 in percent, with their counts, of spans or of words."""

    gold: int = 0
    predicted: int = 0
    correct: int = 0

    def __add__(self, other: "Scores") -> "Scores":
        """Sum the counts, so that the scores of all groups together are the micro average."""
        return Scores(
            gold=self.gold + other.gold,
            predicted=self.predicted + other.predicted,
            correct=self.correct + other.correct,
        )

    @property
    def precision(self) -> float:
        """Percent of the predicted spans that are right; 0 where there is none."""
        return 100.0 * self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Percent of the gold spans that were found; 0 where there is none."""
        return 100.0 * self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of both, in percent."""
        total = self.gold + self.predicted
        return 200.0 * self.correct / total if total else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanScores:
    """Scores over all types and for each."""

    overall: Scores
    by_type: dict[str, Scores] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScores:
    """Scores of token labels over all words and for each label; the recall of a label is its accuracy."""

    words: int
    correct: int
    by_label: dict[str, Scores] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """Percent of the words whose label is right; 0 where there is none."""
        return 100.0 * self.correct / self.words if self.words else 0.0


def span_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> SpanScores:
    """Score BIO2 label sequences by exact spans and types.

    Raises:
        ValueError: when the two have not the same number of sentences or words.
    """
    by_type = grouped_scores(gold, predicted, lambda _, span: span.label)
    return SpanScores(overall=sum(by_type.values(), Scores()), by_type=by_type)


def entity_spans(labels: Sequence[str]) -> tuple[Span, ...]:
    """Read the entities off BIO2 labels."""
    return decode_spans(labels, "BIO")


def word_spans(labels: Sequence[str]) -> tuple[Span, ...]:
    """Take token labels as spans of one word each, so that the recall of spans is the accuracy of words."""
    return tuple(Span(place, place + 1, label) for place, label in enumerate(labels))


def grouped_scores(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    group: Grouping,
    *,
    read: Reading = entity_spans,
) -> dict[str, Scores]:
    """Score label sequences by exact spans and types, each group of spans by itself.

    A span has one group, whichever side it was read off, so the groups sum to the whole.

    Returns:
        Scores by the name of the group, in sorted order.

    Raises:
        ValueError: when the two have not the same number of sentences or words.
    """
    wanted, found, right = Counter[str](), Counter[str](), Counter[str]()
    for number, (wanted_labels, found_labels) in enumerate(zip(gold, predicted, strict=True)):
        if len(wanted_labels) != len(found_labels):
            raise ValueError(f"sentence {number}: expected {len(wanted_labels)} labels, got {len(found_labels)}")
        wanted_spans, found_spans = set(read(wanted_labels)), set(read(found_labels))
        wanted.update(group(number, span) for span in wanted_spans)
        found.update(group(number, span) for span in found_spans)
        right.update(group(number, span) for span in wanted_spans & found_spans)
    return {
        name: Scores(gold=wanted[name], predicted=found[name], correct=right[name])
        for name in sorted(wanted.keys() | found.keys())
    }


def token_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> TokenScores:
    """Score token labels word by word.

    Raises:
        ValueError: when the two have not the same number of sentences or words.
    """
    by_label = grouped_scores(gold, predicted, lambda _, span: span.label, read=word_spans)
    total = sum(by_label.values(), Scores())
    return TokenScores(words=total.gold, correct=total.correct, by_label=by_label)


def seqeval_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Give seqeval's micro F1 in its strict mode for BIO2, in percent, as a second opinion."""
    from seqeval.metrics import f1_score
    from seqeval.scheme import IOB2

    value = f1_score(
        [list(labels) for labels in gold],
        [list(labels) for labels in predicted],
        mode="strict",
        scheme=IOB2,
        zero_division=0,
    )
    return 100.0 * float(value)
