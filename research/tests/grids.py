"""A small grid of results, and records of runs that were never trained."""

from pathlib import Path
from typing import Any

import yaml

from research.grid.config import GridConfig, runs_of
from research.grid.settings import settings_of

GRID: dict[str, Any] = {
    "corpora": {
        "ours": {"folder": "train", "floor": [50.0, None], "set": ["fit.epochs=3"]},
        "alone": {"folder": "train", "documents": False},
    },
    "tables": {
        "main": {
            "title": "Ours",
            "corpus": "ours",
            "profile": "small",
            "seeds": [1, 2],
            "rows": [
                {"tagger": "bilstm_softmax", "name": "Plain"},
                {"tagger": "bilstm_softmax", "key": "wide", "set": ["model.lstm.hidden=8"]},
                {"tagger": "doc_uanet", "not_applicable": "no documents"},
            ],
        },
        "more": {"title": "More", "corpus": "alone", "profile": "small", "seeds": [1], "rows": [{"tagger": "uanet"}]},
    },
    "papers": {"CoNLL-03": {"wide": "91.2"}},
    "claims": [
        {"text": "Wide is better", "tables": ["main"], "better": "wide", "worse": "bilstm_softmax"},
        {"text": "Gold helps", "tables": ["main"], "untestable": "needs a licence"},
    ],
}


def small_grid() -> GridConfig:
    """Return the grid as a configuration."""
    return GridConfig.from_mapping(GRID)


def write_grid(folder: Path) -> Path:
    """Write the grid as a YAML file and return its path."""
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(GRID))
    return path


def record(key: str, seed: int, correct: list[int], *, gold: int = 10) -> dict[str, Any]:
    """Return the record of a run of the table "main" that found `correct` of `gold` names in each document."""
    triples = [[gold, gold, number] for number in correct]
    scores = {"co_occurrence": {"accuracy": 90.0}}
    measures = dict.fromkeys(("all", "multi_word", "recurring", "once"), triples)
    grid = small_grid()
    run = next(run for run in runs_of(grid, ["main"]) if run.row.own_key == key)
    return {
        "run": f"ours.small.{key}.{seed}",
        "settings": settings_of(run, grid),
        "tagger": run.row.tagger,
        "corpus": run.corpus,
        "profile": run.profile,
        "epochs": 3,
        "seed": seed,
        "parameters": 1_500_000,
        "best": {"threshold": None},
        "cpu_seconds": 90.0,
        "dev": scores,
        "test": scores,
        "units": {name: {"final": measures, "draft": dict(measures)} for name in ("dev", "test")},
    }
