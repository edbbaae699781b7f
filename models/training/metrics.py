"""Scores: strict span F1, and seqeval's strict F1 beside it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from models.labels import decode_spans


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Precision, recall and F1 in percent, with their counts."""

    gold: int
    predicted: int
    correct: int

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


def span_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> SpanScores:
    """Score BIO2 label sequences by exact spans and types.

    Raises:
        ValueError: when the two have not the same number of sentences or words.
    """
    counts: dict[str, Counter[str]] = {"gold": Counter(), "predicted": Counter(), "correct": Counter()}
    for number, (wanted, found) in enumerate(zip(gold, predicted, strict=True)):
        if len(wanted) != len(found):
            raise ValueError(f"sentence {number}: expected {len(wanted)} labels, got {len(found)}")
        wanted_spans, found_spans = set(decode_spans(wanted, "BIO")), set(decode_spans(found, "BIO"))
        counts["gold"].update(span.label for span in wanted_spans)
        counts["predicted"].update(span.label for span in found_spans)
        counts["correct"].update(span.label for span in wanted_spans & found_spans)
    kinds = sorted(counts["gold"].keys() | counts["predicted"].keys())
    by_type = {
        kind: Scores(gold=counts["gold"][kind], predicted=counts["predicted"][kind], correct=counts["correct"][kind])
        for kind in kinds
    }
    overall = Scores(
        gold=counts["gold"].total(), predicted=counts["predicted"].total(), correct=counts["correct"].total()
    )
    return SpanScores(overall=overall, by_type=by_type)


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
