"""Significance of the difference between two systems on the same data: tests and intervals over documents and seeds.

A unit is drawn or swapped as a whole: a document, or a sentence if a corpus has no documents.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

Counts = np.ndarray
"""Gold, predicted and correct counts of each unit for each seed, shape ``(seeds, units, 3)``, int64."""
UnitCounts = np.ndarray
"""The counts for one seed, shape ``(units, 3)``, int64."""
ALL_SWAPS = 16
"""With at most this many units that differ, all ways to swap them are enumerated."""
ROUNDS = 10_000
_RESAMPLES_AT_ONCE = 250
_ROUNDS_AT_ONCE = 1000
# Scores that differ by rounding errors are ties.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How much better the first of two systems is, in percentage points, with the bounds of the confidence interval.

    The score of a system is the mean over its seeds.
    """

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``better`` or ``worse`` when the interval lies on one side of 0, else ``undecided``."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "undecided"


def f1(sums: np.ndarray) -> np.ndarray:
    """Return the F1 of summed counts in percent; shape ``(..., 3)`` to ``(...)``; 0 for empty counts.

    For token labels gold and predicted are both the number of words, so that this is the accuracy.
    """
    total = sums[..., 0] + sums[..., 1]
    return np.where(total > 0, 200.0 * sums[..., 2] / np.maximum(total, 1), 0.0)


def paired_bootstrap(first: Counts, second: Counts, *, alpha: float = 0.05) -> Difference:
    """Compare two systems on the same units (Efron and Tibshirani, 1993; Berg-Kirkpatrick et al., 2012).

    A resample draws units with replacement, the same for both systems, and seeds with replacement, separately for each
    system: the interval reflects the variation of both test sets and trainings.

    Args:
        first, second: counts over the same units; the numbers of seeds may differ.
        alpha: share of the resampled differences outside the interval, half of it on each side.

    Raises:
        ValueError: when the two differ in their number of units, or one has no unit or no seed.
    """
    drawn = resampled_differences(first, second)
    low, high = np.percentile(drawn, [50 * alpha, 100 - 50 * alpha])
    mean = f1(first.sum(axis=1)).mean() - f1(second.sum(axis=1)).mean()
    return Difference(mean=float(mean), low=float(low), high=float(high))


def resampled_differences(
    first: Counts,
    second: Counts,
    *,
    resamples: int = 2000,
    score: Callable[[np.ndarray], np.ndarray] = f1,
) -> np.ndarray:
    """Return the differences of the resamples that ``paired_bootstrap`` draws, shape ``(resamples,)``.

    The score maps summed counts ``(..., 3)`` to percent ``(...)``.
    """
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"paired_bootstrap: expected as many units on both sides, got {first.shape} and {second.shape}"
        )
    if not (first.size and second.size):
        raise ValueError("paired_bootstrap: expected at least one unit and one seed")
    chance = np.random.default_rng(1)
    units = first.shape[1]
    drawn: list[np.ndarray] = []
    for start in range(0, resamples, _RESAMPLES_AT_ONCE):
        count = min(_RESAMPLES_AT_ONCE, resamples - start)
        weights = chance.multinomial(units, np.full(units, 1.0 / units), size=count)
        drawn.append(_resampled(first, weights, chance, score) - _resampled(second, weights, chance, score))
    return np.concatenate(drawn)


def randomisation_test(first: UnitCounts, second: UnitCounts, *, rounds: int = ROUNDS, seed: int = 1) -> float:
    """Return the two-sided p-value of the difference in F1 between two systems.

    If the systems are equal, the two outputs for a unit are interchangeable. Approximate randomisation (Noreen, 1989;
    for F1 see Yeh, 2000) swaps each with probability one half; p is the share of rounds whose difference is at least
    the observed one, which itself counts as a round. Units with the same counts for both systems have no influence; if
    ``ALL_SWAPS`` or fewer are left, all swaps are enumerated and p is exact.

    Raises:
        ValueError: when the two differ in their number of units.
    """
    if first.shape != second.shape:
        raise ValueError(f"randomisation_test: expected the same units, got {first.shape} and {second.shape}")
    # Swapping a unit moves its gain from one side to the other.
    gains = (second - first)[(first != second).any(axis=1)].astype(float)
    base, total = first.sum(axis=0).astype(float), (first + second).sum(axis=0)
    observed = abs(float(f1(second.sum(axis=0)) - f1(first.sum(axis=0)))) - ROUNDING

    def extreme(swaps: np.ndarray) -> int:
        sums = base + swaps @ gains
        return int((np.abs(f1(total - sums) - f1(sums)) >= observed).sum())

    if len(gains) <= ALL_SWAPS:
        every = np.arange(2 ** len(gains))[:, None] >> np.arange(len(gains)) & 1
        return extreme(every.astype(float)) / len(every)
    chance = np.random.default_rng(seed)
    found = 0
    for start in range(0, rounds, _ROUNDS_AT_ONCE):
        count = min(_ROUNDS_AT_ONCE, rounds - start)
        octets = chance.integers(256, size=(count, -(-len(gains) // 8)), dtype=np.uint8)
        found += extreme(np.unpackbits(octets, axis=1, count=len(gains)).astype(float))
    return (found + 1) / (rounds + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests (Holm, 1979): those below alpha are jointly significant at level alpha."""
    corrected = [0.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = least
    return corrected


def detectable_difference(
    first: UnitCounts, second: UnitCounts, *, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """Return the smallest true difference in F1 that a two-sided test detects with this power, in percentage points.

    It is ``(z(1 - alpha/2) + z(power)) * e``, where z are quantiles of the normal distribution and e is the standard
    error of the difference (the sample-size formula of paired tests, solved for the difference). F1 is a ratio of sums
    over units, ``200 C / T`` with ``T = gold + predicted``; in its linear approximation a unit contributes
    ``(200 c - F1 t) / T``, and the n paired differences d of these contributions yield ``e^2 = n / (n - 1) *
    sum(d^2)``. It is None with fewer than two units or if the systems differ on none: the variance is then unknown.
    """
    gains = _contributions(second) - _contributions(first)
    if len(gains) < 2 or not gains.any():
        return None
    error = float(np.sqrt(len(gains) / (len(gains) - 1) * (gains**2).sum()))
    return (NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(power)) * error


def _contributions(counts: UnitCounts) -> np.ndarray:
    """Return the first-order contribution of each unit to the F1 of all; shape ``(units,)``."""
    sizes = counts[:, 0] + counts[:, 1]
    return np.asarray((200.0 * counts[:, 2] - f1(counts.sum(axis=0)) * sizes) / max(1, sizes.sum()))


def _resampled(
    counts: Counts, weights: np.ndarray, chance: np.random.Generator, score: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the mean score over resampled seeds for each row of unit weights, shape ``(resamples,)``."""
    # In floating point, where sums of counts are exact and several times as fast.
    scores = score(np.tensordot(weights.astype(float), counts.astype(float), axes=(1, 1)))
    chosen = chance.integers(counts.shape[0], size=scores.shape)
    return np.asarray(np.take_along_axis(scores, chosen, axis=1).mean(axis=1))
