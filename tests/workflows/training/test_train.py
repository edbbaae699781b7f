"""Training: the bundle on disk, epochs in the tracking store, the registered version."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from concord_testing.checkout import CHECKOUT
from concord_testing.encoders import write_encoder
from mlflow import MlflowClient

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import read_saved, tagger_digest
from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError, ModelError
from concord.models.labels import BIO
from concord.models.words.encoder_config import EncoderConfig
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.errors import InputError
from concord.workflows.cli.main import main
from concord.workflows.corpora.corpora import label_types, read_corpora, weighted
from concord.workflows.registry.mlflow_client import Run, TrackingError, tracking_uri
from concord.workflows.registry.model_versions import fetch, model_names, resolve
from concord.workflows.training import train
from concord.workflows.training.job import read_train_config, read_train_job
from concord.workflows.training.train import TrainOptions, default_folder

pytestmark = pytest.mark.slow


def concord(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def small_encoder(folder: Path) -> Path:
    (folder / "pretrained").mkdir()
    return write_encoder(folder / "pretrained", ["the", "in", "of", "a", "to", "##s", "."])


def test_train_logs_registers_and_can_be_evaluated(store: Path, train_file: Path) -> None:
    result = concord("train", train_file, "--alias", "live", "--force", "--json")
    assert result.exit_code == 0, result.output
    assert "epoch 2/2: loss" in result.stderr
    values = json.loads(result.stdout)
    folder = Path(values["folder"])
    assert folder.parent == store / "runs"
    assert values["registered"] == "models:/tiny/1"
    files = {"job.json", "result.json", "config.resolved.yaml", "environment.json"}
    assert {path.name for path in folder.iterdir()} >= {"bundle", "run.json", *files}
    assert load_tagger(folder / "bundle").name == "bilstm_crf"

    client = MlflowClient(tracking_uri())
    run = client.get_run(resolve("models:/tiny@live").run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["fit.epochs"] == "2"
    assert run.data.params["model.lstm.hidden"] == "16"
    assert int(run.data.params["parameters"]) > 100
    assert {"loss", "dev_f1", "learning_rates.tagger", "test_f1"} <= set(run.data.metrics)
    assert len(client.get_metric_history(run.info.run_id, "dev_f1")) == 2
    artifacts = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"model", *files}
    assert run.data.metrics["best_dev_f1"] == pytest.approx(values["best"]["dev_f1"])
    assert run.data.metrics["test_f1.PER"] == values["test"]["scores"]["PER"]["f1"]
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["versions"]["torch"].startswith("2.13.0")
    assert {item.dataset.name for item in run.inputs.dataset_inputs} == {"train/train.conllu", "train/dev.conllu"}
    digest = hashlib.sha256((CHECKOUT / "examples/train/train.conllu").read_bytes()).hexdigest()
    assert run.data.tags["sha256 train/train.conllu"] == digest
    assert {"training", digest} in [{tag.value for tag in item.tags} for item in run.inputs.dataset_inputs]

    version = resolve("models:/tiny@live")
    dev_f1, test_f1 = (f"{values[part]['scores']['all']['f1']:.2f}" for part in ("dev", "test"))
    assert (version.tags["dev_f1"], version.tags["test_f1"]) == (dev_f1, test_f1)
    assert f"trained on train.conllu: dev F1 {dev_f1}, test F1 {test_f1}" in version.description
    assert version.description.startswith(f"bilstm_crf (small), epoch {values['best']['epoch']} of 2")
    assert dev_f1 in concord("registry", "show", "tiny").stdout
    assert version.digest == values["digest"] == tagger_digest(fetch(version))
    dev = train_file.read_text().partition("dev: ")[2].split()[0]
    scored = json.loads(concord("evaluate", "models:/tiny@live", "--data", dev, "--json").stdout)
    assert scored["scores"] == values["test"]["scores"]


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
def test_tuned_encoder_is_registered_with_its_tagger(store: Path, train_file: Path) -> None:
    pretrained = small_encoder(store)
    job = yaml.safe_load(train_file.read_text())
    profile = job["profiles"]["small"]
    profile["model"]["encoder"] = {"source": str(pretrained), "sha256": None, "last_layers": 1, "tuned": True}
    profile["fit"] |= {"epochs": 1, "optimizers": {"tagger": {}, "encoder": {"kind": "adamw", "layer_decay": 0.9}}}
    train_file.write_text(yaml.safe_dump(job))
    values = json.loads(concord("train", train_file, "--force", "--json").stdout)
    shutil.rmtree(pretrained)
    shutil.rmtree(values["folder"])
    fetched = fetch(resolve("models:/tiny/1"))
    assert tagger_digest(fetched) == values["digest"]
    assert load_tagger(fetched).tuned_encoder is not None


def test_resumed_training_continues_its_run(store: Path, train_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = Run.log_metrics
    logged_steps = []

    def interrupt(self: Run, metrics: dict[str, float], *, step: int, time_ms: int) -> None:
        logged(self, metrics, step=step, time_ms=time_ms)
        logged_steps.append(step)
        if logged_steps == [1]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "log_metrics", interrupt)
    assert concord("train", train_file).exit_code == 130
    monkeypatch.undo()
    monkeypatch.chdir(store)
    monkeypatch.setenv("CONCORD_CACHE", str(store / "cache"))

    refused = concord("train", train_file)
    assert (refused.exit_code, "--resume continues it" in refused.stderr) == (2, True)
    resumed = concord("train", train_file, "--resume", "--force", "--json")
    assert resumed.exit_code == 0, resumed.output
    client = MlflowClient(tracking_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("concord").experiment_id])
    assert [item.step for item in client.get_metric_history(run.info.run_id, "loss")] == [1, 2]
    assert run.info.status == "FINISHED"
    whole = concord("train", train_file, "--no-tracking", "--output", store / "whole", "--json")
    assert json.loads(whole.stdout)["digest"] == json.loads(resumed.stdout)["digest"]


def test_a_tagger_that_finds_nothing_is_registered_only_if_forced(store: Path, train_file: Path) -> None:
    refused = concord("train", train_file, "-o", "runs/none")
    assert refused.exit_code == 4, refused.output
    assert "registered  no, since F1 on dev is 0.00; --force registers it all the same" in refused.stdout
    assert model_names() == []
    bundle = Path("runs/none/bundle")
    assert load_tagger(bundle).name == "bilstm_crf"
    client = MlflowClient(tracking_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("concord").experiment_id])
    assert (run.info.status, run.data.metrics["best_dev_f1"]) == ("FINISHED", 0)
    untracked = concord("train", train_file, "-o", "runs/untracked", "--no-tracking", "--json")
    assert (untracked.exit_code, json.loads(untracked.stdout)["refused"]) == (0, False)
    forced = concord("train", train_file, "-o", "runs/none", "--resume", "--force")
    assert (forced.exit_code, "registered  models:/tiny/1" in forced.stdout) == (0, True)


def test_a_tagger_of_token_labels_that_is_never_right_is_not_registered(store: Path, train_file: Path) -> None:
    labels = ("--set", "model.scheme=TOKENS", "--set", "data.label_column=upos", "--set", "data.labels={NOUN: X1}")
    values = json.loads(concord("train", train_file, *labels, "-o", "runs/a", "--set", "fit.epochs=1", "--json").stdout)
    assert values["refused"] is (round(values["best"]["dev_accuracy"], 2) == 0)


@pytest.mark.parametrize("alias", ["latest", "Latest", "v1", "V12", "a b", "a.b", "", "x" * 256])
def test_an_alias_that_the_registry_cannot_store_is_refused_at_once(
    store: Path, train_file: Path, tiny_bundle: Path, alias: str
) -> None:
    for command in (("train", train_file), ("registry", "register", tiny_bundle, "--name", "tiny")):
        result = concord(*command, "--alias", alias)
        assert result.exit_code == 2
        assert "reserves 'latest' and names such as 'v1'" in result.output
    assert not (store / "runs").exists()


@pytest.fixture
def store_down(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Let no server answer; undoing the patch is the server's return."""
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        yield patch


def sync(*places: object) -> list[dict[str, str | None]]:
    result = concord("registry", "sync", *places, "--json")
    assert result.exit_code == 0, result.output
    sent: list[dict[str, str | None]] = json.loads(result.stdout)["sent"]
    return sent


def test_a_training_without_mlflow_is_recorded_and_registered_once_it_is_there(
    store: Path, train_file: Path, store_down: pytest.MonkeyPatch
) -> None:
    folder = store / "runs" / "my run"
    result = concord("train", train_file, "--force", "--alias", "late", "-o", folder, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout).get("registered") is None
    assert result.stderr.count("Warning: MLflow does not answer; the run goes on") == 1
    assert result.stderr.endswith(f"To send them later: concord registry sync '{folder}'\n")
    assert concord("registry", "sync", folder).exit_code == 75
    assert concord("train", train_file, "--no-tracking", "-o", "runs/untracked").exit_code == 0
    store_down.undo()
    assert sync() == [{"folder": "runs/my run", "registered": "models:/tiny/1"}]
    assert sync(folder, folder.parent) == []
    client = MlflowClient(tracking_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("concord").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "my run")
    assert [item.step for item in client.get_metric_history(run.info.run_id, "loss")] == [1, 2]
    assert {"best_dev_f1", "test_f1.PER"} <= run.data.metrics.keys()
    assert (run.data.params["fit.epochs"], len(run.inputs.dataset_inputs)) == ("2", 2)
    assert {item.path for item in client.list_artifacts(run.info.run_id)} >= {"model", "result.json"}
    version = resolve("models:/tiny@late")
    assert (version.version, version.run_id) == (1, run.info.run_id)
    assert version.tags["dev_f1"] in version.description


def test_a_store_that_fails_during_training_gets_what_it_lacks_when_the_training_ends(
    store: Path, train_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = Run.log_metrics
    calls = []

    def fail_once(self: Run, metrics: Mapping[str, float], *, step: int, time_ms: int) -> None:
        calls.append(step)
        if len(calls) == 2:
            raise TrackingError("the store is down")
        logged(self, metrics, step=step, time_ms=time_ms)

    monkeypatch.setattr(Run, "log_metrics", fail_once)
    result = concord("train", train_file, "--force")
    assert (result.exit_code, result.stderr.count("Warning")) == (0, 1), result.output
    assert "registered  models:/tiny/1" in result.stdout
    client = MlflowClient(tracking_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("concord").experiment_id])
    assert [item.step for item in client.get_metric_history(run.info.run_id, "loss")] == [1, 2]
    assert sync() == []


def test_a_killed_training_is_recorded_as_such_until_it_is_finished(
    store: Path, train_file: Path, store_down: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    store_down.setattr(train, "score_tagger", interrupt)
    assert concord("train", train_file, "-o", "runs/a").exit_code == 130
    store_down.undo()
    running = json.loads(Path("runs/a/run.json").read_text()) | {"status": None, "ended_ms": None}
    Path("runs/a/run.json").write_text(json.dumps(running))
    assert json.loads(concord("registry", "sync", "--json").stdout)["at_work"] == [{"folder": "runs/a"}]
    host, pid, _ = running["process"].split(":")
    Path("runs/a/run.json").write_text(json.dumps(running | {"process": f"{host}:{pid}:0"}))
    assert [len(sync()) for _ in range(2)] == [1, 0]
    client = MlflowClient(tracking_uri())
    experiment = client.get_experiment_by_name("concord").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.status, run.data.metrics["epoch"]) == ("KILLED", 2)
    assert concord("train", train_file, "-o", "runs/a", "--resume", "--force").exit_code == 0
    (run,) = client.search_runs([experiment])
    assert (run.info.status, sync(), model_names()) == ("FINISHED", [], ["tiny"])


def test_resolved_job_repeats_the_training(store: Path, train_file: Path) -> None:
    options = TrainOptions(folder=store / "first", tracked=False)
    first = train.train(read_train_job(train_file, overrides=["fit.epochs=1"]), options)
    resolved = store / "first" / "config.resolved.yaml"
    config = read_train_config(resolved)
    assert config.profiles["small"].model["lstm"] == {"hidden": 16, "layers": 1, "dropout": 0.5}
    assert config.profiles["small"].fit["epochs"] == 1
    again = train.train(read_train_job(resolved), TrainOptions(folder=store / "again", tracked=False))
    assert again.digest == first.digest


def test_train_refuses_a_folder_with_another_training(train_file: Path, tmp_path: Path) -> None:
    options = TrainOptions(folder=tmp_path / "run", tracked=False)
    train.train(read_train_job(train_file), options)
    with pytest.raises(ConfigError, match=r"contains another training; .*--resume .* fit\.seed \(None, now 2\)$"):
        train.train(read_train_job(train_file, overrides=["fit.seed=2"]), options)


def test_train_names_a_folder_that_cannot_be_made(train_file: Path) -> None:
    result = concord("train", train_file, "--no-tracking", "-o", "/proc/none/run")
    assert result.exit_code == 2
    assert "Error: /proc/none/run: cannot be created (No such file or directory); choose another" in result.stderr


def test_train_accepts_a_folder_without_a_state(train_file: Path, tmp_path: Path) -> None:
    options = TrainOptions(folder=tmp_path / "run", tracked=False)
    with pytest.raises(ConfigError, match=r"fit\.optimizers"):
        train.train(read_train_job(train_file, overrides=["fit.optimizers={other: {}}"]), options)
    assert train.train(read_train_job(train_file), options).bundle.is_dir()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fit.epoch=3", r"fit: epoch: unknown key; did you mean 'epochs'"),
        ("model.lstm.hiden=3", r"model: lstm\.hiden: unknown key; did you mean 'hidden'"),
        ("tagger=bilstm_crff", r"did you mean 'bilstm_crf'"),
    ],
)
def test_train_names_an_unknown_key(train_file: Path, tmp_path: Path, override: str, message: str) -> None:
    job = read_train_job(train_file, overrides=[override])
    with pytest.raises(ConfigError, match=message):
        train.train(job, TrainOptions(folder=tmp_path / "run", tracked=False))


def test_train_refuses_an_invalid_model_name_first(train_file: Path, tmp_path: Path) -> None:
    job = read_train_job(train_file, overrides=["register_as=news/mine"])
    with pytest.raises(ConfigError, match=r"a model's name: .* got 'news/mine'"):
        train.train(job, TrainOptions(folder=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_train_names_a_missing_device(train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = concord("train", train_file, "--device", "cuda", "-o", tmp_path / "run", "--no-tracking")
    assert result.exit_code == 2
    assert "device: expected a CUDA device, found none; use device=auto or cpu" in result.stderr
    assert not (tmp_path / "run").exists()


def test_train_does_not_learn_a_dropped_type(train_file: Path, tmp_path: Path) -> None:
    job = read_train_job(train_file, overrides=["data.labels={ORG: null}", "fit.epochs=1"])
    train.train(job, TrainOptions(folder=tmp_path / "run", tracked=False))
    assert load_tagger(tmp_path / "run" / "bundle").entity_types == ("LOC", "PER")


def test_tagger_of_parts_of_speech_is_trained_and_scored_but_cannot_annotate(store: Path, train_file: Path) -> None:
    tokens = ("--set", "model.scheme=TOKENS", "--set", "data.label_column=upos")
    result = concord("train", train_file, *tokens, "--output", store / "pos")
    assert result.exit_code == 0, result.output
    assert re.search(r"epoch 2/2: loss \d+\.\d+, dev accuracy \d+\.\d\d \(draft", result.stderr)
    assert "accuracy  draft accuracy" in result.stdout
    assert "try it" not in result.stdout
    values = json.loads((store / "pos/result.json").read_text())
    client = MlflowClient(tracking_uri())
    metrics = client.get_run(resolve("models:/tiny/1").run_id).data.metrics
    assert metrics["dev_accuracy"] == pytest.approx(values["best"]["dev_accuracy"])
    assert metrics["test_accuracy"] == pytest.approx(values["test"]["accuracy"])
    assert not {"dev_f1", "test_f1"} & set(metrics)
    tagger = load_tagger(store / "pos/bundle")
    assert {"NOUN", "VERB", "DET"} <= set(tagger.vocabulary.labels)

    dev = train_file.read_text().partition("dev: ")[2].split()[0]
    arguments = ("evaluate", "models:/tiny/1", "--data", dev, "--label-column", "upos")
    scored = json.loads(concord(*arguments, "--json").stdout)
    assert scored["accuracy"] == pytest.approx(values["best"]["dev_accuracy"])
    assert sum(found["gold"] for found in scored["scores"].values()) == 2 * scored["words"]
    assert re.search(r"^NOUN +\d+\.\d\d", concord(*arguments).stdout, re.MULTILINE)

    refused = concord("annotate", dev, "--output", store / "out", "--model", store / "pos/bundle")
    assert (refused.exit_code, "cannot annotate" in refused.stderr) == (2, True)
    assert not (store / "out").exists()


def test_train_refuses_parts_of_speech_for_a_tagger_of_entities(train_file: Path, tmp_path: Path) -> None:
    job = read_train_job(train_file, overrides=["data.label_column=upos"])
    with pytest.raises(ConfigError, match=r"upos holds token labels.*--set model\.scheme=TOKENS"):
        train.train(job, TrainOptions(folder=tmp_path / "run", tracked=False))


def test_train_warns_of_token_labels_that_only_dev_has(
    train_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["model.scheme=TOKENS", "data.label_column=upos", "data.test=null", "fit.epochs=1"]
    dev = tmp_path / "dev.conllu"
    dev.write_text("1\tOh\toh\tINTERJECTION\t_\t_\t0\troot\t_\t_\n")
    job = read_train_job(train_file, overrides=[*overrides, f"data.dev={dev}"])
    train.train(job, TrainOptions(folder=tmp_path / "run", tracked=False))
    assert "holds INTERJECTION, the training corpora do not" in capsys.readouterr().err


def test_a_weight_repeats_documents_and_chooses_a_fraction() -> None:
    documents = [[Sentence(words=(str(number),))] for number in range(10)]
    assert weighted(documents, 1) == documents
    assert weighted(documents, 2.3)[:20] == documents * 2
    chosen = weighted(documents, 0.3)
    assert weighted(documents, 2.3)[20:] == chosen
    assert len(chosen) == 3
    assert [document for document in documents if document in chosen] == chosen


@pytest.mark.parametrize("split", ["train", "dev"])
def test_train_refuses_a_corpus_without_sentences(
    split: str, train_file: Path, tmp_path: Path, write_corpus: Callable[[str], Path]
) -> None:
    empty = write_corpus("-DOCSTART-\n")
    job = read_train_job(train_file, overrides=[f"data.{split}={[str(empty)] if split == 'train' else empty}"])
    with pytest.raises(InputError, match=r"gold\.conll: expected a gold corpus with one sentence or more, got none"):
        train.train(job, TrainOptions(folder=tmp_path / "run", tracked=False))


def test_train_names_types_that_only_dev_has(
    train_file: Path, tmp_path: Path, write_corpus: Callable[[str], Path]
) -> None:
    dev = write_corpus("Monday\tB-DAY\n")
    job = read_train_job(train_file, overrides=[f"data.dev={dev}"])
    with pytest.raises(ConfigError, match=r"holds entities of type DAY.*--set data\.labels\.DAY=null"):
        train.train(job, TrainOptions(folder=tmp_path / "run", tracked=False))


def test_missing_encoder_is_a_model_error(train_file: Path, tmp_path: Path) -> None:
    job = read_train_job(train_file, overrides=["model.encoder={source: no_such_package}"])
    with pytest.raises(ModelError, match="no_such_package"):
        train.train(job, TrainOptions(folder=tmp_path / "run", tracked=False))


def test_pretrained_vectors_are_loaded(train_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("".join(f"{word} {' '.join(['0.5'] * 16)}\n" for word in ("the", "unheard")))
    job = read_train_job(train_file, overrides=[f"data.vectors={vectors}", "fit.epochs=1"])
    train.train(job, TrainOptions(folder=tmp_path / "run", tracked=False))
    assert "words have a pretrained vector" in capsys.readouterr().err
    assert "unheard" in load_tagger(tmp_path / "run" / "bundle").vocabulary.words


def test_default_folder_depends_on_the_job(train_file: Path) -> None:
    job = read_train_job(train_file)
    assert default_folder(job) == default_folder(read_train_job(train_file))
    assert default_folder(job) != default_folder(read_train_job(train_file, overrides=["fit.seed=2"]))


def test_read_corpora_maps_and_drops_types(write_corpus: Callable[[str], Path]) -> None:
    path = write_corpus("Ada\tB-PER\nKing\tI-PER\nin\tO\nYork\tB-GPE\nMonday\tB-DAY\n")
    documents = read_corpora([str(path), str(path)], labels={"GPE": "LOC", "DAY": None})
    expected = Sentence(words=("Ada", "King", "in", "York", "Monday"), labels=("B-PER", "I-PER", "O", "B-LOC", "O"))
    assert [list(document) for document in documents] == [[expected], [expected]]
    assert label_types(documents, BIO) == {"PER", "LOC"}


def test_read_corpora_renames_token_labels_and_drops_none(write_corpus: Callable[[str], Path]) -> None:
    path, form = str(write_corpus("She\tPRP\nran\tVBD\n")), GoldFormat(label_scheme="TOKENS")
    ((sentence,),) = read_corpora([path], labels={"VBD": "VERB"}, form=form)
    assert sentence.labels == ("PRP", "VERB")
    with pytest.raises(ConfigError, match=r"labels\.VBD: expected a label"):
        read_corpora([path], labels={"VBD": None}, form=form)
