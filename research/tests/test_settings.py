"""Settings of a run: what counts as another configuration, which records are trained again, and how long that takes."""

import json
from typing import Any

import pytest

from research.grid.config import GridConfig, RevisionConfig, Run, runs_of
from research.grid.estimates import estimate_seconds, remaining
from research.grid.rows import row_records
from research.grid.settings import changes, is_current, overrides_of, settings_of
from research.tests.grids import GRID, record, small_grid


@pytest.fixture
def grid() -> GridConfig:
    return small_grid()


def wide(grid: GridConfig) -> Run:
    return next(run for run in runs_of(grid, ["main"]) if run.row.own_key == "wide")


def earlier(**sections: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(json.dumps(record("wide", 1, [5])))
    for section, values in sections.items():
        found["settings"][section] |= values
    return dict(found)


def test_settings_resolve_profile_and_overrides_but_not_the_seed(grid: GridConfig) -> None:
    settings = settings_of(wide(grid), grid)
    assert settings["fit"]["epochs"] == 3
    assert "seed" not in settings["fit"]
    assert settings["model"]["lstm"]["hidden"] == 8
    assert settings["corpus"] == {"folder": "train", "trees": "none", "halves": False, "scored_on": None}
    assert settings["revision"] == 1


def test_setting_for_one_tagger_applies_between_corpus_and_row() -> None:
    corpus = {**GRID["corpora"]["ours"], "set_for": {"bilstm_softmax": ["fit.epochs=5"], "uanet": ["fit.epochs=6"]}}
    grid = GridConfig.from_mapping({**GRID, "corpora": {**GRID["corpora"], "ours": corpus}})
    assert overrides_of(wide(grid), grid) == ["fit.epochs=3", "fit.epochs=5", "model.lstm.hidden=8"]
    assert settings_of(wide(grid), grid)["fit"]["epochs"] == 5
    assert changes(record("wide", 1, [5]), wide(grid), grid) == ["fit.epochs 3, now 5"]


def test_record_is_current_until_something_changes(grid: GridConfig) -> None:
    run = wide(grid)
    assert is_current(earlier(), run, grid)
    assert not is_current(None, run, grid)
    assert changes({"run": run.name}, run, grid) == ["its settings are unknown"]
    changed = earlier(fit={"clip_norm": None}, corpus={"halves": True})
    assert changes(changed, run, grid) == ["corpus.halves true, now false", "fit.clip_norm not set, now 5.0"]


def test_key_that_is_new_has_its_default_and_one_that_is_gone_has_changed(grid: GridConfig) -> None:
    run, old = wide(grid), earlier()
    del old["settings"]["fit"]["case_noise"]
    del old["settings"]["model"]["window_words"]
    assert is_current(old, run, grid)
    assert changes(earlier(fit={"abandoned": 1}), run, grid) == ["fit.abandoned 1, now not set"]


def test_change_of_the_code_makes_records_earlier(grid: GridConfig) -> None:
    revisions = {"bilstm_softmax": RevisionConfig(number=2, change="another dropout")}
    grid = grid.model_copy(update={"revisions": revisions})
    assert changes(earlier(), wide(grid), grid) == ["another dropout"]
    assert settings_of(wide(grid), grid)["revision"] == 2


def test_row_has_records_of_one_configuration(grid: GridConfig) -> None:
    table, row = grid.tables["main"], grid.tables["main"].rows[1]
    old = earlier(fit={"epochs": 2})
    found = row_records(table, row, {old["run"]: old}, grid)
    assert (len(found.records), found.changes) == (1, {1: ["fit.epochs 2, now 3"]})
    now = record("wide", 2, [5])
    found = row_records(table, row, {old["run"]: old, now["run"]: now}, grid)
    assert (found.records, found.changes) == ((now,), {})


def test_row_without_a_current_record_is_not_a_mean_over_two_configurations(grid: GridConfig) -> None:
    table = grid.tables["main"].model_copy(update={"seeds": (1, 2, 3)})
    row = table.rows[1]

    def found(*old: dict[str, Any]) -> list[int]:
        records = {f"ours.small.wide.{seed}": {**one, "seed": seed} for seed, one in enumerate(old, start=1)}
        return [record["seed"] for record in row_records(table, row, records, grid).records]

    two, four = earlier(fit={"epochs": 2}), earlier(fit={"epochs": 4})
    assert found(two, four, four) == [2, 3]
    assert found(two, two, four) == [1, 2]
    assert found(two, four) == [1]
    first, second = ({**two, "settings": {**two["settings"], "revision": number}} for number in (0, -1))
    assert found(first, second, second) == [2, 3]
    assert row_records(table, row, {}, grid).records == ()


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
