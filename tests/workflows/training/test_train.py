"""Training: the bundle on disk, and MLflow, which follows and registers it."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import mlflow.server
import pytest
import yaml
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord, concord_json
from concord_testing.encoders import write_encoder
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun
from werkzeug.serving import make_server

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import read_saved, tagger_digest
from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError
from concord.models.labels import BIO
from concord.models.words.encoder_config import EncoderConfig
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.errors import InputError
from concord.workflows import progress
from concord.workflows.corpora import find_overlap, label_types, read_corpora, read_provenance, weighted
from concord.workflows.mlflow_client import Run, TrackingError, tracking_uri
from concord.workflows.registry import fetch, model_names, resolve
from concord.workflows.training import train
from concord.workflows.training.job import read_train_job
from concord.workflows.training.train import TrainOptions, default_folder

pytestmark = pytest.mark.slow

EXAMPLES = CHECKOUT / "examples/train"
PROGRESS = r"epoch 1/\d: [\d,]+ of [\d,]+ words \(\d+%\), loss \d\.\d{3}; [\d,]+ words/s, 0:00:\d\d left"
FILES = {"job.json", "result.json", "environment.json"}


def runs() -> list[MlflowRun]:
    client = MlflowClient(tracking_uri())
    return list(client.search_runs([client.get_experiment_by_name("concord").experiment_id]))


def logged_epochs(run: MlflowRun) -> list[int]:
    return [item.step for item in MlflowClient(tracking_uri()).get_metric_history(run.info.run_id, "loss")]


def test_a_training_writes_its_result_and_mlflow_has_it_too(trained_store: Path, trained: Any) -> None:
    values, folder = trained.values, Path(trained.values["folder"])
    assert "epoch 8/8: loss" in trained.messages
    assert folder.parent == trained.store / "runs"
    assert values["registered"] == "models:/tiny/1"
    assert {path.name for path in folder.iterdir()} >= {"bundle", *FILES}
    assert load_tagger(folder / "bundle").name == "bilstm_crf"
    assert not re.search(PROGRESS, trained.messages), "that of an answer in JSON"
    provenance = read_provenance(folder / "bundle")
    assert provenance is not None
    assert [(part.role, part.files[0].name) for part in provenance.parts] == [
        ("train", "train/train.conllu"),
        ("dev", "train/dev.conllu"),
    ]
    documents = read_corpora([str(EXAMPLES / "dev.conllu")], labels={})
    assert find_overlap(provenance, documents).seen == {"dev": len(documents)}
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["versions"]["torch"].startswith("2.13.0")

    client = MlflowClient(tracking_uri())
    [run] = runs()
    assert (run.info.status, run.info.run_name) == ("FINISHED", folder.name)
    assert (run.data.params["fit.epochs"], run.data.params["model.lstm.hidden"]) == ("8", "16")
    assert int(run.data.params["parameters"]) > 100
    assert {"loss", "dev_f1", "learning_rates.tagger"} <= set(run.data.metrics)
    assert logged_epochs(run) == [*range(1, 9)]
    artifacts = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"model", *FILES}
    assert run.data.metrics["best_dev_f1"] == pytest.approx(values["best"]["dev_f1"])
    assert run.data.metrics["best_dev_f1.PER"] == values["dev"]["scores"]["PER"]["f1"]
    digest = hashlib.sha256((EXAMPLES / "train.conllu").read_bytes()).hexdigest()
    assert run.data.tags["sha256 train/train.conllu"] == digest

    version = resolve("models:/tiny@live")
    dev_f1 = f"{values['dev']['scores']['all']['f1']:.2f}"
    assert (version.run_id, version.tags["dev_f1"]) == (run.info.run_id, dev_f1)
    assert f"of 8, trained on train.conllu: dev F1 {dev_f1}" in version.description
    assert dev_f1 in concord("registry", "show", "tiny").stdout
    assert version.digest == values["digest"] == tagger_digest(fetch(version))
    scored = concord_json("evaluate", "models:/tiny@live", "--data", EXAMPLES / "dev.conllu")
    assert scored["scores"] == values["dev"]["scores"]


def test_a_training_shows_its_progress(train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    result = concord("train", train_file, "--no-tracking", "-o", tmp_path / "run", "--set", "fit.batch_sentences=4")
    assert result.exit_code == 0, result.output
    assert re.search(PROGRESS, result.stderr)
    assert "epoch 2/2: loss" in result.stderr


def test_the_bundled_encoder_is_read_in_training_and_afterwards(train_file: Path, tmp_path: Path) -> None:
    job = yaml.safe_load(train_file.read_text())
    vectors = {"dimension": 4, "table_forms": 9}
    job["profiles"]["small"]["model"] |= {"encoder": {}, "representation": {"form_vectors": vectors}}
    train_file.write_text(yaml.safe_dump(job))
    result = concord("train", train_file, "--no-tracking", "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output
    bundle = tmp_path / "run" / "bundle"
    saved = read_saved(bundle).config
    assert saved["encoder"] == saved["representation"]["form_vectors"]["encoder"]
    assert EncoderConfig.from_mapping(saved["encoder"]) == EncoderConfig()
    assert load_tagger(bundle).state_dict()["representation.form_vectors.table"].shape == (9, 4)
    # The encoder reads words that the table lacks.
    documents = [[Sentence(words=("The", "river", "of", word, "."))] for word in ("Zanzibar", "Quito")]
    found = load_tagger(bundle).predict_documents(documents)
    assert found[0] != found[1]
    assert load_tagger(bundle).predict_documents(documents) == found


@pytest.mark.encoder
@pytest.mark.usefixtures("fake_fit")
def test_tuned_encoder_is_registered_with_its_tagger(store: Path, train_file: Path) -> None:
    (store / "pretrained").mkdir()
    pretrained = write_encoder(store / "pretrained", ["the", "in", "of", "a", "to", "##s", "."])
    job = yaml.safe_load(train_file.read_text())
    encoder = {"source": str(pretrained), "sha256": None, "last_layers": 1, "tuned": True}
    job["profiles"]["small"]["model"]["encoder"] = encoder
    train_file.write_text(yaml.safe_dump(job))
    values = concord_json("train", train_file)
    shutil.rmtree(pretrained)
    shutil.rmtree(values["folder"])
    fetched = fetch(resolve("models:/tiny/1"))
    assert tagger_digest(fetched) == values["digest"]
    assert load_tagger(fetched).tuned_encoder is not None


@pytest.mark.usefixtures("fake_fit")
def test_mlflow_follows_a_training_and_what_is_resumed_is_a_run_of_its_own(
    store: Path, train_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del store
    logged = Run.log_metrics

    def interrupt(self: Run, metrics: Mapping[str, float], *, step: int) -> None:
        logged(self, metrics, step=step)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "log_metrics", interrupt)
        assert concord("train", train_file).exit_code == 130
    [run] = runs()
    assert (run.info.status, logged_epochs(run)) == ("KILLED", [1])
    refused = concord("train", train_file)
    assert (refused.exit_code, "--resume continues it" in refused.stderr) == (2, True)
    resumed = concord_json("train", train_file, "--resume")
    assert resumed["registered"] == "models:/tiny/1"
    assert {run.info.status: sorted(logged_epochs(run)) for run in runs()} == {"KILLED": [1], "FINISHED": [1, 2]}


@pytest.mark.usefixtures("fake_fit")
def test_a_store_that_fails_during_training_gets_what_it_lacks_when_the_training_ends(
    store: Path, train_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del store
    logged, calls = Run.log_metrics, []

    def fail_once(self: Run, metrics: Mapping[str, float], *, step: int) -> None:
        calls.append(step)
        if len(calls) == 2:
            raise TrackingError("the store is down")
        logged(self, metrics, step=step)

    monkeypatch.setattr(Run, "log_metrics", fail_once)
    result = concord("train", train_file, "--set", "fit.epochs=4")
    assert (result.exit_code, result.stderr.count("Warning")) == (0, 1), result.output
    assert "registered  models:/tiny/1" in result.stdout
    [run] = runs()
    assert (calls[:3], logged_epochs(run)) == ([1, 2, 2], [1, 2, 3, 4])


def test_a_tagger_that_finds_nothing_is_registered_only_if_forced(
    store: Path, train_file: Path, fake_fit: Callable[[float], None]
) -> None:
    del store
    fake_fit(0.0)
    refused = concord("train", train_file, "-o", "runs/none")
    assert refused.exit_code == 4, refused.output
    assert "registered  no, since F1 on dev is 0.00; --force registers it all the same" in refused.stdout
    assert model_names() == []
    assert load_tagger(Path("runs/none/bundle")).name == "bilstm_crf"
    assert [run.info.status for run in runs()] == ["FINISHED"]
    untracked = concord_json("train", train_file, "-o", "runs/untracked", "--no-tracking")
    assert untracked["refused"] is False
    labels = ("--set", "model.scheme=TOKENS", "--set", "data.label_column=upos", "--set", "data.test=null")
    assert concord_json("train", train_file, *labels, "-o", "runs/tokens", exit_code=4)["refused"] is True
    forced = concord("train", train_file, "-o", "runs/none", "--resume", "--force")
    assert (forced.exit_code, "registered  models:/tiny/1" in forced.stdout) == (0, True)


@pytest.mark.parametrize("alias", ["latest", "Latest", "v1", "V12", "a b", "a.b", "", "x" * 256])
def test_an_alias_that_the_registry_cannot_store_is_refused_at_once(
    store: Path, train_file: Path, tiny_bundle: Path, alias: str
) -> None:
    for command in (("train", train_file), ("registry", "register", tiny_bundle, "--name", "tiny")):
        result = concord(*command, "--alias", alias)
        assert result.exit_code == 2
        assert "reserves 'latest' and names such as 'v1'" in result.output
    assert not (store / "runs").exists()


@pytest.mark.usefixtures("fake_fit")
def test_a_training_without_mlflow_is_registered_later_by_the_command_that_it_names(
    store: Path, train_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store / "runs" / "my run"
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        result = concord("train", train_file, "--alias", "late", "-o", folder, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout).get("registered") is None
    assert result.stderr.count("Warning: MLflow does not answer; the training goes on") == 1
    command = f"concord registry register '{folder}/bundle' --name tiny --alias late"
    assert result.stderr.endswith(f"To register the tagger later: {command}\n")
    for _ in range(2):
        done = concord("registry", "register", folder / "bundle", "--name", "tiny", "--alias", "late")
        assert "registered  models:/tiny/1" in done.stdout
    assert resolve("models:/tiny@late").digest == json.loads(result.stdout)["digest"]


@pytest.fixture
def mlflow_server(tmp_path: Path, store_template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run MLflow's server in a thread and return its address; it has a database of its own."""
    database = shutil.copy(store_template, tmp_path / "server.db")
    monkeypatch.setenv(mlflow.server.BACKEND_STORE_URI_ENV_VAR, f"sqlite:///{database}")
    monkeypatch.setenv(mlflow.server.ARTIFACT_ROOT_ENV_VAR, "mlflow-artifacts:/")
    monkeypatch.setenv(mlflow.server.ARTIFACTS_DESTINATION_ENV_VAR, str(tmp_path / "artifacts"))
    monkeypatch.setenv(mlflow.server.SERVE_ARTIFACTS_ENV_VAR, "true")
    server = make_server("127.0.0.1", 0, mlflow.server.app, threaded=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


@pytest.mark.usefixtures("fake_fit", "store")
def test_a_training_is_registered_on_a_server(
    train_file: Path, mlflow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    values = concord_json("train", train_file, "--alias", "late")
    [run] = runs()
    assert (run.info.status, logged_epochs(run)) == ("FINISHED", [1, 2])
    version = resolve("models:/tiny@late")
    assert tagger_digest(fetch(version)) == values["digest"]
    assert '"late": 1' in concord("registry", "list", "--json").stdout


@pytest.mark.usefixtures("fake_fit")
def test_a_folder_of_another_training_is_refused_once_that_has_a_state(train_file: Path, tmp_path: Path) -> None:
    options = TrainOptions(folder=tmp_path / "run", tracked=False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.json").write_text("{}")
    train.train(read_train_job(train_file), options)
    with pytest.raises(ConfigError, match=r"contains another training; .*--resume .* fit\.seed \(None, now 2\)$"):
        train.train(read_train_job(train_file, overrides=["fit.seed=2"]), options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "/proc/none/run"), "Error: /proc/none/run: cannot be created (No such file or directory); choose"),
        (("--device", "cuda"), "device: expected a CUDA device, found none; use device=auto or cpu"),
        (("--set", "fit.epoch=3"), "fit: epoch: unknown key; did you mean 'epochs'"),
        (("--set", "fit.optimizers={other: {}}"), "fit.optimizers: expected the groups ['tagger'], got ['other']"),
        (("--set", "model.lstm.hiden=3"), "model: lstm.hiden: unknown key; did you mean 'hidden'"),
        (("--set", "tagger=bilstm_crff"), "did you mean 'bilstm_crf'"),
        (("--set", "model.encoder={source: no_such_package}"), "no_such_package"),
        (("--set", "data.dev=null"), "data.dev: input should be a valid array"),
    ],
)
def test_what_a_training_cannot_do_is_named(
    train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    result = concord("train", train_file, "--no-tracking", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(tmp_path.rglob("bundle"))


def test_train_refuses_an_invalid_model_name_first(train_file: Path, tmp_path: Path) -> None:
    job = read_train_job(train_file, overrides=["register_as=news/mine"])
    with pytest.raises(ConfigError, match=r"a model's name: .* got 'news/mine'"):
        train.train(job, TrainOptions(folder=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("fake_fit")
def test_dropped_types_and_pretrained_vectors(
    train_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("".join(f"{word} {' '.join(['0.5'] * 16)}\n" for word in ("the", "unheard")))
    job = read_train_job(train_file, overrides=["data.labels={ORG: null}", f"data.vectors={vectors}"])
    train.train(job, TrainOptions(folder=tmp_path / "run", tracked=False))
    tagger = load_tagger(tmp_path / "run" / "bundle")
    assert tagger.entity_types == ("LOC", "PER")
    assert "words have a pretrained vector" in capsys.readouterr().err
    assert "unheard" in tagger.vocabulary.words


def test_tagger_of_parts_of_speech_is_trained_and_scored_but_cannot_annotate(store: Path, train_file: Path) -> None:
    tokens = ("--set", "model.scheme=TOKENS", "--set", "data.label_column=upos")
    result = concord("train", train_file, *tokens, "--output", store / "pos")
    assert result.exit_code == 0, result.output
    assert re.search(r"epoch 2/2: loss \d+\.\d+, dev accuracy \d+\.\d\d \(draft", result.stderr)
    assert "accuracy  draft accuracy" in result.stdout
    assert "try it" not in result.stdout
    values = json.loads((store / "pos/result.json").read_text())
    [run] = runs()
    assert run.data.metrics["dev_accuracy"] == pytest.approx(values["best"]["dev_accuracy"])
    assert run.data.metrics["test_accuracy"] == pytest.approx(values["test"]["accuracy"])
    assert not {"dev_f1", "test_f1"} & set(run.data.metrics)
    tagger = load_tagger(store / "pos/bundle")
    assert {"NOUN", "VERB", "DET"} <= set(tagger.vocabulary.labels)

    dev = EXAMPLES / "dev.conllu"
    arguments = ("evaluate", "models:/tiny/1", "--data", dev, "--label-column", "upos")
    scored = concord_json(*arguments)
    assert scored["accuracy"] == pytest.approx(values["best"]["dev_accuracy"])
    by_label = [found for label, found in scored["scores"].items() if label != "all"]
    words, correct = (sum(found[name] for found in by_label) for name in ("gold", "correct"))
    assert (words, 100 * correct / words) == (scored["words"], pytest.approx(scored["accuracy"]))
    assert re.search(r"^NOUN +\d+\.\d\d", concord(*arguments).stdout, re.MULTILINE)

    refused = concord("annotate", dev, "--output", store / "out", "--model", store / "pos/bundle")
    assert (refused.exit_code, "cannot annotate" in refused.stderr) == (2, True)
    assert not (store / "out").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.label_column=upos"], r"upos holds token labels.*--set model\.scheme=TOKENS"),
        (["data.train=[EMPTY]"], r"gold\.conll: expected a gold corpus with one sentence or more, got none"),
        (["data.dev=EMPTY"], r"gold\.conll: expected a gold corpus with one sentence or more, got none"),
        (["data.dev=DAYS"], r"holds entities of type DAY.*--set data\.labels\.DAY=null"),
    ],
)
def test_corpora_that_teach_nothing_are_refused(
    train_file: Path, tmp_path: Path, write_corpus: Callable[[str], Path], overrides: list[str], message: str
) -> None:
    corpus = write_corpus("Monday\tB-DAY\n" if "DAYS" in overrides[0] else "-DOCSTART-\n")
    named = [override.replace("EMPTY", str(corpus)).replace("DAYS", str(corpus)) for override in overrides]
    with pytest.raises((ConfigError, InputError), match=message):
        train.train(read_train_job(train_file, overrides=named), TrainOptions(folder=tmp_path / "run", tracked=False))


@pytest.mark.usefixtures("fake_fit")
def test_train_warns_of_token_labels_that_only_dev_has(
    train_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["model.scheme=TOKENS", "data.label_column=upos", "data.test=null"]
    dev = tmp_path / "dev.conllu"
    dev.write_text("1\tOh\toh\tINTERJECTION\t_\t_\t0\troot\t_\t_\n")
    job = read_train_job(train_file, overrides=[*overrides, f"data.dev={dev}"])
    train.train(job, TrainOptions(folder=tmp_path / "run", tracked=False))
    assert "holds INTERJECTION, the training corpora do not" in capsys.readouterr().err


def test_default_folder_depends_on_the_job(train_file: Path) -> None:
    job = read_train_job(train_file)
    assert default_folder(job) == default_folder(read_train_job(train_file))
    assert default_folder(job) != default_folder(read_train_job(train_file, overrides=["fit.seed=2"]))


def test_a_weight_repeats_documents_and_chooses_a_fraction() -> None:
    documents = [[Sentence(words=(str(number),))] for number in range(10)]
    assert weighted(documents, 1) == documents
    assert weighted(documents, 2.3)[:20] == documents * 2
    chosen = weighted(documents, 0.3)
    assert weighted(documents, 2.3)[20:] == chosen
    assert len(chosen) == 3
    assert [document for document in documents if document in chosen] == chosen


def test_read_corpora_maps_and_drops_types_and_renames_token_labels(write_corpus: Callable[[str], Path]) -> None:
    path = write_corpus("Ada\tB-PER\nKing\tI-PER\nin\tO\nYork\tB-GPE\nMonday\tB-DAY\n")
    documents = read_corpora([str(path), str(path)], labels={"GPE": "LOC", "DAY": None})
    expected = Sentence(words=("Ada", "King", "in", "York", "Monday"), labels=("B-PER", "I-PER", "O", "B-LOC", "O"))
    assert documents == [(expected,), (expected,)]
    assert label_types(documents, BIO) == {"PER", "LOC"}
    path, form = write_corpus("She\tPRP\nran\tVBD\n"), GoldFormat(label_scheme="TOKENS")
    ((sentence,),) = read_corpora([str(path)], labels={"VBD": "VERB"}, form=form)
    assert sentence.labels == ("PRP", "VERB")
    with pytest.raises(ConfigError, match=r"labels\.VBD: expected a label"):
        read_corpora([str(path)], labels={"VBD": None}, form=form)
