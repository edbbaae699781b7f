"""The page of results: what it shows, what it says of runs that are missing, when it answers a claim."""

import pytest
from concord_testing.grids import record, small_grid

from concord.workflows.grid.config import GridConfig
from concord.workflows.grid.page import compare, render_page


@pytest.fixture
def grid() -> GridConfig:
    return small_grid()


def test_page_says_what_was_not_run(grid: GridConfig) -> None:
    page = render_page(grid, [])
    assert page.count("| not run |") == 4
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
    assert claim.endswith("+50.0 (+40.0 to +60.0), seeds 2 and 2 | not testable: bilstm_softmax below the floor |")


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


@pytest.mark.parametrize(("seeds", "answer"), [(2, "open: fewer than 3 seeds"), (3, "yes")])
def test_claim_is_answered_from_three_seeds(grid: GridConfig, seeds: int, answer: str) -> None:
    table = grid.tables["main"].model_copy(update={"seeds": (1, 2, 3)})
    grid = grid.model_copy(update={"tables": {**grid.tables, "main": table}})
    records = [
        record(key, seed, [found] * 30)
        for key, found in (("wide", 9), ("bilstm_softmax", 7))
        for seed in range(1, seeds + 1)
    ]
    claim = next(line for line in render_page(grid, records).splitlines() if line.startswith("| Wide is better |"))
    assert claim.endswith(f"| +20.0 (+20.0 to +20.0), seeds {seeds} and {seeds} | {answer} |")


def test_compare_uses_the_counts_of_the_measure() -> None:
    better, worse = [record("a", 1, [9] * 20)], [record("b", 1, [6] * 20)]
    assert compare(better, worse, measure="all").mean == pytest.approx(30.0)
    assert compare(better, worse, measure="recurring_less_once").mean == pytest.approx(0.0)
    better[0]["units"]["test"]["draft"] = {"all": [[10, 10, 4]] * 20}
    assert compare(better, better, measure="draft").mean == pytest.approx(50.0)
