"""The paired bootstrap: what it says of systems that are equal, better, or better on average only."""

import numpy as np
import pytest

from models.training.significance import Difference, f1, paired_bootstrap


def counts(correct: list[list[int]], *, gold: int = 4) -> np.ndarray:
    """Give counts of seeds x units where every unit has so many gold and predicted names."""
    found = np.array(correct)
    return np.stack([np.full_like(found, gold), np.full_like(found, gold), found], axis=-1)


def test_f1_is_that_of_summed_counts() -> None:
    assert f1(np.array([4, 6, 3])) == pytest.approx(60.0)
    assert f1(np.array([0, 0, 0])) == 0.0


def test_a_system_is_not_better_than_itself() -> None:
    chance = np.random.default_rng(3)
    same = counts([list(chance.integers(0, 5, 80))])
    assert paired_bootstrap(same, same) == Difference(mean=0.0, low=0.0, high=0.0)


def test_one_more_right_in_every_unit_is_better_by_just_that() -> None:
    worse = counts([[1, 2, 0, 3, 1, 2] * 20])
    better = worse + np.array([0, 0, 1])
    found = paired_bootstrap(better, worse)
    assert found.mean == pytest.approx(25.0)
    assert found.low == pytest.approx(25.0)
    assert found.high == pytest.approx(25.0)
    assert (found.verdict, paired_bootstrap(worse, better).verdict) == ("better", "worse")


def test_a_lead_that_rests_on_few_units_is_undecided() -> None:
    worse = counts([[2] * 60])
    better = counts([[4, 4, 4, 0, 0, *[2] * 54, 3]])
    found = paired_bootstrap(better, worse)
    assert found.mean > 0
    assert found.verdict == "undecided"


def test_a_lead_of_one_lucky_training_is_undecided() -> None:
    units = 200
    lucky = counts([[3] * units, [1] * units, [1] * units])
    steady = counts([[1] * units] * 3)
    found = paired_bootstrap(lucky, steady)
    assert found.mean == pytest.approx(100 / 6)
    assert found.low == pytest.approx(0.0)
    assert found.verdict == "undecided"


def test_the_interval_is_that_of_the_formula_where_there_is_one() -> None:
    # One seed, units of one word: the difference is a mean of paired differences, whose standard error is known.
    chance = np.random.default_rng(7)
    first, second = (counts([list(chance.integers(0, 2, 2000))], gold=1) for _ in range(2))
    found = paired_bootstrap(first, second, resamples=4000)
    paired = 100.0 * (first[0, :, 2] - second[0, :, 2])
    error = paired.std(ddof=1) / np.sqrt(paired.size)
    assert found.mean == pytest.approx(paired.mean())
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.08)


def test_the_interval_over_trainings_is_that_of_their_mean() -> None:
    # All units are alike, so only the trainings differ: the standard error of a mean of 30 scores.
    chance = np.random.default_rng(8)
    first = counts([[right] * 20 for right in chance.integers(0, 5, 30)])
    found = paired_bootstrap(first, counts([[2] * 20]), resamples=4000)
    error = f1(first.sum(axis=1)).std() / np.sqrt(30)
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.08)


def test_the_same_seed_gives_the_same_interval() -> None:
    chance = np.random.default_rng(5)
    first, second = (counts([list(chance.integers(0, 5, 50)) for _ in range(3)]) for _ in range(2))
    assert paired_bootstrap(first, second, seed=9) == paired_bootstrap(first, second, seed=9)


def test_counts_over_other_units_are_refused() -> None:
    with pytest.raises(ValueError, match="expected as many units on both sides"):
        paired_bootstrap(counts([[1, 2]]), counts([[1, 2, 3]]))
    with pytest.raises(ValueError, match="expected one unit and one seed or more"):
        paired_bootstrap(counts([[]]), counts([[]]))
