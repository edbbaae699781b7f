"""Is one system better than another on the same data? A paired bootstrap over documents and seeds."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Counts = np.ndarray
"""Gold, predicted and correct of each unit (a document) for each seed, shape ``(seeds, units, 3)``, int64."""
_RESAMPLES_AT_ONCE = 250


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How much better the first of two systems is, in percentage points.

    Attributes:
        mean: difference of the scores, each the mean over its seeds.
        low, high: the interval in which 95 % of the resampled differences lie.
    """

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``better`` or ``worse`` when the interval lies on one side of 0, else ``undecided``."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "undecided"


def f1(sums: np.ndarray) -> np.ndarray:
    """Give the F1 in percent of summed counts; shape ``(..., 3)`` to ``(...)``; 0 where there is nothing.

    For token labels gold and predicted are both the number of words, so that this is the accuracy.
    """
    total = sums[..., 0] + sums[..., 1]
    return np.where(total > 0, 200.0 * sums[..., 2] / np.maximum(total, 1), 0.0)


def paired_bootstrap(
    first: Counts,
    second: Counts,
    *,
    resamples: int = 2000,
    seed: int = 1,
    score: Callable[[np.ndarray], np.ndarray] = f1,
) -> Difference:
    """Compare two systems on the same units (Efron and Tibshirani, 1993; Berg-Kirkpatrick et al., 2012).

    A resample draws units with replacement, the same for both systems, and seeds with replacement, for each system
    by itself: the interval holds both what another test set and what another training would change.

    Args:
        first, second: counts over the same units, whose seeds may differ in number.
        score: summed counts ``(..., 3)`` to a score in percent ``(...)``.

    Raises:
        ValueError: when the two are not over the same number of units, or one has no unit or no seed.
    """
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"paired_bootstrap: expected as many units on both sides, got {first.shape} and {second.shape}"
        )
    if not (first.size and second.size):
        raise ValueError("paired_bootstrap: expected one unit and one seed or more")
    chance = np.random.default_rng(seed)
    units = first.shape[1]
    drawn: list[np.ndarray] = []
    for start in range(0, resamples, _RESAMPLES_AT_ONCE):
        count = min(_RESAMPLES_AT_ONCE, resamples - start)
        weights = chance.multinomial(units, np.full(units, 1.0 / units), size=count)
        drawn.append(_resampled(first, weights, chance, score) - _resampled(second, weights, chance, score))
    low, high = np.percentile(np.concatenate(drawn), [2.5, 97.5])
    mean = score(first.sum(axis=1)).mean() - score(second.sum(axis=1)).mean()
    return Difference(mean=float(mean), low=float(low), high=float(high))


def _resampled(
    counts: Counts, weights: np.ndarray, chance: np.random.Generator, score: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Give the mean score over resampled seeds for each row of unit weights, shape ``(resamples,)``."""
    scores = score(np.einsum("ru,suc->rsc", weights, counts))
    chosen = chance.integers(counts.shape[0], size=scores.shape)
    return np.asarray(np.take_along_axis(scores, chosen, axis=1).mean(axis=1))
