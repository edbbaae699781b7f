"""Trainings side by side: the scores of every epoch, and what cannot be compared."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from concord_testing.checkout import CHECKOUT

from concord.workflows.training.job import read_train_job
from concord.workflows.training.train import TrainOptions, train
from research.epochs import main

pytestmark = pytest.mark.slow

EXAMPLES = CHECKOUT / "examples/train"


def trained(folder: Path, *overrides: str) -> Path:
    data = [f"data.train=[{EXAMPLES / 'train.conllu'}]", f"data.dev={EXAMPLES / 'dev.conllu'}"]
    job = read_train_job(
        CHECKOUT / "conf/train/bilstm_softmax.yaml", profile="small", overrides=[*data, "fit.epochs=2", *overrides]
    )
    train(job, TrainOptions(folder=folder, tracked=False))
    return folder


def test_scores_of_every_epoch_are_put_side_by_side(tmp_path: Path) -> None:
    folders = [trained(tmp_path / name, f"fit.seed={seed}") for seed, name in enumerate(("one", "two"), 1)]
    result = CliRunner().invoke(main, [*map(str, folders), "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    values = json.loads((tmp_path / "out/epochs.json").read_text())
    assert values["measure"] == "F1"
    for folder in folders:
        epochs = values["trainings"][folder.name]
        best = json.loads((folder / "result.json").read_text())["best"]
        assert [entry["epoch"] for entry in epochs] == [1, 2]
        assert max(entry["dev"] for entry in epochs) == best["dev_f1"]
        assert f"{epochs[1]['dev']:.2f}" in result.stdout
    assert (tmp_path / "out/epochs.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_scores_of_other_measures_and_missing_trainings_are_refused(tmp_path: Path) -> None:
    names = trained(tmp_path / "names", "fit.epochs=1")
    tags = trained(tmp_path / "tags", "fit.epochs=1", "data.label_column=upos", "model.scheme=TOKENS")
    for folder, message in ((tags, "one measure of dev scores"), (tmp_path, "found no such file")):
        result = CliRunner().invoke(main, [str(names), str(folder), "--output", str(tmp_path / "out")])
        assert result.exit_code == 2, result.output
        assert message in result.stderr
