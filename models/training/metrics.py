"""Scores: strict span F1 and seqeval's strict F1 beside it for entities, accuracy for token labels."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from models.labels import Span, decode_spans

Grouping = Callable[[int, Span], str]
"""Names the group of a span, given the number of its sentence."""


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


def grouped_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], group: Grouping
) -> dict[str, Scores]:
    """Score BIO2 label sequences by exact spans and types, each group of spans by itself.

    A span has one group, whichever side it was read off, so the groups sum to the whole.

    Returns:
        Scores by the name of the group, in sorted order.

    Raises:
        ValueError: when the two have not the same number of sentences or words.
    """
    wanted, found, right = Counter[str](), Counter[str](), Counter[str]()
    for number, (wanted_labels, found_labels) in enumerate(_paired(gold, predicted)):
        wanted_spans, found_spans = set(decode_spans(wanted_labels, "BIO")), set(decode_spans(found_labels, "BIO"))
        wanted.update(group(number, span) for span in wanted_spans)
        found.update(group(number, span) for span in found_spans)
        right.update(group(number, span) for span in wanted_spans & found_spans)
    return _scores(wanted, found, right)


def token_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> TokenScores:
    """Score token labels word by word.

    Raises:
        ValueError: when the two have not the same number of sentences or words.
    """
    wanted, found, right = Counter[str](), Counter[str](), Counter[str]()
    for wanted_labels, found_labels in _paired(gold, predicted):
        wanted.update(wanted_labels)
        found.update(found_labels)
        right.update(one for one, other in zip(wanted_labels, found_labels, strict=True) if one == other)
    return TokenScores(words=wanted.total(), correct=right.total(), by_label=_scores(wanted, found, right))


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


def _paired(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    for number, (wanted, found) in enumerate(zip(gold, predicted, strict=True)):
        if len(wanted) != len(found):
            raise ValueError(f"sentence {number}: expected {len(wanted)} labels, got {len(found)}")
        yield wanted, found


def _scores(gold: Counter[str], predicted: Counter[str], correct: Counter[str]) -> dict[str, Scores]:
    return {
        name: Scores(gold=gold[name], predicted=predicted[name], correct=correct[name])
        for name in sorted(gold.keys() | predicted.keys())
    }
