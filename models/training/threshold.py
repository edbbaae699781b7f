"""The sweep of the uncertainty threshold on a dev set (Ye et al., 2021, figure 6)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from models.base import TokenTable
from models.data import Sentence, Vocabulary
from models.labels import convert_labels
from models.training.metrics import span_scores

STEP = 0.05
REFINE_ALL = -1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ThresholdScore:
    """Strict span F1 in percent at a threshold in nats."""

    threshold: float
    f1: float


def threshold_grid(labels: int) -> tuple[float, ...]:
    """Give the thresholds to try: all refined, 0 to ln L in steps of 0.05 nats, none refined."""
    most = math.log(labels)
    steps = [round(STEP * number, 2) for number in range(int(most / STEP) + 1)]
    return (REFINE_ALL, *steps, math.ceil(most / STEP + 1) * STEP)


def sweep_threshold(
    table: TokenTable, documents: Sequence[Sequence[Sentence]], vocabulary: Vocabulary
) -> list[ThresholdScore]:
    """Score every threshold of the grid from one pass in which stage two refined every word.

    What stage two says of a word does not depend on the threshold, so one pass serves all.

    Args:
        table: from ``tabulate(documents, threshold=REFINE_ALL)``.
        documents: with gold labels.
    """
    gold = [sentence.labels or () for document in documents for sentence in document]
    curve = []
    for threshold in threshold_grid(len(vocabulary.labels)):
        labels = torch.where(table.uncertainty > threshold, table.label, table.draft)
        predicted = label_sequences(labels, documents, vocabulary)
        curve.append(ThresholdScore(threshold=threshold, f1=span_scores(gold, predicted).overall.f1))
    return curve


def best_threshold(curve: Sequence[ThresholdScore]) -> ThresholdScore:
    """Give the best entry; of equals the one with the largest threshold, which refines least."""
    return max(curve, key=lambda entry: (entry.f1, entry.threshold))


def label_sequences(
    labels: torch.Tensor, documents: Sequence[Sequence[Sentence]], vocabulary: Vocabulary
) -> list[tuple[str, ...]]:
    """Turn a column of a token table into BIO2 label sequences, one a sentence."""
    names, numbers, first = vocabulary.labels, labels.tolist(), 0
    sequences = []
    for document in documents:
        for sentence in document:
            own = [names[number] for number in numbers[first : first + len(sentence.words)]]
            first += len(sentence.words)
            sequences.append(convert_labels(own, source=vocabulary.scheme, target="BIO"))
    return sequences
