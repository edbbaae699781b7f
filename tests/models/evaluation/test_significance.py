"""Significance tests over documents, for systems that are equal, better, or better only on average."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.evaluation.significance import (
    detectable_difference,
    f1,
    holm,
    paired_bootstrap,
    randomisation_test,
)


def counts(correct: list[list[int]], *, gold: int = 4) -> np.ndarray:
    """Return counts of seeds x units, with this many gold and predicted names in every unit."""
    found = np.array(correct)
    return np.stack([np.full_like(found, gold), np.full_like(found, gold), found], axis=-1)


def test_f1_is_that_of_summed_counts() -> None:
    assert f1(np.array([4, 6, 3])) == pytest.approx(60.0)
    assert f1(np.array([0, 0, 0])) == 0.0


def test_constant_gain_in_every_unit_is_the_difference() -> None:
    worse = counts([[1, 2, 0, 3, 1, 2] * 20])
    better = worse + np.array([0, 0, 1])
    found = paired_bootstrap(better, worse)
    assert found.mean == pytest.approx(25.0)
    assert found.low == pytest.approx(25.0)
    assert found.high == pytest.approx(25.0)
    assert (found.verdict, paired_bootstrap(worse, better).verdict) == ("better", "worse")


def test_gain_from_few_units_is_undecided() -> None:
    worse = counts([[2] * 60])
    better = counts([[4, 4, 4, 0, 0, *[2] * 54, 3]])
    found = paired_bootstrap(better, worse)
    assert found.mean > 0
    assert found.verdict == "undecided"


def test_gain_from_one_seed_is_undecided() -> None:
    units = 200
    lucky = counts([[3] * units, [1] * units, [1] * units])
    steady = counts([[1] * units] * 3)
    found = paired_bootstrap(lucky, steady)
    assert found.mean == pytest.approx(100 / 6)
    assert found.low == pytest.approx(0.0)
    assert found.verdict == "undecided"


@pytest.mark.slow
def test_interval_agrees_with_the_formula() -> None:
    # One seed and units of one word: the difference is a mean of paired differences, whose standard error is known.
    chance = np.random.default_rng(7)
    first, second = (counts([list(chance.integers(0, 2, 2000))], gold=1) for _ in range(2))
    found = paired_bootstrap(first, second)
    paired = 100.0 * (first[0, :, 2] - second[0, :, 2])
    error = paired.std(ddof=1) / np.sqrt(paired.size)
    assert found.mean == pytest.approx(paired.mean())
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.08)


def test_interval_over_seeds_is_that_of_their_mean() -> None:
    # All units are alike, so only the trainings differ: the standard error of a mean of 30 scores.
    chance = np.random.default_rng(8)
    first = counts([[right] * 20 for right in chance.integers(0, 5, 30)])
    found = paired_bootstrap(first, counts([[2] * 20]))
    error = f1(first.sum(axis=1)).std() / np.sqrt(30)
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.08)


def test_interval_is_the_same_at_each_call() -> None:
    chance = np.random.default_rng(5)
    first, second = (counts([list(chance.integers(0, 5, 50)) for _ in range(3)]) for _ in range(2))
    assert paired_bootstrap(first, second) == paired_bootstrap(first, second)


def test_counts_over_other_units_are_rejected() -> None:
    with pytest.raises(ValueError, match="expected as many units on both sides"):
        paired_bootstrap(counts([[1, 2]]), counts([[1, 2, 3]]))
    with pytest.raises(ValueError, match="expected at least one unit and one seed"):
        paired_bootstrap(counts([[]]), counts([[]]))
    with pytest.raises(ValueError, match="expected the same units"):
        randomisation_test(np.zeros((2, 3), dtype=int), np.zeros((3, 3), dtype=int))


def outputs(units: int, *, right: tuple[float, float], seed: int, names: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Draw counts of two systems that find each name independently with these probabilities; document sizes vary."""
    chance = np.random.default_rng(seed)
    gold = chance.integers(0, 2 * names, units)
    pair = []
    for share in right:
        correct = chance.binomial(gold, share)
        pair.append(np.stack([gold, correct + chance.binomial(gold, 0.2), correct], axis=-1))
    return pair[0], pair[1]


def test_interval_widens_with_lower_alpha() -> None:
    first, second = (found[None] for found in outputs(60, right=(0.5, 0.6), seed=4))
    narrow, wide = (paired_bootstrap(first, second, alpha=alpha) for alpha in (0.2, 0.01))
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high


@pytest.mark.slow
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 6), min_size=1, max_size=6))
def test_p_value_of_few_units_is_the_share_of_all_swaps(rows: list[tuple[int, ...]]) -> None:
    first, second = np.array(rows).reshape(-1, 2, 3).transpose(1, 0, 2)

    def difference(swaps: tuple[bool, ...]) -> float:
        chosen = np.array(swaps)[:, None]
        left, right = np.where(chosen, first, second), np.where(chosen, second, first)
        return abs(float(f1(left.sum(axis=0)) - f1(right.sum(axis=0))))

    every = [difference(swaps) for swaps in product((False, True), repeat=len(rows))]
    expected = np.mean(np.array(every) >= every[0] - 1e-9)
    assert randomisation_test(first, second) == pytest.approx(expected)


def test_random_swaps_approximate_all_swaps() -> None:
    first, second = outputs(16, right=(0.4, 0.7), seed=11)
    exact = randomisation_test(first, second)
    # Units with one wrong name on alternating sides: too many to enumerate, and they cancel out.
    idle = np.array([[0, 1, 0], [0, 2, 0]] * 4)
    first, second = np.concatenate([first, idle]), np.concatenate([second, idle[::-1]])
    assert randomisation_test(first, second, rounds=20_000) == pytest.approx(exact, abs=0.05)


def test_p_value_of_equal_systems_is_one() -> None:
    same, _ = outputs(50, right=(0.5, 0.5), seed=2)
    assert randomisation_test(same, same) == 1.0
    assert detectable_difference(same, same) is None


def test_p_value_is_symmetric_and_determined_by_the_seed() -> None:
    first, second = outputs(80, right=(0.5, 0.6), seed=6)
    p = randomisation_test(first, second, seed=3)
    assert p == randomisation_test(second, first, seed=3)
    assert 1 / 10_001 <= p < 1


@pytest.mark.slow
def test_p_value_is_uniform_under_the_null_hypothesis() -> None:
    from scipy.stats import binom, kstest

    first, second = outputs(120, right=(0.5, 0.75), seed=1)
    chance = np.random.default_rng(2)
    p_values = []
    for seed in range(300):
        swapped = chance.integers(0, 2, (120, 1))
        pair = np.where(swapped, second, first), np.where(swapped, first, second)
        p_values.append(randomisation_test(*pair, rounds=999, seed=seed))
    assert kstest(p_values, "uniform").pvalue > 0.01
    low, high = binom.interval(0.99, 300, 0.05)
    assert low <= sum(p <= 0.05 for p in p_values) <= high


def test_holm_corrects_p_values_stepwise() -> None:
    # Ranked 0.005, 0.01, 0.03, 0.04: multiplied by 4, 3, 2 and 1, and never decreasing.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.slow
@pytest.mark.parametrize("names", [1, 6])
def test_detectable_difference_is_found_with_the_given_power(names: int) -> None:
    # Two systems whose true difference equals the detectable one of their data.
    units, base = 300, 0.6

    def drawn(gain: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        return outputs(units, right=(base, base + gain), seed=seed, names=names)

    gain = 0.05
    for _ in range(5):
        many = outputs(100_000, right=(base, base + gain), seed=0, names=names)
        true = float(f1(many[1].sum(axis=0)) - f1(many[0].sum(axis=0)))
        detectable = [detectable_difference(*drawn(gain, seed)) or np.nan for seed in range(40)]
        gain *= float(np.mean(detectable)) / true
    found = [randomisation_test(*drawn(gain, 1000 + seed), rounds=499) <= 0.05 for seed in range(600)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.05)


def test_detectable_difference_shrinks_with_more_documents() -> None:
    first, second = outputs(100, right=(0.5, 0.6), seed=5)
    once = detectable_difference(first, second)
    nine_times = detectable_difference(np.tile(first, (9, 1)), np.tile(second, (9, 1)))
    assert once is not None
    assert nine_times == pytest.approx(once / 3, rel=0.01)
    assert detectable_difference(first[:1], second[:1]) is None
