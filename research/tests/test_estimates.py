"""What is left to train, and how long it takes."""

from typing import Any

import pytest

from research.grid.config import runs_of
from research.grid.estimates import estimate_seconds, remaining
from research.tests.grids import record, small_grid


def timed(key: str, seed: int, seconds: float | None, **values: Any) -> dict[str, Any]:
    return {**record(key, seed, [5]), "cpu_seconds": seconds, **values}


def test_time_is_that_of_the_most_similar_runs() -> None:
    grid = small_grid()
    runs = {run.name: run for run in runs_of(grid, ["main", "more"])}
    wide = runs["ours.small.wide.2"]
    other = timed("bilstm_softmax", 1, 60.0)
    elsewhere = timed("bilstm_softmax", 2, 10.0, corpus="alone", epochs=1)
    own = timed("wide", 1, 90.0)

    def estimated(*records: dict[str, Any]) -> float:
        return estimate_seconds(wide, grid, {found["run"]: found for found in records})

    assert estimated(own, other, elsewhere) == pytest.approx(90.0)
    assert estimated(other, elsewhere) == pytest.approx(60.0)
    assert estimated(elsewhere) == pytest.approx(3 * 10.0)
    assert estimated(timed("wide", 1, None, train_seconds=33.0)) == pytest.approx(33.0)
    assert estimate_seconds(runs["alone.small.uanet.1"], grid, {own["run"]: own}) == 0.0


def test_run_of_two_tables_is_left_once() -> None:
    grid = small_grid()
    grid = grid.model_copy(update={"tables": {**grid.tables, "again": grid.tables["main"]}})
    old = timed("wide", 1, 60.0)
    old["settings"] = {**old["settings"], "revision": 3}
    done = timed("bilstm_softmax", 1, 60.0)
    first, second = remaining(grid, ["main", "again"], {found["run"]: found for found in (old, done)})
    assert (first.runs, len(first.missing), len(first.earlier), first.seconds) == (4, 2, 1, 180.0)
    assert (second.runs, len(second.missing), len(second.earlier), second.seconds) == (0, 0, 0, 0.0)
