"""The grid of thresholds and the choice of the best one."""

import math

from concord.models.training.fit_calibration import REFINE_ALL, ThresholdScore, best_threshold, threshold_grid


def test_threshold_grid_ranges_from_all_refined_to_none() -> None:
    grid = threshold_grid(7)
    assert grid[0] == REFINE_ALL
    assert grid[1:3] == (0.0, 0.05)
    assert grid[-1] > math.log(7)
    assert list(grid) == sorted(grid)


def test_best_threshold_of_a_tie_is_the_one_that_refines_least() -> None:
    curve = [ThresholdScore(threshold=value, score=score) for value, score in ((-1.0, 5.0), (0.2, 9.0), (0.4, 9.0))]
    assert best_threshold(curve).threshold == 0.4
