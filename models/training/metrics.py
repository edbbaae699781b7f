"""Scores: strict span F1, seqeval's strict F1 beside it, and the consistency of recurring names."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from models.data import normalize_digits
from models.labels import Span, decode_spans


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Consistency:
    """How far the occurrences of a name within a document agree.

    Attributes:
        names: names that occur at least twice in their document, one count a document and name.
        occurrences: their occurrences.
        agreeing: occurrences that carry their name's most frequent label.
    """

    names: int
    occurrences: int
    agreeing: int

    @property
    def share(self) -> float:
        """Percent of the occurrences that agree; 100 where no name recurs."""
        return 100.0 * self.agreeing / self.occurrences if self.occurrences else 100.0


def name_consistency(
    documents: Sequence[Sequence[tuple[Sequence[str], Sequence[str]]]],
    *,
    names: Sequence[Sequence[Sequence[str]]] | None = None,
) -> Consistency:
    """Measure whether recurring names keep their label within a document.

    A name is the word sequence of a span, lower-cased with digits as 0. All places where its words stand in a row
    count as occurrences, labelled with the span's type where a span covers just these words and with none elsewhere.

    Args:
        documents: words and BIO2 labels of each sentence of each document.
        names: label sequences whose spans say what a name is (gold labels, say); those of ``documents`` if None.
    """
    counted = occurrences = agreeing = 0
    for number, document in enumerate(documents):
        labelled = (
            document if names is None else list(zip((words for words, _ in document), names[number], strict=True))
        )
        for labels in _occurrence_labels(document, labelled).values():
            if len(labels) < 2:
                continue
            counted += 1
            occurrences += len(labels)
            agreeing += Counter(labels).most_common(1)[0][1]
    return Consistency(names=counted, occurrences=occurrences, agreeing=agreeing)


def _occurrence_labels(
    document: Sequence[tuple[Sequence[str], Sequence[str]]],
    naming: Sequence[tuple[Sequence[str], Sequence[str]]],
) -> dict[tuple[str, ...], list[str]]:
    names = {_key(words[span.start : span.end]) for words, labels in naming for span in decode_spans(labels, "BIO")}
    by_length: defaultdict[int, set[tuple[str, ...]]] = defaultdict(set)
    for name in names:
        by_length[len(name)].add(name)
    found: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for words, labels in document:
        spans = {(span.start, span.end): span for span in decode_spans(labels, "BIO")}
        keys = _key(words)
        for length, wanted in by_length.items():
            for start in range(len(keys) - length + 1):
                name = keys[start : start + length]
                if name in wanted:
                    found[name].append(_span_type(spans.get((start, start + length))))
    return found


def _span_type(span: Span | None) -> str:
    return span.label if span is not None else ""


def _key(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(normalize_digits(word).lower() for word in words)
