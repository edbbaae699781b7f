"""A sweep of the uncertainty threshold over a dev set (Ye et al., 2021, figure 6)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.evaluation.metrics import gold_sequences, span_scores
from concord.models.taggers.token_table import TokenTable

STEP = 0.05
REFINE_ALL = -1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ThresholdScore:
    """Strict span F1, or the accuracy of token labels, in percent at a threshold in nats."""

    threshold: float
    score: float


def threshold_grid(labels: int) -> tuple[float, ...]:
    """Return the thresholds to try: all refined, 0 to ln L in steps of 0.05 nats, none refined."""
    most = math.log(labels)
    steps = [round(STEP * number, 2) for number in range(int(most / STEP) + 1)]
    return (REFINE_ALL, *steps, math.ceil(most / STEP + 1) * STEP)


def sweep_threshold(
    table: TokenTable, documents: Sequence[Sequence[Sentence]], vocabulary: Vocabulary
) -> list[ThresholdScore]:
    """Score every threshold of the grid from one pass in which stage two refined every word.

    What stage two predicts for a word does not depend on the threshold, so one pass is enough. The table is that of
    ``tabulate(documents, threshold=REFINE_ALL)``.
    """
    gold = gold_sequences(documents)

    def span_f1(labels: torch.Tensor) -> float:
        return span_scores(gold, label_sequences(labels, documents, vocabulary))["all"].f1

    score = span_f1 if vocabulary.scheme.has_entities else _accuracy(documents, vocabulary)
    grid = threshold_grid(len(vocabulary.labels))
    return [ThresholdScore(threshold=threshold, score=score(labels_at(table, threshold))) for threshold in grid]


def mean_curve(curves: Sequence[Sequence[ThresholdScore]]) -> list[ThresholdScore]:
    """Return the mean score of several corpora at each threshold of the grid."""
    return [
        ThresholdScore(threshold=entries[0].threshold, score=sum(entry.score for entry in entries) / len(entries))
        for entries in zip(*curves, strict=True)
    ]


def best_threshold(curve: Sequence[ThresholdScore]) -> ThresholdScore:
    """Return the best entry; ties go to the largest threshold, which refines the fewest words."""
    return max(curve, key=lambda entry: (entry.score, entry.threshold))


def labels_at(table: TokenTable, threshold: float) -> torch.Tensor:
    """Return the number of each word's label: stage two's if the draft's uncertainty is above the threshold."""
    return torch.where(table.uncertainty > threshold, table.label, table.draft)


def label_sequences(
    labels: torch.Tensor, documents: Sequence[Sequence[Sentence]], vocabulary: Vocabulary
) -> list[tuple[str, ...]]:
    """Turn a column of a token table into one label sequence per sentence, in the notation of gold labels."""
    names = (vocabulary.labels[number] for number in labels.tolist())
    lengths = [len(sentence.words) for document in documents for sentence in document]
    return [vocabulary.scheme.to_gold(list(islice(names, length))) for length in lengths]


def _accuracy(documents: Sequence[Sequence[Sentence]], vocabulary: Vocabulary) -> Callable[[torch.Tensor], float]:
    # Compares numbers: the grid grows with the number of labels, and comparing text takes seconds for a thousand.
    numbers = {label: number for number, label in enumerate(vocabulary.labels)}
    gold = torch.tensor(
        [numbers.get(label, -1) for document in documents for sentence in document for label in sentence.labels or ()],
        dtype=torch.int64,
    )

    def score(labels: torch.Tensor) -> float:
        return 100.0 * float((labels == gold).sum()) / max(1, len(gold))

    return score
