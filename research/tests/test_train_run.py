"""One run of the grid: its job, its corpus, and what becomes of an earlier training."""

import json
import shutil
from math import ceil
from pathlib import Path

import pytest
import torch
from concord_testing.checkout import CHECKOUT

from concord.models.errors import EncoderMissingError
from concord.models.words.encoder import FrozenEncoder
from concord.models.words.encoder_config import EncoderConfig
from concord.pipeline.corpora.gold_corpus import read_gold
from research.grid.config import CorpusConfig, RowConfig, Run, read_grid, runs_of
from research.grid.settings import changes
from research.grid.train_run import job_of, read_features, train_run, write_features
from research.tests.grids import small_grid

pytestmark = pytest.mark.slow

WORDS = ("ada", "laughed", "letters", "paris", "unheardof")


def test_every_run_of_the_grid_has_a_valid_job() -> None:
    grid = read_grid(CHECKOUT / "research/grid.yaml")
    # A row has the same job with every seed but for the seed.
    for run in {(run.corpus, run.profile, run.row.own_key): run for run in runs_of(grid, list(grid.tables))}.values():
        job = job_of(run, grid, Path("/corpora"))
        assert job.tagger == run.row.tagger
        assert job.fit["seed"] == run.seed
    for claim in grid.claims:
        for table in claim.tables:
            keys = {row.own_key for row in grid.tables[table].rows}
            assert {claim.better, claim.worse} - {None} <= keys, (claim.text, table)


def test_runs_of_a_seed_come_before_those_of_the_next() -> None:
    assert [run.name for run in runs_of(small_grid(), ["main", "more"])] == [
        "ours.small.bilstm_softmax.1", "ours.small.wide.1", "ours.small.bilstm_softmax.2", "ours.small.wide.2",
        "alone.small.uanet.1",
    ]  # fmt: skip


def test_training_with_another_configuration_is_started_again(tmp_path: Path) -> None:
    grid = small_grid()
    run = runs_of(grid, ["main"])[0]
    half_done = tmp_path / run.name
    half_done.mkdir()
    (half_done / "job.json").write_text(json.dumps({"digest": "another"}))
    (half_done / "state.safetensors").write_bytes(b"of another training")
    record = train_run(run, grid, data=CHECKOUT / "examples", work=tmp_path)
    sentences = sum(map(len, read_gold(CHECKOUT / "examples/train/train.conllu")))
    assert (record["epochs"], record["updates"]) == (3, 3 * ceil(sentences / 32))
    assert changes(json.loads(json.dumps(record)), run, grid) == []
    assert record["cpu_seconds"] > 0


def test_lenient_score_of_a_crf_held_to_well_formed_labels_is_the_strict_one(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for name in ("train", "dev"):
        shutil.copy(CHECKOUT / "examples/train/train.conllu", tmp_path / "train" / f"{name}.conllu")
    options = (
        "fit.epochs=6",
        "fit.batch_sentences=2",
        "fit.optimizers.tagger.learning_rate=0.01",
        "model.lstm.hidden=32",
    )
    corpora = {**small_grid().corpora, "known": CorpusConfig(folder="train", set=options)}
    grid = small_grid().model_copy(update={"corpora": corpora})
    run = Run(corpus="known", profile="small", row=RowConfig(tagger="bilstm_crf"), seed=1)
    record = train_run(run, grid, data=tmp_path, work=tmp_path)
    assert record["dev"]["lenient_gain"] == pytest.approx(0)
    assert record["dev"]["scores"]["all"]["f1"] > 0


def test_halves_are_scored_as_dev_and_test_and_another_corpus_in_its_place(tmp_path: Path) -> None:
    corpora = {
        "halved": CorpusConfig(folder="train", halves=True, set=("fit.epochs=1",)),
        "whole": CorpusConfig(folder="train"),
    }
    grid = small_grid().model_copy(update={"corpora": {**small_grid().corpora, **corpora}})
    rows = [RowConfig(tagger="bilstm_softmax", key=key, scored_on=key) for key in (None, "whole")]
    runs = [Run(corpus="halved", profile="small", row=row, seed=1) for row in rows]
    halved, whole = (train_run(run, grid, data=CHECKOUT / "examples", work=tmp_path) for run in runs)
    parts = [halved["units"][split]["final"]["all"] for split in ("dev", "test")]
    every = whole["units"]["dev"]["final"]["all"]
    # The same tagger, which the first half chose, scored on the halves and on the whole.
    assert (every[::2], every[1::2]) == (parts[0], parts[1])
    assert whole["settings"]["corpus"]["scored_on"] == "whole"
    assert halved["best"]["dev_f1"] == whole["best"]["dev_f1"]


def test_cache_is_read_back_from_a_file_of_the_same_encoder_only(tmp_path: Path) -> None:
    config = EncoderConfig()
    first, second = FrozenEncoder(config), FrozenEncoder(config)
    first.cache([WORDS, ("paris",)])
    write_features(first, config, tmp_path / "features.safetensors")
    read_features(second, config, tmp_path / "features.safetensors")
    assert all(map(torch.equal, first.features([WORDS, ("paris",)]), second.features([WORDS, ("paris",)])))
    other = config.model_copy(update={"last_layers": 1})
    with pytest.raises(EncoderMissingError, match=r"features\.safetensors: expected features of"):
        read_features(FrozenEncoder(other), other, tmp_path / "features.safetensors")
