"""The tracking store: runs, versions, and bundles that are what was registered."""

import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from models.checkpoint import tagger_digest
from pipeline.errors import ModelError
from workflows.tracking import (
    DIGEST_TAG,
    ModelVersion,
    TrackingError,
    fetch,
    open_run,
    resolve,
    tracking_uri,
)


def register(bundle: Path, *, alias: str | None = None) -> ModelVersion:
    run = open_run(experiment="test", name="run", parameters={"a": 1}, tags={"b": "c"})
    version = run.register(bundle, name="tiny", digest=tagger_digest(bundle), alias=alias)
    run.close("FINISHED")
    return version


def test_a_run_holds_parameters_metrics_and_files(store: Path) -> None:
    long = "x" * 10_000
    run = open_run(experiment="test", name="mine", parameters={"model.hidden": 8, "long": long}, tags={"who": "me"})
    run.log_metrics({"loss": 2.0, "dev_f1": 50.0}, step=1)
    run.log_metrics({"loss": 1.0, "dev_f1": 60.0}, step=2)
    (store / "curves.png").write_bytes(b"png")
    run.log_file(store / "curves.png")
    run.close("FINISHED")
    client = MlflowClient(tracking_uri())
    found = client.get_run(run.run_id)
    assert found.info.status == "FINISHED"
    assert found.data.params["model.hidden"] == "8"
    assert found.data.params["long"] == long[:6000]
    assert found.data.tags["who"] == "me"
    assert [metric.value for metric in client.get_metric_history(run.run_id, "loss")] == [2.0, 1.0]
    assert (store / "mlruns" / run.run_id / "artifacts" / "curves.png").read_bytes() == b"png"


def test_an_interrupted_run_is_taken_up_again(store: Path) -> None:
    first = open_run(experiment="test", name="run", parameters={"a": 1}, tags={})
    first.close("KILLED")
    again = open_run(experiment="test", name="run", parameters={"a": 2}, tags={}, run_id=first.run_id)
    assert again.run_id == first.run_id
    client = MlflowClient(tracking_uri())
    assert client.get_run(first.run_id).info.status == "RUNNING"
    assert client.get_run(first.run_id).data.params == {"a": "1"}
    assert open_run(experiment="test", name="run", parameters={}, tags={}, run_id="0" * 32).run_id != first.run_id


def test_a_version_is_found_by_alias_and_by_number(store: Path, tiny_bundle: Path) -> None:
    first = register(tiny_bundle, alias="champion")
    second = register(tiny_bundle)
    assert (first.version, second.version) == (1, 2)
    assert resolve("models:/tiny@champion") == first
    assert resolve("models:/tiny/2") == second
    assert MlflowClient(tracking_uri()).get_model_version("tiny", "1").tags == {DIGEST_TAG: tagger_digest(tiny_bundle)}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("models:/tiny", "expected models:/NAME@ALIAS or models:/NAME/VERSION"),
        ("models:/tiny/latest", "expected models:/NAME@ALIAS or models:/NAME/VERSION"),
        ("models:/tiny@none", "not in the registry"),
        ("models:/tiny/9", "not in the registry"),
        ("models:/other@champion", "not in the registry"),
    ],
)
def test_a_version_that_is_not_there_is_a_model_error(
    store: Path, tiny_bundle: Path, reference: str, message: str
) -> None:
    register(tiny_bundle)
    with pytest.raises(ModelError, match=message):
        resolve(reference)


def test_a_store_that_is_not_there_is_not_made_by_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ModelError, match="there is no registry at sqlite"):
        resolve("models:/tiny@champion")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_is_fetched_once_and_checked(store: Path, tiny_bundle: Path) -> None:
    version = register(tiny_bundle)
    folder = fetch(version)
    assert folder == store / "cache" / "bundles" / tagger_digest(tiny_bundle)
    assert (folder / "tagger.json").read_bytes() == (tiny_bundle / "tagger.json").read_bytes()
    (Path(version.source.removeprefix("file://")) / "tagger.json").unlink()
    assert fetch(version) == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_bundle_that_was_changed_is_refused(store: Path, tiny_bundle: Path) -> None:
    version = register(tiny_bundle)
    kept = Path(version.source.removeprefix("file://")) / "tagger.json"
    kept.write_bytes(kept.read_bytes() + b" ")
    with pytest.raises(ModelError, match="the files are not what was registered"):
        fetch(version)
    assert list((store / "cache" / "bundles").iterdir()) == []


def test_a_fetched_bundle_that_was_changed_is_refused(store: Path, tiny_bundle: Path) -> None:
    version = register(tiny_bundle)
    folder = fetch(version)
    (folder / "tagger.json").write_text("{}")
    with pytest.raises(ModelError, match="the files are not what was registered"):
        fetch(version)


def test_a_version_without_a_digest_is_fetched_each_time(store: Path, tiny_bundle: Path) -> None:
    version = register(tiny_bundle)
    unsigned = ModelVersion(name=version.name, version=version.version, digest=None, source=version.source)
    assert fetch(unsigned) == fetch(version)


def test_a_server_that_is_down_fails_in_seconds(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackingError, match=r"http://127\.0\.0\.1:1") as caught:
        open_run(experiment="test", name="run", parameters={}, tags={})
    assert caught.value.exit_code == 75


@pytest.mark.slow
def test_processes_may_meet_on_a_fresh_store(tmp_path: Path) -> None:
    code = (
        "from workflows.tracking import open_run\n"
        "open_run(experiment='test', name='run', parameters={}, tags={}).close('FINISHED')\n"
    )
    checkout = str(Path(__file__).parents[2])
    processes = [
        subprocess.Popen([sys.executable, "-c", f"import sys; sys.path.insert(0, {checkout!r})\n{code}"], cwd=tmp_path)
        for _ in range(2)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
