"""The pages of the grid: what they show, what they say of runs that are missing, when they answer a claim."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from concord_testing.checkout import CHECKOUT

from concord.models.evaluation.significance import Difference
from research.grid.claims import PooledAnswer, answer_claims
from research.grid.config import GridConfig, ReproductionConfig, runs_of
from research.grid.page import render_claims, render_page
from research.grid.settings import settings_of
from research.tests.grids import GRID, record, small_grid

pytestmark = pytest.mark.slow

MOST_BYTES = 15_000
"""Of the page of results, so that people read it."""


@pytest.fixture
def grid() -> GridConfig:
    return small_grid()


def page_of(grid: GridConfig, records: Sequence[dict[str, Any]], *pooled: PooledAnswer) -> str:
    return render_page(grid, {found["run"]: found for found in records}, pooled, picture="results.png")


def claims_of(grid: GridConfig, records: Sequence[dict[str, Any]]) -> str:
    by_run = {found["run"]: found for found in records}
    return render_claims(grid, by_run, answer_claims(grid, by_run))


def line_of(page: str, start: str) -> str:
    return next(line for line in page.splitlines() if line.startswith(f"| {start} |"))


def test_pages_say_what_was_not_run(grid: GridConfig) -> None:
    page, claims = page_of(grid, []), claims_of(grid, [])
    assert page.count("| not run |") == 3
    assert "†" not in page
    assert "Of the 5 runs of this page, 5 have no record and 0 have one of an earlier configuration" in page
    assert "n/a: no documents" in page
    assert "| Plain | Ours |  | 1, 2 |" in claims
    assert "not testable: needs a licence" in claims


def test_page_shows_mean_spread_floor_and_answers(grid: GridConfig) -> None:
    records = [
        record(key, seed, [base + seed] * 30) for key, base in (("wide", 6), ("bilstm_softmax", 1)) for seed in (1, 2)
    ]
    page = page_of(grid, records)
    assert line_of(page, "wide") == "| wide | 75.0 ± 7.1 | 75.0 ± 7.1 | 90.0 |"
    assert line_of(page, "Plain") == "| Plain | 25.0 ± 7.1 ▼ | 25.0 ± 7.1 | 90.0 |"
    claim = line_of(claims_of(grid, records), "Wide is better")
    assert claim.endswith("+50.0 (+40.0 to +60.0), seeds 2 and 2 |  |  | not testable: Plain below the floor |")


def test_page_begins_with_the_pooled_answers(grid: GridConfig) -> None:
    difference = Difference(mean=1.094, low=0.682, high=1.506)
    found = PooledAnswer(
        question="Does it help?",
        corpora={"ours": difference, "theirs": difference},
        difference=difference,
        p=0.003,
        corrected=0.03,
        answer="yes",
        is_earlier=True,
    )
    page = page_of(grid, [], found)
    assert (
        line_of(page, "Does it help?")
        == "| Does it help? | yes † | +1.09 (+0.68 to +1.51) | 0.003 | 0.03 | 2: +1.1 to +1.1 |"
    )
    assert page.index("Does it help?") < page.index("(results.png)") < page.index("## Tables")


def test_figures_of_the_papers_are_in_one_table(grid: GridConfig) -> None:
    table = claims_of(grid, [record("wide", 1, [5])]).partition("## What the papers print")[2].partition("\n## ")[0]
    assert table.rstrip().splitlines()[-3:] == ["| system | CoNLL-03 |", "| --- | --- |", "| wide | 91.2 |"]


def test_accuracy_of_words_that_occur_again_is_shown_with_that_of_drafts(grid: GridConfig) -> None:
    one = {**record("bilstm_softmax", 1, [5]), "test": {"co_occurrence": {"accuracy": 80.0}}}
    accuracy = {"co_occurrence": {"accuracy": 90.0}, "draft_co_occurrence": {"accuracy": 70.0}}
    two = {**record("wide", 1, [5]), "best": {"threshold": 0.5}, "test": accuracy}
    page = page_of(grid, [one, two])
    assert line_of(page, "Plain").endswith("| 50.0 |  | 80.0 |")
    assert line_of(page, "wide").endswith("| 50.0 | 50.0 | 90.0 (70.0) |")


def test_row_of_an_earlier_configuration_is_marked_and_explained(grid: GridConfig) -> None:
    old = [record("wide", seed, [5] * 4) for seed in (1, 2)]
    for found in old:
        settings = json.loads(json.dumps(found["settings"]))
        settings["fit"]["epochs"] = 2
        found["settings"] = settings
    records = [*old, record("bilstm_softmax", 1, [5] * 4)]
    page, claims = page_of(grid, records), claims_of(grid, records)
    assert "| wide † |" in page
    assert "| Plain |" in page
    assert "Of the 5 runs of this page, 2 have no record and 2 have one of an earlier configuration" in page
    lacking = claims.partition("## Rows that lack seeds")[2].partition("##")[0].splitlines()[4:]
    assert lacking == ["| Plain | Ours | 1 | 2 |", "| uanet | More |  | 1 |", ""]
    assert claims.rstrip().endswith("| wide | Ours | 1, 2 | fit.epochs 2, now 3 |")
    claim = line_of(claims, "Wide is better")
    assert claim.endswith("† |")
    assert "+0.0 (+0.0 to +0.0), seeds 2 and 1" in claim


def test_pages_of_current_records_say_nothing_of_what_is_left(grid: GridConfig) -> None:
    alone = grid.model_copy(update={"tables": {"main": grid.tables["main"]}})
    rows = [record(key, seed, [5]) for key in ("wide", "bilstm_softmax") for seed in (1, 2)]
    assert "no record" not in page_of(alone, rows)
    assert "lack seeds" not in claims_of(alone, rows)


def test_page_of_claims_lists_reproductions(grid: GridConfig) -> None:
    item = ReproductionConfig(paper="A", item="Table 1", about="counts", status="not", where="no licence")
    page = claims_of(grid.model_copy(update={"reproductions": (item,)}), [])
    assert "| A | Table 1 | counts | not | no licence |" in page


def grid_of(*keys: tuple[str, str]) -> GridConfig:
    """Return a grid of one table with these rows, by key and tagger."""
    table = GRID["tables"]["main"] | {"rows": [{"key": key, "tagger": tagger} for key, tagger in keys]}
    return GridConfig.from_mapping({**GRID, "tables": {"main": table}, "claims": [], "papers": {}})


def records_of(grid: GridConfig, **values: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the records of runs, by key and in the order of the seeds, each with these values."""
    triples = {key: [[10, 10, 9]] for key in ("all",)}
    units = {name: {"final": triples, "draft": triples} for name in ("dev", "test")}
    plain = {"best": {"threshold": None}, "units": units}
    return {
        run.name: {**plain, "run": run.name, "seed": run.seed, "settings": settings_of(run, grid), **found}
        for run in runs_of(grid, ["main"])
        for found in [values[run.row.own_key][run.seed - 1]]
    }


def test_page_shows_the_thresholds_with_a_memory_and_without() -> None:
    grid = grid_of(("doc_uanet", "doc_uanet"), ("doc_no_memory", "doc_uanet"))
    own, without = ([{"best": {"threshold": value}} for value in values] for values in ((0.2, 0.4), (0.9, 0.5)))
    page = render_page(grid, records_of(grid, doc_uanet=own, doc_no_memory=without), [], picture="")
    assert "So it has here, in 1 of 1 tables" in page
    assert line_of(page, "Ours") == "| Ours | 0.30 (0.20, 0.40) | 0.70 (0.90, 0.50) |"


def test_page_shows_what_cross_and_att_gain_by_length_and_type() -> None:
    grid = grid_of(("baseline_bilstm_cnn", "baseline_bilstm_cnn"), ("att_bilstm_cnn", "att_bilstm_cnn"))

    def scored(f1: float) -> dict[str, Any]:
        return {
            "test": {
                "by_mention_length": {key: {"f1": f1} for key in ("1", "2", "3", "4+")},
                "scores": {"LOC": {"f1": f1}},
            }
        }

    records = records_of(
        grid, baseline_bilstm_cnn=[scored(40.0), scored(50.0)], att_bilstm_cnn=[scored(60.0), scored(31.5)]
    )
    page = render_page(grid, records, [], picture="")
    assert "| Ours | att_bilstm_cnn | +0.8 | +0.8 | +0.8 | +0.8 | LOC +0.8 |" in page


def test_pages_show_what_the_figures_of_the_papers_measured(grid: GridConfig, tmp_path: Path) -> None:
    points = [
        {"threshold": threshold, "f1": f1, "mended": mended, "broken": broken}
        for threshold, f1, mended, broken in ((-1.0, 80.0, 30, 24), (0.5, 81.04, 21, 9), (3.0, 79.0, 0, 0))
    ]
    gating = {"words": 2500, "wrong_drafts": 90, "draft_f1": 79.0, "own": 0.5, "points": points}
    measured = {"mean": 1.25, "shares": [80.0, 15.0, 5.0]}
    context = {
        "counted": 4,
        "words": {"met": 3, "in": 1},
        "tags": {"VERB": {"attended": 75.0, "by_chance": 20.0}, "ADP": {"attended": 25.0, "by_chance": 80.0}},
    }
    hops = {"tree": {"attended": measured, "by_chance": {**measured, "mean": 2.5}}}
    attended = {"words": 5, "own_name": 40.0, "hops": hops, "outside_names": {"PER": context}}
    epochs = {"measure": "accuracy", "trainings": {"LAN": [{"dev": 91.0}, {"dev": 92.5}], "CRF": [{"dev": 91.5}]}}
    place = {"data": "dev", "command": "python -m x"}
    path = tmp_path / "figures.json"
    found = {"gating": {"ours": gating}, "attended": {**place, **attended}, "epochs": {**place, **epochs}}
    path.write_text(json.dumps(found))
    drawn = grid.model_copy(update={"figures": str(path)})
    page, claims = page_of(drawn, []), claims_of(drawn, [])
    assert line_of(page, "ours") == "| ours | 90 of 2,500 (79.0) | 0.50 | 21, 9 (81.0) | 30, 24 (80.0) |"
    assert line_of(claims, "tree, attended") == "| tree, attended | 1.25 | 80.0 | 15.0 | 5.0 |"
    assert line_of(claims, "tree, by chance").startswith("| tree, by chance | 2.50 |")
    assert line_of(claims, "PER") == "| PER | 4 | met 3, in 1 | VERB 75 (20), ADP 25 (80) |"
    assert "| % of words by hops | mean | 1 | 2 | 3+ |" in claims
    assert line_of(claims, "LAN") == "| LAN | 91.00 | 92.50 |"


def test_page_of_results_is_short_enough_to_be_read() -> None:
    assert (CHECKOUT / "docs/results.md").stat().st_size <= MOST_BYTES
