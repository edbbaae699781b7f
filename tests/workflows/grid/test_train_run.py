"""One run of the grid: its job, its corpus, and what becomes of an earlier training."""

import json
from pathlib import Path

import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.grids import small_grid

from concord.workflows.grid.config import CorpusConfig, RowConfig, Run, read_grid, runs_of
from concord.workflows.grid.train_run import corpus_folder, job_of, train_run
from concord.workflows.training import parse_corpus


@pytest.mark.slow
def test_every_run_of_the_grid_has_a_valid_job() -> None:
    grid = read_grid(CHECKOUT / "conf/grid.yaml")
    for run in runs_of(grid, list(grid.tables)):
        job = job_of(run, grid, Path("/corpora"))
        assert job.tagger == run.row.tagger
        assert job.fit["seed"] == run.seed
    for claim in grid.claims:
        keys = {row.own_key for row in grid.tables[claim.table].rows}
        assert {claim.better, claim.worse} - {None} <= keys


def test_runs_of_a_seed_come_before_those_of_the_next() -> None:
    assert [run.name for run in runs_of(small_grid(), ["main", "more"])] == [
        "ours.small.bilstm_softmax.1", "ours.small.wide.1", "ours.small.bilstm_softmax.2", "ours.small.wide.2",
        "alone.small.uanet.1",
    ]  # fmt: skip


@pytest.mark.slow
def test_training_with_another_configuration_is_started_again(tmp_path: Path) -> None:
    grid = small_grid()
    run = runs_of(grid, ["main"])[0]
    half_done = tmp_path / run.name
    half_done.mkdir()
    (half_done / "job.json").write_text(json.dumps({"digest": "another"}))
    (half_done / "state.safetensors").write_bytes(b"of another training")
    record = train_run(run, grid, data=CHECKOUT / "examples", work=tmp_path)
    assert record["epochs"] == 3
    assert record["cpu_seconds"] > 0


def test_corpus_with_trees_of_the_parser_is_found_beside_its_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora = {**small_grid().corpora, "parsed": CorpusConfig(folder="tiny", trees="parser")}
    grid = small_grid().model_copy(update={"corpora": corpora})
    data = tmp_path / "data"
    (data / "tiny").mkdir(parents=True)
    for split in ("train", "dev"):
        (data / "tiny" / f"{split}.conllu").touch()
    monkeypatch.setattr(parse_corpus, "run", lambda job: Path(job.output).touch())
    place = corpus_folder("parsed", grid, data, tmp_path / "work")
    job = job_of(Run(corpus="parsed", profile="small", row=RowConfig(tagger="bilstm_crf"), seed=1), grid, place)
    assert job.data.train == [str(place / "tiny" / "train.conllu.zst")]
    assert job.data.dev == str(place / "tiny" / "dev.conllu.zst")
