"""Cross-validation in place of a dev corpus."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors import safe_open

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence, allowed_labels
from concord.models.errors import ConfigError
from concord.models.evaluation.metrics import gold_sequences, span_scores
from concord.models.labels import BIO
from concord.models.training.fit import EpochResult, fit
from concord.models.training.fit_calibration import REFINE_ALL, label_sequences, labels_at, threshold_grid
from concord.workflows.cli.main import main
from concord.workflows.corpora.corpora import read_corpora
from concord.workflows.corpora.provenance import read_provenance
from concord.workflows.training import folds, train
from concord.workflows.training.folds import best_epoch, cut_folds
from concord.workflows.training.job import read_train_job
from concord.workflows.training.train import TrainOptions

NAMES = ("Ada", "Ben", "Cem", "Dora", "Eva", "Finn")


def document(name: str) -> list[Sentence]:
    return [Sentence(words=(name, "sings"), labels=("B-PER", "O")), Sentence(words=("She",), labels=("O",))]


def test_every_document_is_scored_once_by_a_training_without_it() -> None:
    documents = [document(name) for name in (*NAMES, "Ada", "Ada")]
    parts = cut_folds(documents, 3, seed=1)
    scored = [held[0].words[0] for _, held_out in parts for held in held_out]
    assert sorted(scored) == sorted(NAMES)
    assert sorted(len(held_out) for _, held_out in parts) == [2, 2, 2]
    for train_documents, held_out in parts:
        names = {one[0].words[0] for one in held_out}
        assert [one for one in documents if one[0].words[0] not in names] == train_documents
    assert parts == cut_folds(documents, 3, seed=1)
    assert (
        len(
            {
                tuple(held[0].words[0] for _, out in cut_folds(documents, 3, seed=seed) for held in out)
                for seed in range(9)
            }
        )
        > 1
    )


def test_incomplete_labels_are_in_every_training_and_never_scored() -> None:
    weak = [
        Sentence(
            words=("Ada",),
            labels=("O",),
            soft=allowed_labels(("O",), BIO.label_set({"PER"}), lacks=["PER"], scheme=BIO),
        )
    ]
    bare = [Sentence(words=("Ada",))]
    for train_documents, held_out in cut_folds([*map(document, NAMES), weak, bare], 2, seed=1):
        assert train_documents[-2:] == [weak, bare]
        assert weak not in held_out
        assert bare not in held_out


def test_too_few_documents_are_named() -> None:
    with pytest.raises(ConfigError, match=r"data\.folds: expected 3 or more different training documents .*, got 2"):
        cut_folds([document("Ada"), document("Ben"), document("Ada")], 3, seed=1)


def epoch(number: int, f1: float) -> EpochResult:
    scores = {"dev_f1": f1, "dev_precision": f1, "dev_recall": f1, "draft_f1": f1 - 1}
    return EpochResult(epoch=number, loss=0.0, threshold=None, seconds=0, dev_seconds=0, learning_rates={}, **scores)


def test_the_best_epoch_is_that_of_the_mean_among_those_of_every_part() -> None:
    one = [epoch(1, 10), epoch(2, 60), epoch(3, 50), epoch(4, 99)]
    other = [epoch(1, 70), epoch(2, 30), epoch(3, 40)]
    chosen, scores = best_epoch([one, other])
    assert chosen == 2
    assert scores == {"dev_f1": 45.0, "dev_precision": 45.0, "dev_recall": 45.0, "draft_f1": 44.0}


@pytest.mark.parametrize("chosen", ["dev: null", "dev: d.conll, folds: 3", "dev: d.conll, folds: 1"])
def test_a_job_has_either_a_dev_set_or_folds(chosen: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"tagger: bilstm_crf\ndata: {{train: t.conll, {chosen}}}\nprofiles: {{small: {{model: {{}}}}}}\n")
    with pytest.raises(ConfigError, match=r"expected either dev, .* or folds|folds: "):
        read_train_job(path)


def test_a_tagger_that_has_read_all_folds_cannot_be_scored_on_them(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "tagger: bilstm_crf\nstart: runs/a\ndata: {train: t.conll, folds: 3}\nprofiles: {small: {model: {}}}\n"
    )
    with pytest.raises(ConfigError, match=r"start: expected data\.dev, a corpus, got data\.folds"):
        read_train_job(path)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Return a corpus of twelve documents in which a word after "called" is a person."""
    lines = []
    for number in range(12):
        lines.append(f"-DOCSTART-\tdoc{number}\n\ncalled\tO\nZor{number}\tB-PER\n\nsome\tO\nword{number}\tO\n\n")
    path = tmp_path / "corpus.conll"
    path.write_text("".join(lines))
    return path


JOB = """
tagger: uanet
data: {{train: {corpus}, folds: 3}}
profiles:
  small:
    model: {model}
    fit:
      epochs: 8
      patience: 3
      batch_sentences: 4
      optimizers: {{stage_one: {{learning_rate: 0.02}}, stage_two: {{learning_rate: 0.02}}}}
"""


@pytest.fixture
def job_file(corpus: Path, tmp_path: Path, two_stage_config: dict[str, Any]) -> Path:
    """Return the job of a UANet with three folds of the corpus in place of a dev set."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(corpus=corpus, model=json.dumps(two_stage_config)))
    return path


@pytest.mark.slow
def test_a_type_of_one_document_only_is_a_label_in_every_part(corpus: Path, job_file: Path, tmp_path: Path) -> None:
    with corpus.open("a") as more:
        more.write("-DOCSTART-\trare\n\nat\tO\nAcme\tB-ORG\n\n")
    out = tmp_path / "run"
    arguments = ["train", str(job_file), "-o", str(out), "--no-tracking", "--set", "fit.epochs=2"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert {load_tagger(part).entity_types for part in (out / "folds").glob("*/bundle")} == {("ORG", "PER")}


def read_metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as stored:
        found: dict[str, str] = stored.metadata()
    return found


@pytest.mark.slow
def test_training_without_a_dev_corpus(job_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = CliRunner().invoke(main, ["train", str(job_file), "-o", str(out), "--no-tracking", "--json"])
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    histories = [
        [EpochResult(**entry) for entry in json.loads(read_metadata(state)["history"])]
        for state in sorted((out / "folds").glob("*/state.safetensors"))
    ]
    assert len(histories) == values["folds"] == 3
    chosen, scores = best_epoch(histories)
    assert values["epochs"] == values["best"]["epoch"] == chosen
    assert values["best"]["dev_f1"] == pytest.approx(scores["dev_f1"])

    # The threshold is the best by the mean over the parts, each scored by the tagger that did not read it.
    job = read_train_job(job_file)
    documents = read_corpora(job.data.paths("train"), labels={})
    curves = []
    for number, (_, held_out) in enumerate(cut_folds(documents, 3, seed=1), 1):
        tagger = load_tagger(out / "folds" / str(number) / "bundle")
        table = tagger.tabulate(held_out, PredictOptions(threshold=REFINE_ALL))
        gold = gold_sequences(held_out)
        curves.append(
            [
                span_scores(gold, label_sequences(labels_at(table, one), held_out, tagger.vocabulary))["all"].f1
                for one in threshold_grid(len(tagger.vocabulary.labels))
            ]
        )
    means = [sum(values) / 3 for values in zip(*curves, strict=True)]
    final = load_tagger(out / "bundle")
    grid = threshold_grid(len(final.vocabulary.labels))
    assert final.threshold == max(zip(means, grid, strict=True))[1]

    found = read_provenance(out / "bundle")
    assert found is not None
    assert {part.role for part in found.parts} == {"train"}

    # A training that was interrupted is finished; another one is refused.
    (out / "state.safetensors").unlink()
    again = ["train", str(job_file), "-o", str(out), "--no-tracking", "--resume", "--json"]
    assert json.loads(CliRunner().invoke(main, again).stdout)["digest"] == values["digest"]
    (out / "state.safetensors").unlink()
    other = CliRunner().invoke(main, [*again, "--set", "data.folds=4"])
    assert other.exit_code == 2
    assert "contains another training" in other.output


@pytest.mark.slow
def test_a_training_killed_in_a_fold_continues_there(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, options = read_train_job(job_file, overrides=["fit.epochs=2"]), {"tracked": False, "folder": tmp_path / "run"}
    calls = []

    def killed(*arguments: object, **named: object) -> object:
        calls.append(arguments[4])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return fit(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(folds, "fit", killed)
    with pytest.raises(KeyboardInterrupt):
        train.train(job, TrainOptions(**options))  # type: ignore[arg-type]
    first = (tmp_path / "run" / "folds" / "1" / "state.safetensors").stat().st_mtime_ns
    train.train(job, TrainOptions(resume=True, **options))  # type: ignore[arg-type]
    assert (tmp_path / "run" / "folds" / "1" / "state.safetensors").stat().st_mtime_ns == first
    assert (tmp_path / "run" / "bundle" / "tagger.json").exists()
