"""What is fitted to a dev set: the threshold, and the guarantee of recall."""

import math

import numpy as np
import pytest

from concord.models.errors import ConfigError
from concord.models.training.fit_calibration import (
    LEAST,
    REFINE_ALL,
    best_threshold,
    find_guarantee,
    mean_recall,
    threshold_grid,
)


def test_threshold_grid_ranges_from_all_refined_to_none() -> None:
    grid = threshold_grid(7)
    assert grid[0] == REFINE_ALL
    assert grid[1:3] == (0.0, 0.05)
    assert grid[-1] > math.log(7)
    assert list(grid) == sorted(grid)


def test_best_threshold_of_a_tie_is_the_one_that_refines_least() -> None:
    assert best_threshold([{-1.0: 5.0, 0.2: 9.0, 0.4: 9.0}]) == 0.4


def population(documents: int, seed: int = 1) -> list[np.ndarray]:
    """Draw documents of unequal length and difficulty, whose names are missed together."""
    chance = np.random.default_rng(seed)
    scores = []
    for names, ease in zip(chance.geometric(0.2, documents) - 1, chance.beta(2, 1, documents), strict=True):
        probabilities = chance.beta(4 * ease + 0.1, 1.5, names)
        predicted = probabilities > 0.5
        scores.append(np.where(predicted, np.inf, np.where(probabilities < LEAST, 0.0, probabilities)))
    return scores


@pytest.mark.slow
@pytest.mark.parametrize(("documents", "recall"), [(20, 0.9), (60, 0.9), (60, 0.95)])
def test_share_of_missed_names_is_as_promised_over_a_thousand_splits(documents: int, recall: float) -> None:
    scores, chance = population(300), np.random.default_rng(2)
    assert mean_recall(scores, np.inf) < recall - 0.1
    reached = []
    for _ in range(1000):
        order = chance.permutation(len(scores))
        guarantee = find_guarantee([scores[number] for number in order[:documents]], recall)
        others = order[documents : documents + 20]
        reached.append(mean_recall([scores[number] for number in others], guarantee.threshold))
    # Three standard errors of the mean; the promise is tight but for 2 / (n + 1).
    tolerance = 3 * np.std(reached) / np.sqrt(len(reached))
    assert recall - tolerance <= np.mean(reached) <= recall + 2 / (documents + 1) + tolerance


def test_threshold_is_the_highest_that_keeps_the_promise() -> None:
    # One of twenty documents misses a name, another one half of its names.
    scores = [np.asarray([np.inf])] * 18 + [np.asarray([0.3]), np.asarray([np.inf, 0.123456789])]
    assert find_guarantee(scores, 0.8).threshold == 1.0
    assert find_guarantee(scores, 0.9).threshold == 0.3
    assert find_guarantee(scores, 0.95).threshold == 0.123456
    assert find_guarantee(scores, 0.95).documents == 20


def test_document_without_names_misses_none() -> None:
    scores = [np.asarray([])] * 19 + [np.asarray([0.2])]
    assert mean_recall(scores, 0.5) == 0.95
    assert find_guarantee(scores, 0.9).threshold == 1.0


@pytest.mark.parametrize(("recall", "needed"), [(0.5, 1), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_too_few_documents_are_refused_with_the_number_needed(recall: float, needed: int) -> None:
    right = np.asarray([np.inf])
    assert find_guarantee([right] * needed, recall).threshold == 1.0
    with pytest.raises(ConfigError, match=f"expected {needed} documents or more, got {needed - 1}"):
        find_guarantee([right] * (needed - 1), recall)


def test_recall_that_no_threshold_reaches_is_refused_with_the_one_that_is() -> None:
    scores = [np.asarray([np.inf])] * 36 + [np.asarray([0.0])] * 3
    with pytest.raises(ConfigError, match=r"0\.9 is the most to be promised"):
        find_guarantee(scores, 0.95)
    assert find_guarantee(scores, 0.9).threshold == 1.0
