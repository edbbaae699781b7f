"""A new folder of labels: what it holds, and that its commands work in order."""

import json
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from concord_testing.command_line import concord

from concord.models.errors import ConfigError
from concord.pipeline.corpora.gold_corpus import read_gold
from concord.pipeline.corpora.read_terms import read_terms
from concord.workflows.promotion import read_gate
from concord.workflows.training.job import init_command, read_train_job


def test_the_files_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my labels"
    result = concord("init", str(folder), "--types", "DRUG, DOSE", "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert set(values["files"]) >= {"README.md", "train.yaml", "promote.yaml", "terms.jsonl", "texts/notes.jsonl"}
    monkeypatch.chdir(folder)
    job = read_train_job(Path("train.yaml"))
    assert job.register_as == "my-labels"
    assert job.data.dev == [str(folder / "corpora/dev.conllu")]
    assert job.model["encoder"] == {"last_layers": 4}
    for path in [
        *job.data.paths("train"),
        *job.data.paths("dev"),
        *job.data.paths("test"),
        *read_gate(Path("promote.yaml")).data,
    ]:
        labels = {label for document in read_gold(Path(path)) for one in document for label in one.labels or ()}
        assert labels == {"O", "B-DRUG", "I-DRUG", "B-DOSE", "I-DOSE"} - ({"I-DRUG", "I-DOSE"} - labels)
    terms = read_terms(Path("terms.jsonl"))
    assert terms.labels == {"DRUG", "DOSE"}
    assert any(terms.spans(one) for document in read_gold(Path("corpora/texts.conll")) for one in document)
    text = Path("README.md").read_text()
    assert all(command in text for command in values["commands"])
    assert set(re.findall(r"concord (\w+)", " ".join(values["commands"]))) == {
        "prepare",
        "train",
        "evaluate",
        "annotate",
        "promote",
    }


def test_no_document_of_the_test_set_is_in_another(tmp_path: Path) -> None:
    init_command(tmp_path / "new", ["A", "B", "C"])
    sentences = {
        path.stem: {one.words for document in read_gold(path) for one in document}
        for path in (tmp_path / "new" / "corpora").iterdir()
    }
    plain = {words for words in sentences["train"] if not any(word[:1].isupper() for word in words[1:])}
    assert not sentences["test"] & (sentences["train"] | sentences["dev"]) - plain


@pytest.mark.parametrize("types", ["", "DRUG,DRUG", "DRUG,DO SE", "B/DRUG"])
def test_other_types_are_refused(tmp_path: Path, types: str) -> None:
    result = concord("init", str(tmp_path / "new"), "--types", types)
    assert result.exit_code == 2
    assert "--types: expected" in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="expected a new or empty folder"):
        init_command(tmp_path, ["DRUG"])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow(reason="runs every command of the folder, two trainings among them")
def test_the_commands_work_in_order(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = init_command(store / "my-labels", ["DRUG", "DOSE"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")
    # Beside other tests two threads wait for each other most of the time.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(store / "my-labels")
    config = Path("train.yaml").read_text()
    assert "epochs: 60" in config
    for command in answer.values["commands"]:
        # The first training is used by what follows; the one with the list only has to work.
        epochs = 2 if "data.terms" in command else 14
        Path("train.yaml").write_text(config.replace("epochs: 60", f"epochs: {epochs}"))
        result = concord(*shlex.split(command)[1:])
        assert result.exit_code == 0, (command, result.output)
    score = json.loads(Path("runs/first/result.json").read_bytes())["test"]
    assert score["scores"]["all"]["f1"] > 50
    entities = pq.read_table("out/texts/entities").to_pylist()
    assert {row["label"] for row in entities} == {"DRUG", "DOSE"}
    assert {row["source"] for row in entities} == {"model", "terms"}
