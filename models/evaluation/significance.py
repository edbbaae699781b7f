"""Is one system better than another on the same data? Tests and intervals over documents, and over seeds.

A unit is what is drawn or swapped as a whole: a document, or a sentence where a corpus has no documents.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

Counts = np.ndarray
"""Gold, predicted and correct of each unit (a document) for each seed, shape ``(seeds, units, 3)``, int64."""
UnitCounts = np.ndarray
"""The counts of one seed, shape ``(units, 3)``, int64."""
ALL_SWAPS = 16
"""Up to so many units that differ, every way to swap them is gone through."""
_RESAMPLES_AT_ONCE = 250
_ROUNDS_AT_ONCE = 1000
# Scores that are equal but for rounding count as ties.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How much better the first of two systems is, in percentage points.

    Attributes:
        mean: difference of the scores, each the mean over its seeds.
        low, high: the interval in which the resampled differences lie, but for those left out on both sides.
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
    alpha: float = 0.05,
    score: Callable[[np.ndarray], np.ndarray] = f1,
) -> Difference:
    """Compare two systems on the same units (Efron and Tibshirani, 1993; Berg-Kirkpatrick et al., 2012).

    A resample draws units with replacement, the same for both systems, and seeds with replacement, for each system
    by itself: the interval holds both what another test set and what another training would change.

    Args:
        first, second: counts over the same units, whose seeds may differ in number.
        alpha: share of the resampled differences that the interval leaves out, half of it on each side.
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
    low, high = np.percentile(np.concatenate(drawn), [50 * alpha, 100 - 50 * alpha])
    mean = score(first.sum(axis=1)).mean() - score(second.sum(axis=1)).mean()
    return Difference(mean=float(mean), low=float(low), high=float(high))


def randomisation_test(first: UnitCounts, second: UnitCounts, *, rounds: int = 10_000, seed: int = 1) -> float:
    """Give the p-value of a difference in F1 as large as this one, in either direction, between two equal systems.

    If the systems are equal, a unit's two outputs may change sides. Approximate randomisation (Noreen, 1989; for F1
    see Yeh, 2000) swaps each with probability one half; p is the share of rounds whose difference is at least the one
    observed, which counts as a round itself. Units on which the systems have the same counts play no part; where
    ``ALL_SWAPS`` or fewer are left, all swaps are gone through and p is exact.

    Raises:
        ValueError: when the two are not over the same number of units.
    """
    if first.shape != second.shape:
        raise ValueError(f"randomisation_test: expected the same units, got {first.shape} and {second.shape}")
    # A unit that is swapped takes its gain from one side to the other.
    gains = (second - first)[(first != second).any(axis=1)].astype(float)
    base, total = first.sum(axis=0).astype(float), (first + second).sum(axis=0)
    observed = abs(float(f1(second.sum(axis=0)) - f1(first.sum(axis=0)))) - _ROUNDING

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
    """Correct p-values for being several (Holm, 1979): those below alpha hold together at the level alpha."""
    corrected = [0.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = least
    return corrected


def detectable_difference(
    first: UnitCounts, second: UnitCounts, *, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """Give the least true difference in F1 that a two-sided test finds with this power, in percentage points.

    It is ``(z(1 - alpha/2) + z(power)) * e``, where z gives quantiles of the normal distribution and e is the standard
    error of the difference (the sample-size formula of paired tests, solved for the difference). F1 is a ratio of sums
    over units, ``200 C / T`` with ``T = gold + predicted``; by its linear approximation a unit moves it by
    ``(200 c - F1 t) / T``, and the n paired differences d of these moves give ``e^2 = n / (n - 1) * sum(d^2)``.

    Returns:
        None where there are fewer than two units, or the systems differ on none: nothing says how they vary then.
    """
    moves = _moves(second) - _moves(first)
    if len(moves) < 2 or not moves.any():
        return None
    error = float(np.sqrt(len(moves) / (len(moves) - 1) * (moves**2).sum()))
    return (NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(power)) * error


def _moves(counts: UnitCounts) -> np.ndarray:
    """Give how far each unit moves the F1 of all, to first order; shape ``(units,)``."""
    sizes = counts[:, 0] + counts[:, 1]
    return np.asarray((200.0 * counts[:, 2] - f1(counts.sum(axis=0)) * sizes) / max(1, sizes.sum()))


def _resampled(
    counts: Counts, weights: np.ndarray, chance: np.random.Generator, score: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Give the mean score over resampled seeds for each row of unit weights, shape ``(resamples,)``."""
    scores = score(np.einsum("ru,suc->rsc", weights, counts))
    chosen = chance.integers(counts.shape[0], size=scores.shape)
    return np.asarray(np.take_along_axis(scores, chosen, axis=1).mean(axis=1))
