"""What decides the outcome of a run beside its seed: kept in its record, and compared with today's configuration."""

from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from concord.models.bundles.registry import tagger_class
from concord.models.config import flatten
from concord.models.errors import ConfigError
from concord.models.training.fit import FitConfig
from concord.workflows.job_files import apply_overrides
from concord.workflows.training.job import TrainConfig, read_train_config
from research.grid.config import GridConfig, Run, runs_of
from research.grid.records import IsCurrent, Record

TRAIN_FOLDER = Path("conf/train")

Settings = Mapping[str, Any]
"""The resolved sections ``model`` and ``fit`` of the training, its ``corpus``, and the ``revision`` of the code."""


def settings_of(run: Run, grid: GridConfig) -> Settings:
    """Return the settings of a run by today's configuration."""
    corpus = grid.corpora[run.corpus]
    config = _train_config(TRAIN_FOLDER / f"{run.row.tagger}.yaml")
    profile = config.profiles[run.profile]
    job: dict[str, Any] = {"data": {}, "model": deepcopy(profile.model), "fit": deepcopy(profile.fit)}
    apply_overrides(job, overrides_of(run, grid))
    revision = grid.revisions.get(run.row.tagger)
    corpora = {"folder": corpus.folder, "trees": corpus.trees, "halves": corpus.halves, "scored_on": run.row.scored_on}
    return {
        **_resolve(run.row.tagger, job),
        "corpus": {**corpora, **job["data"]},
        "revision": 1 if revision is None else revision.number,
    }


def overrides_of(run: Run, grid: GridConfig) -> list[str]:
    """Return the ``key=value`` that the grid sets for a run, in the order in which they apply."""
    corpus = grid.corpora[run.corpus]
    return [*grid.set_for.get(run.profile, ()), *corpus.set, *corpus.set_for.get(run.row.tagger, ()), *run.row.set]


def changes(record: Record, run: Run, grid: GridConfig) -> list[str]:
    """Describe what has changed in the configuration of a run since its record; nothing if the record is current."""
    recorded = record.get("settings")
    if recorded is None:
        return ["its settings are unknown"]
    now = settings_of(run, grid)
    with suppress(ConfigError):
        # Keys that are new have their defaults, by which the tagger was trained; keys that are gone count as changed.
        recorded = {**recorded, **_resolve(run.row.tagger, recorded)}
    before, after = flatten(recorded), flatten(now)
    described = [
        f"{key} {_shown(before.get(key))}, now {_shown(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if key != "revision" and before.get(key) != after.get(key)
    ]
    if before["revision"] != after["revision"]:
        revision = grid.revisions.get(run.row.tagger)
        described.append("the code of the tagger" if revision is None else revision.change)
    return described


def is_current(record: Record | None, run: Run, grid: GridConfig) -> bool:
    """Return whether a run has a record whose configuration is still the same."""
    return record is not None and not changes(record, run, grid)


def current_in(grid: GridConfig) -> IsCurrent:
    """Return a function that says whether a record is current; one of a run that the grid does not have is not."""
    runs = {run.name: run for run in runs_of(grid, list(grid.tables))}
    return lambda record: record["run"] in runs and is_current(record, runs[record["run"]], grid)


@cache
def _train_config(path: Path) -> TrainConfig:
    return read_train_config(path)


def _resolve(tagger: str, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the defaults of the sections ``model`` and ``fit``."""
    model = tagger_class(tagger).config_class.from_mapping(sections["model"], where="model")
    fit = FitConfig.from_mapping(sections["fit"], where="fit")
    return {"model": model.model_dump(mode="json"), "fit": fit.model_dump(mode="json", exclude={"seed"})}


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
