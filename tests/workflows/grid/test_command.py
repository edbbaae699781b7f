"""The grid: what it would run, how it survives a kill, what it counts, and what its page says of what is missing."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from concord_testing.checkout import CHECKOUT

from concord.workflows.grid import command as grid_workflow
from concord.workflows.grid.command import main
from concord.workflows.grid.config import CorpusConfig, GridConfig, RowConfig, Run, read_grid, runs_of
from concord.workflows.grid.page import compare, render_page
from concord.workflows.grid.train_run import corpus_folder, job_of, locked, perform
from concord.workflows.training import parse_corpus

GRID = {
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
            "papers": {"CoNLL-03 test": {"wide": "91.2"}},
        },
        "more": {"title": "More", "corpus": "alone", "profile": "small", "seeds": [1], "rows": [{"tagger": "uanet"}]},
    },
    "claims": [
        {"text": "Wide is better", "table": "main", "better": "wide", "worse": "bilstm_softmax"},
        {"text": "Gold helps", "table": "main", "untestable": "needs a licence"},
    ],
}


@pytest.fixture
def grid() -> GridConfig:
    return GridConfig.from_mapping(GRID)


def record(key: str, seed: int, correct: list[int], *, gold: int = 10) -> dict[str, Any]:
    """Make the record of a run that found so many of ten names in each document."""
    triples = [[gold, gold, number] for number in correct]
    scores = {"consistency": {"share": 90.0}}
    measures = dict.fromkeys(("all", "multi_word", "recurring", "once"), triples)
    return {
        "run": f"ours.small.{key}.{seed}",
        "seed": seed,
        "parameters": 1_500_000,
        "best": {"threshold": None},
        "cpu_seconds": 90.0,
        "dev": scores,
        "test": scores,
        "units": {name: {"final": measures, "draft": dict(measures)} for name in ("dev", "test")},
    }


@pytest.mark.slow
def test_every_run_of_the_grid_has_a_job_that_reads() -> None:
    grid = read_grid(CHECKOUT / "conf/grid.yaml")
    for run in runs_of(grid, list(grid.tables)):
        job = job_of(run, grid, Path("/corpora"))
        assert job.tagger == run.row.tagger
        assert job.fit["seed"] == run.seed
    for claim in grid.claims:
        keys = {row.own_key for row in grid.tables[claim.table].rows}
        assert {claim.better, claim.worse} - {None} <= keys


def test_runs_of_a_seed_come_before_those_of_the_next(grid: GridConfig) -> None:
    assert [run.name for run in runs_of(grid, ["main", "more"])] == [
        "ours.small.bilstm_softmax.1", "ours.small.wide.1", "ours.small.bilstm_softmax.2", "ours.small.wide.2",
        "alone.small.uanet.1",
    ]  # fmt: skip


def test_a_table_or_a_grid_that_is_not_there_is_named(tmp_path: Path) -> None:
    for arguments, message in (
        (["--table", "none"], "--table: expected one of"),
        (["--grid", "none"], "none: expected"),
    ):
        result = CliRunner().invoke(main, ["run", "--data", str(tmp_path), *arguments])
        assert (result.exit_code, message in result.stderr) == (2, True), result.output


@pytest.mark.slow
def test_a_killed_grid_goes_on_to_the_same_result(tmp_path: Path) -> None:
    conf = tmp_path / "grid.yaml"
    conf.write_text(yaml.safe_dump(GRID))

    def command(place: str) -> list[str]:
        return [
            sys.executable, "-m", "concord.workflows.grid", "run", "--grid", str(conf),
            "--data", str(CHECKOUT / "examples"),
            "--work", str(tmp_path / place / "work"), "--results", str(tmp_path / place / "results"),
            "--table", "main", "--seed", "1",
        ]  # fmt: skip

    with subprocess.Popen(command("killed"), cwd=CHECKOUT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("epoch 1/3"))
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed/results").exists()
    for place in ("killed", "undisturbed"):
        subprocess.run(command(place), cwd=CHECKOUT, check=True, capture_output=True)

    def kept(place: str) -> dict[str, Any]:
        found = {path.name: json.loads(path.read_text()) for path in (tmp_path / place / "results").iterdir()}
        return {name: (values["dev"]["scores"], values["units"], values["best"]["loss"]) for name, values in
                found.items()}  # fmt: skip

    assert kept("killed") == kept("undisturbed")
    assert set(kept("killed")) == {"ours.small.bilstm_softmax.1.json", "ours.small.wide.1.json"}
    again = subprocess.run(command("killed"), cwd=CHECKOUT, check=True, capture_output=True, text=True)
    assert again.stderr == ""


def test_a_run_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "grid.yaml"
    conf.write_text(yaml.safe_dump(GRID))
    monkeypatch.chdir(CHECKOUT)

    def perform(run: Run, *arguments: Any, **options: Any) -> dict[str, Any]:
        if run.row.own_key == "wide":
            raise OSError("the disk is on fire")
        (tmp_path / "work" / run.name).mkdir(parents=True)
        return record(run.row.own_key, run.seed, [5])

    monkeypatch.setattr(grid_workflow, "perform", perform)
    arguments = ["run", "--grid", str(conf), "--data", "examples", "--work", str(tmp_path / "work"),
                 "--results", str(tmp_path / "results"), "--table", "main"]  # fmt: skip
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "the disk is on fire" in done.stderr
    assert "failed: ours.small.wide.1, ours.small.wide.2" in done.stderr
    assert {path.name for path in (tmp_path / "results").iterdir()} == {
        "ours.small.bilstm_softmax.1.json", "ours.small.bilstm_softmax.2.json"
    }  # fmt: skip


def test_a_training_begun_with_another_configuration_begins_anew(grid: GridConfig, tmp_path: Path) -> None:
    run = runs_of(grid, ["main"])[0]
    half_done = tmp_path / run.name
    half_done.mkdir()
    (half_done / "job.json").write_text(json.dumps({"digest": "another"}))
    (half_done / "state.safetensors").write_bytes(b"of another training")
    found = perform(run, grid, data=CHECKOUT / "examples", folder=tmp_path)
    assert found["epochs"] == 3
    assert found["cpu_seconds"] > 0


def test_a_corpus_with_the_parsers_trees_is_found_beside_its_locks(
    grid: GridConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora = {**grid.corpora, "parsed": CorpusConfig(folder="tiny", trees="parser")}
    grid = grid.model_copy(update={"corpora": corpora})
    data = tmp_path / "data"
    (data / "tiny").mkdir(parents=True)
    for split in ("train", "dev"):
        (data / "tiny" / f"{split}.conllu").touch()
    monkeypatch.setattr(parse_corpus, "run", lambda job: Path(job.output).touch())
    place = corpus_folder("parsed", grid, data, tmp_path / "work")
    job = job_of(Run(corpus="parsed", profile="small", row=RowConfig(tagger="bilstm_crf"), seed=1), grid, place)
    assert job.data.train == [str(place / "tiny" / "train.conllu.zst")]
    assert job.data.dev == str(place / "tiny" / "dev.conllu.zst")


def test_a_run_that_another_process_works_on_is_left_to_it(tmp_path: Path) -> None:
    with locked(tmp_path / "run.lock") as mine, locked(tmp_path / "run.lock") as second:
        assert (mine, second) == (True, False)
    with locked(tmp_path / "run.lock") as later:
        assert later


def test_the_page_says_what_was_not_run_and_guesses_nothing(grid: GridConfig) -> None:
    page = render_page(grid, [])
    assert page.count("| not run |") == 4
    assert "n/a: no documents" in page
    assert "not testable: needs a licence" in page


def test_the_page_shows_mean_spread_floor_and_answers(grid: GridConfig) -> None:
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


def test_drafts_agree_in_brackets_where_there_are_two_stages(grid: GridConfig) -> None:
    one = {**record("bilstm_softmax", 1, [5]), "test": {"consistency": {"share": 80.0}}}
    agreement = {"consistency": {"share": 90.0}, "draft_consistency": {"share": 70.0}}
    two = {**record("wide", 1, [5]), "best": {"threshold": 0.5}, "test": agreement}
    lines = render_page(grid, [one, two]).splitlines()
    assert "| 80.0 % | 1.5 |" in next(line for line in lines if line.startswith("| Plain |"))
    assert "| 90.0 % (70.0 %) | 1.5 |" in next(line for line in lines if line.startswith("| wide |"))


@pytest.mark.parametrize(("seeds", "answer"), [(2, "open: fewer than 3 seeds"), (3, "yes")])
def test_an_answer_needs_three_seeds(grid: GridConfig, seeds: int, answer: str) -> None:
    table = grid.tables["main"].model_copy(update={"seeds": (1, 2, 3)})
    grid = grid.model_copy(update={"tables": {**grid.tables, "main": table}})
    records = [
        record(key, seed, [found] * 30)
        for key, found in (("wide", 9), ("bilstm_softmax", 7))
        for seed in range(1, seeds + 1)
    ]
    claim = next(line for line in render_page(grid, records).splitlines() if line.startswith("| Wide is better |"))
    assert claim.endswith(f"| +20.0 (+20.0 to +20.0), seeds {seeds} and {seeds} | {answer} |")


def test_measures_compare_what_they_say() -> None:
    better, worse = [record("a", 1, [9] * 20)], [record("b", 1, [6] * 20)]
    assert compare(better, worse, measure="all").mean == pytest.approx(30.0)
    assert compare(better, worse, measure="recurring_less_once").mean == pytest.approx(0.0)
    better[0]["units"]["test"]["draft"] = {"all": [[10, 10, 4]] * 20}
    assert compare(better, better, measure="draft").mean == pytest.approx(50.0)


def test_render_writes_the_page_from_the_records(tmp_path: Path) -> None:
    conf, results = tmp_path / "grid.yaml", tmp_path / "results"
    conf.write_text(yaml.safe_dump(GRID))
    results.mkdir()
    (results / "one.json").write_text(json.dumps(record("wide", 1, [5, 5])))
    page = tmp_path / "docs/page.md"
    done = CliRunner().invoke(main, ["render", "--grid", str(conf), "--results", str(results), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "| wide | 1.50 M | 1 | 50.0 |" in page.read_text()
    shutil.rmtree(results)
    results.mkdir()
    CliRunner().invoke(main, ["render", "--grid", str(conf), "--results", str(results), "-o", str(page)])
    assert "| wide |  | 0 | not run |" in page.read_text()


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"run": "ours')
    arguments = ["render", "--grid", str(CHECKOUT / "conf/grid.yaml"), "--results", str(tmp_path)]
    done = CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "page.md")])
    assert done.exit_code == 2
    assert "half.json: expected the record of a run, delete it to run it again" in done.stderr
