"""Reliability of probabilities: calibration error, Brier score, and risk against coverage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

BINS = 15
COVERAGES = (0.95, 0.9)
Binning = Literal["mass", "width"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """Predictions of similar probability: their mean probability and the share that is right, each 0..1."""

    size: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """The score of the most certain documents."""

    whole: float
    """Score of all documents, in percent."""
    at: dict[float, float]
    """Share of the documents that are kept, 0..1 -> their score, in percent."""
    risk_area: float
    """Area under the risk-coverage curve: the mean of 1 - score over all numbers of kept documents, 0..1."""


def reliability(probabilities: np.ndarray, right: np.ndarray, *, binning: Binning = "mass") -> list[Bin]:
    """Split predictions by probability into 15 bins of equal mass or equal width; empty bins are left out.

    Both arrays have shape ``(N,)``; ``right`` is bool.
    """
    order = np.argsort(probabilities, kind="stable")
    if binning == "mass":
        groups = np.array_split(order, BINS)
    else:
        edges = np.searchsorted(probabilities[order], np.linspace(0, 1, BINS + 1)[1:-1], side="right")
        groups = np.split(order, edges)
    return [
        Bin(size=len(group), confidence=float(probabilities[group].mean()), accuracy=float(right[group].mean()))
        for group in groups
        if len(group)
    ]


def expected_calibration_error(probabilities: np.ndarray, right: np.ndarray, *, binning: Binning = "mass") -> float:
    """Return the mean gap between confidence and accuracy of bins, weighted by size, 0..1 (Naeini et al., 2015)."""
    bins = reliability(probabilities, right, binning=binning)
    total = sum(entry.size for entry in bins)
    return sum(entry.size * abs(entry.confidence - entry.accuracy) for entry in bins) / max(1, total)


def brier_score(probabilities: np.ndarray, right: np.ndarray) -> float:
    """Return the mean squared gap between probability and outcome, 0..1; 0 without predictions."""
    return float(np.square(probabilities - right).mean()) if len(right) else 0.0


def coverage(confidences: np.ndarray, counts: np.ndarray, *, kept: Sequence[float] = COVERAGES) -> Coverage:
    """Score the most certain documents: the F1 of the sums of their counts.

    Args:
        confidences: of each document, shape ``(D,)``; only their order matters, and ties keep theirs.
        counts: gold, predicted and correct of each document, shape ``(D, 3)``; for words, with as many in gold as
            predicted, the F1 is the accuracy.
    """
    sums = counts[np.argsort(-confidences, kind="stable")].cumsum(axis=0)
    mentioned = sums[:, 0] + sums[:, 1]
    # Documents without gold and predicted entities have no error.
    scores = np.where(mentioned > 0, 200.0 * sums[:, 2] / np.maximum(mentioned, 1), 100.0)
    return Coverage(
        whole=float(scores[-1]),
        at={share: float(scores[int(np.ceil(share * len(scores))) - 1]) for share in kept},
        risk_area=float((1 - scores / 100.0).mean()),
    )
