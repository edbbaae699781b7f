"""Claims: which counts they compare, when they are answered, and how their p-values are corrected."""

import math
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from concord.models.evaluation.significance import Difference, paired_bootstrap, resampled_differences
from research.grid import claims
from research.grid.claims import Answer, answer_claims, compare, pool_answers
from research.grid.config import ClaimConfig, GridConfig, Measure, RowConfig
from research.grid.rows import RowRecords, row_records
from research.tests.grids import record, small_grid

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RESAMPLES", 1_000)
    monkeypatch.setattr(claims, "FINE_RESAMPLES", 10_000)


def grid_of(*claims: ClaimConfig) -> GridConfig:
    table = small_grid().tables["main"].model_copy(update={"seeds": (1, 2, 3)})
    return small_grid().model_copy(update={"tables": {"main": table}, "claims": claims})


def claim(measure: Measure = "all", **values: Any) -> ClaimConfig:
    return ClaimConfig(text="Wide", tables=("main",), better="wide", worse="bilstm_softmax", measure=measure, **values)


def answers(grid: GridConfig, *records: dict[str, Any]) -> list[Answer]:
    return answer_claims(grid, {found["run"]: found for found in records})


def row(*records: dict[str, Any]) -> RowRecords:
    return RowRecords(row=RowConfig(tagger="uanet"), records=records, floor=None)


@pytest.mark.parametrize(("seeds", "answer"), [(2, "open: fewer than 3 seeds"), (3, "yes")])
def test_claim_is_answered_from_three_seeds(seeds: int, answer: str) -> None:
    records = [
        record(key, seed, [found] * 30)
        for key, found in (("wide", 9), ("bilstm_softmax", 7))
        for seed in range(1, seeds + 1)
    ]
    [found] = answers(grid_of(claim()), *records)
    assert (found.figure, found.answer) == (f"+20.0 (+20.0 to +20.0), seeds {seeds} and {seeds}", answer)
    assert (found.p is None) == (seeds < 3)


def test_claims_are_corrected_together_over_those_that_were_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(5)
    records = []
    for key, base in (("wide", 6), ("bilstm_softmax", 5)):
        for seed in (1, 2, 3):
            made = record(key, seed, (base + chance.integers(-2, 3, size=40)).tolist())
            made["units"]["test"]["final"] = dict(made["units"]["test"]["final"], once=[[10, 10, 9 - seed]] * 40)
            records.append(made)
    absent = claim().model_copy(update={"better": "wide", "untestable": "no corpus"})
    found = answers(grid_of(claim(), claim("once"), claim("multi_word"), absent), *records)
    alone = [one.p for one in found[:3] if one.p is not None]
    # Holm by its definition: the k-th smallest of n is multiplied by n - k + 1, and none is below an earlier one.
    expected, least = {}, 0.0
    for rank, p in enumerate(sorted(alone)):
        least = expected[p] = max(least, min(1.0, (3 - rank) * p))
    assert [one.corrected for one in found[:3]] == [expected[p] for p in alone]
    assert (found[3].p, found[3].corrected, found[3].answer) == (None, None, "not testable: no corpus")
    assert 0.0 < alone[0] < 0.05 < alone[1]
    known = {one.claim.measure: (one.difference, one.p) for one in found[:2]}
    monkeypatch.setattr(claims, "compare", lambda *rows, measure: known[measure])
    one_of_many = [claim()] + [claim("once")] * 300
    assert answers(grid_of(*one_of_many), *records)[0].answer == "undecided; yes if asked alone"


def test_compare_uses_the_counts_of_the_measure() -> None:
    better, worse = record("wide", 1, [9] * 20), record("wide", 2, [6] * 20)
    found, p = compare(row(better), row(worse), measure="all")
    # A small p is of more resamples.
    assert (found.mean, p) == pytest.approx((30.0, 2 / (claims.FINE_RESAMPLES + 1)))
    assert compare(row(better), row(better), measure="all")[1] == 1.0
    assert compare(row(better), row(worse), measure="recurring_less_once")[0].mean == pytest.approx(0.0)
    better["units"]["test"]["draft"] = {"all": [[10, 10, 4]] * 20}
    assert compare(row(better), row(better), measure="draft")[0].mean == pytest.approx(50.0)
    worse["units"]["test"]["draft"] = {"all": [[10, 10, 5]] * 20}
    assert compare(row(better), row(worse), measure="refinement")[0].mean == pytest.approx(50.0 - 10.0)
    better["units"]["test"]["final"] = {"recurring": [[8, 2, 2]] * 20}
    worse["units"]["test"]["final"] = {"recurring": [[8, 8, 4]] * 20}
    assert compare(row(better), row(worse), measure="recall")[0].mean == pytest.approx(25.0 - 50.0)


def test_a_claim_is_asked_for_each_of_its_tables() -> None:
    records = [record(key, seed, [9] * 5) for key in ("wide", "bilstm_softmax") for seed in (1, 2, 3)]
    grid = grid_of(claim().model_copy(update={"tables": ("main", "other")}))
    other = grid.tables["main"].model_copy(update={"title": "Other"})
    grid = grid.model_copy(update={"tables": {**grid.tables, "other": other}})
    assert [found.place for found in answers(grid, *records)] == [grid.tables["main"].title, "Other"]


def test_rows_below_the_floor_support_only_claims_about_inputs() -> None:
    records = [
        record(key, seed, [base] * 30) for key, base in (("wide", 9), ("bilstm_softmax", 2)) for seed in (1, 2, 3)
    ]
    refused, tested = answers(grid_of(claim(), claim(about_inputs=True)), *records)
    assert (refused.answer, refused.p) == ("not testable: Plain below the floor", None)
    assert tested.answer == "yes"


def test_one_seed_and_all_names_are_compared_as_the_paired_bootstrap_does() -> None:
    chance = np.random.default_rng(2)
    better, worse = (record("wide", seed, chance.integers(0, 10, size=25).tolist()) for seed in (1, 2))
    sides = [np.array([found["units"]["test"]["final"]["all"]]) for found in (better, worse)]
    found, p = compare(row(better), row(worse), measure="all")
    drawn = resampled_differences(*sides, resamples=claims.FINE_RESAMPLES if p < 0.05 else claims.RESAMPLES)
    assert (found.low, found.high) == tuple(np.percentile(drawn, [2.5, 97.5]))
    assert found.mean == paired_bootstrap(*sides).mean
    assert (p < 0.05) == (found.verdict != "undecided")


def test_refinement_is_compared_with_the_drafts_of_the_same_runs() -> None:
    """Seeds that differ much in level and not in gain leave no doubt about the gain."""
    records = []
    for seed, level in enumerate((2, 5, 8), start=1):
        made = record("wide", seed, [level + 1] * 10)
        made["units"]["test"]["draft"] = {"all": [[10, 10, level]] * 10}
        records.append(made)
    found, _ = compare(row(*records), row(*records), measure="draft")
    assert (found.low, found.mean, found.high) == pytest.approx((10.0, 10.0, 10.0))


def test_ratio_of_uncertainties_is_put_beside_the_papers() -> None:
    def asked(*ratios: float) -> Answer:
        records = [
            {**record("wide", seed, [5]), "test": {"uncertainty": {"ratio": ratio}}}
            for seed, ratio in enumerate(ratios, start=1)
        ]
        [found] = answers(grid_of(claim("uncertainty", paper=29.0).model_copy(update={"worse": None})), *records)
        return found

    found = asked(20.0, 24.0, 25.0)
    assert found.figure == "23.0 times (20.0 to 25.0), seeds 3; 0.79 of the paper's 29"
    assert (found.answer, found.p) == ("more uncertain, by less", None)
    assert asked(30.0, 31.0, 32.0).answer == "yes"
    assert asked(0.5, 24.0, 25.0).answer == "no"
    assert asked(30.0).answer == "open: fewer than 3 seeds"


def test_rows_scored_on_different_documents_are_not_compared() -> None:
    records = [record("wide", 1, [5] * 4), record("bilstm_softmax", 1, [5] * 3)]
    [found] = answers(grid_of(claim()), *records)
    assert found.answer == "open: scored on different documents, one by an earlier configuration"
    # A training scored on another corpus has no floor.
    grid = small_grid()
    table = grid.tables["main"]
    assert row_records(table, table.rows[1], {}, grid).floor == (50.0, None)
    elsewhere = table.rows[1].model_copy(update={"scored_on": "alone"})
    assert row_records(table, elsewhere, {}, grid).floor is None


def asked(corpus: str, mean: float, half: float, **values: Any) -> Answer:
    """Return a tested answer whose interval is `half` to both sides."""
    difference = Difference(mean=mean, low=mean - half, high=mean + half)
    found = {"claim": claim(question="Does it help?"), "p": 0.5, "difference": difference, **values}
    return Answer(place=corpus, corpus=corpus, **found)


def test_pooled_answer_weighs_corpora_by_the_inverse_of_their_variance() -> None:
    (found,) = pool_answers([asked("one", 1.0, 1.96), asked("two", 4.0, 3.92)])
    # Standard errors of 1 and 2: weights of 4 to 1, and a variance of 1 / (1 + 1 / 4).
    assert found.difference.mean == pytest.approx(1.6)
    assert found.difference.high - found.difference.mean == pytest.approx(1.96 * 0.8**0.5, rel=1e-4)
    assert found.p == pytest.approx(math.erfc(1.6 / 0.8**0.5 / 2**0.5), rel=1e-3)
    assert (found.answer, found.corrected) == ("undecided", found.p)
    assert set(found.corpora) == {"one", "two"}


def test_tables_of_one_corpus_count_as_one_in_a_pooled_answer() -> None:
    (found,) = pool_answers([asked("one", 1.0, 0.4), asked("one", 2.0, 0.8)])
    for difference in (found.corpora["one"], found.difference):
        assert astuple(difference) == pytest.approx((1.5, 0.9, 2.1))
    assert found.answer == "yes"


def test_pooled_answers_leave_out_what_was_not_tested_and_are_corrected_for_their_number() -> None:
    other = claim(question="Is it fast?")
    answers = [
        asked("one", 0.5, 0.4),
        asked("two", 9.0, 0.1, p=None),
        asked("three", 9.0, 0.1, claim=claim()),
        asked("one", 0.0, 1.0, claim=other, is_earlier=True),
    ]
    helps, fast = pool_answers(answers)
    assert set(helps.corpora) == {"one"}
    assert helps.corrected == pytest.approx(2 * helps.p)
    assert (helps.answer, fast.answer) == ("yes", "undecided")
    assert (helps.is_earlier, fast.is_earlier) == (False, True)
