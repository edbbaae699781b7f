"""The page of results: what it shows, what it says of runs that are missing, when it answers a claim."""

import json
from pathlib import Path

import pytest

from research.grid.config import GridConfig, ReproductionConfig
from research.grid.page import render_page
from research.tests.grids import record, small_grid


@pytest.fixture
def grid() -> GridConfig:
    return small_grid()


def test_page_says_what_was_not_run(grid: GridConfig) -> None:
    page = render_page(grid, [])
    assert page.count("| not run |") == 4
    assert "†" not in page
    assert "Of the 5 runs of this page, 5 have no record and 0 have one of an earlier configuration" in page
    assert "| Plain | Ours |  | 1, 2 |" in page
    assert "n/a: no documents" in page
    assert "not testable: needs a licence" in page


def test_page_shows_mean_spread_floor_and_answers(grid: GridConfig) -> None:
    records = [
        record(key, seed, [base + seed] * 30) for key, base in (("wide", 6), ("bilstm_softmax", 1)) for seed in (1, 2)
    ]
    page = render_page(grid, records)
    wide = next(line for line in page.splitlines() if line.startswith("| wide |"))
    assert "75.0 ± 7.1 |" in wide
    assert wide.endswith("| 91.2 |")
    plain = next(line for line in page.splitlines() if line.startswith("| Plain |"))
    assert "25.0 ± 7.1 ▼" in plain
    claim = next(line for line in page.splitlines() if line.startswith("| Wide is better |"))
    assert claim.endswith("+50.0 (+40.0 to +60.0), seeds 2 and 2 |  |  | not testable: Plain below the floor |")


def test_agreement_of_drafts_is_shown_for_two_stages(grid: GridConfig) -> None:
    one = {**record("bilstm_softmax", 1, [5]), "test": {"consistency": {"share": 80.0}}}
    agreement = {"consistency": {"share": 90.0}, "draft_consistency": {"share": 70.0}}
    two = {**record("wide", 1, [5]), "best": {"threshold": 0.5}, "test": agreement}
    lines = render_page(grid, [one, two]).splitlines()
    assert "| 80.0 % | 1.5 |" in next(line for line in lines if line.startswith("| Plain |"))
    assert "| 90.0 % (70.0 %) | 1.5 |" in next(line for line in lines if line.startswith("| wide |"))


def test_speed_is_that_of_the_fastest_seed_on_dev(grid: GridConfig) -> None:
    speeds = [{**record("wide", seed, [5]), "dev": {"sentences_per_second": 1500.2 * seed}} for seed in (1, 2)]
    lines = render_page(grid, [*speeds, record("bilstm_softmax", 1, [5])]).splitlines()
    assert "| 1.5 | 3,000 | 91.2 |" in next(line for line in lines if line.startswith("| wide |"))
    assert "| 1.5 |  | " in next(line for line in lines if line.startswith("| Plain |"))


def test_row_of_an_earlier_configuration_is_marked_and_explained(grid: GridConfig) -> None:
    old = [record("wide", seed, [5] * 4) for seed in (1, 2)]
    for found in old:
        settings = json.loads(json.dumps(found["settings"]))
        settings["fit"]["epochs"] = 2
        found["settings"] = settings
    page = render_page(grid, [*old, record("bilstm_softmax", 1, [5] * 4)])
    assert "| wide † |" in page
    assert "| Plain |" in page
    assert "Of the 5 runs of this page, 2 have no record and 2 have one of an earlier configuration" in page
    lacking = page.partition("## Rows that lack seeds")[2].partition("##")[0].splitlines()[4:]
    assert lacking == ["| Plain | Ours | 1 | 2 |", "| uanet | More |  | 1 |", ""]
    assert page.rstrip().endswith("| wide | Ours | 1, 2 | fit.epochs 2, now 3 |")
    claim = next(line for line in page.splitlines() if line.startswith("| Wide is better |"))
    assert claim.endswith("† |")
    assert "+0.0 (+0.0 to +0.0), seeds 2 and 1" in claim


def test_decoder_and_updates_are_those_of_the_record(grid: GridConfig) -> None:
    model = {"scheme": "BIOES", "legal_mode": True}
    names = {
        "argmax": {"scheme": "BIOES"}, "CRF, well-formed": model, "CRF, all sequences": {**model, "legal_mode": False},
        "CRF": {**model, "scheme": "TOKENS"}, "CRF, well-formed ": {"scheme": "BIOES", "decoder": "crf"},
    }  # fmt: skip
    for name, values in names.items():
        settings = {**record("wide", 1, [5])["settings"], "model": values}
        page = render_page(grid, [{**record("wide", 1, [5]), "settings": settings, "updates": 1234}])
        assert f"| wide † | {name.strip()} | 1.50 M | 1 | 1,234 | 50.0 |" in page
    refined = {**record("wide", 1, [5]), "settings": {**settings, "model": {"scheme": "BIOES", "decoder": "crf"}}}
    page = render_page(grid, [{**refined, "best": {"threshold": 0.5}}])
    assert "| wide † | argmax, refined by a CRF | 1.50 M |" in page


def test_lenient_score_stands_beside_the_strict_one(grid: GridConfig) -> None:
    without = render_page(grid, [record("wide", 1, [5])])
    assert "| lenient − strict |" not in without
    assert "no run of this page has recorded the second" in without
    recorded = [{**record("wide", seed, [5]), "test": {"lenient_gain": seed - 4.0}} for seed in (1, 2)]
    page = render_page(grid, [*recorded, record("bilstm_softmax", 1, [5])])
    assert "no run of this page has recorded the second" not in page
    assert "| test | lenient − strict | test draft |" in page
    assert "| 50.0 ± 0.0 | -2.5 |" in next(line for line in page.splitlines() if line.startswith("| wide |"))
    assert "| 50.0 |  |  |" in next(line for line in page.splitlines() if line.startswith("| Plain |"))
    page = render_page(grid, [recorded[0], record("wide", 2, [5])])
    assert "| 50.0 ± 0.0 | -3.0 (1) |" in next(line for line in page.splitlines() if line.startswith("| wide |"))
    plain = record("bilstm_softmax", 1, [5])
    held = {**plain, "settings": {**plain["settings"], "model": {"scheme": "BIOES", "legal_mode": True}}}
    page = render_page(grid, [*recorded, held])
    assert "| 50.0 | 0 |  |" in next(line for line in page.splitlines() if line.startswith("| Plain"))


def test_page_of_current_records_says_nothing_of_what_is_left(grid: GridConfig) -> None:
    table = grid.tables["main"]
    rows = [record(key, seed, [5]) for key in ("wide", "bilstm_softmax") for seed in (1, 2)]
    page = render_page(grid.model_copy(update={"tables": {"main": table}}), rows)
    assert "no record" not in page
    assert "lack seeds" not in page


def test_page_lists_reproductions_and_draws(grid: GridConfig, tmp_path: Path) -> None:
    path = tmp_path / "draws.json"
    stages = {stage: {"mean": 77.1, "std": 0.126} for stage in ("final", "draft")}
    found = {"command": "python bench.py", "tagger": "entities_en", "data": "dev", "draws": 4, "samples": {"8": stages}}
    path.write_text(json.dumps(found))
    item = ReproductionConfig(paper="A", item="Table 1", about="counts", status="not", where="no licence")
    page = render_page(grid.model_copy(update={"draws": str(path), "reproductions": (item,)}), [])
    assert "| 8 | 77.10 ± 0.13 | 77.10 ± 0.13 |" in page
    assert "| A | Table 1 | counts | not | no licence |" in page
