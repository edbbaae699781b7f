"""Runs in the tracking store, and errors when it cannot be reached."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from concord_testing.checkout import CHECKOUT
from mlflow import MlflowClient

from concord.workflows.cli.main import main
from concord.workflows.environment import COMMIT_TAG, DIRTY_TAG, code_tags, has_ended, process_name
from concord.workflows.registry.mlflow_client import PROCESS_TAG, Dataset, TrackingError, open_run, tracking_uri

pytestmark = pytest.mark.slow


def test_a_run_holds_parameters_metrics_and_files(store: Path) -> None:
    long = "x" * 10_000
    run = open_run(experiment="test", name="mine", parameters={"model.hidden": 8, "long": long}, tags={"who": "me"})
    (store / "curves.png").write_bytes(b"png")
    for _ in range(2):
        run.log_metrics({"loss": 2.0, "dev_f1": 50.0}, step=1, time_ms=1000)
        run.log_metrics({"loss": 1.0, "dev_f1": float("nan")}, step=2, time_ms=2000)
        run.log_file(store / "curves.png")
        run.log_file(store / "curves.png", folder="pictures")
        run.close("FINISHED", time_ms=3000)
    client = MlflowClient(tracking_uri())
    found = client.get_run(run.run_id)
    assert found.info.status == "FINISHED"
    assert found.data.params["model.hidden"] == "8"
    assert found.data.params["long"] == long[:6000]
    assert found.data.tags["who"] == "me"
    assert [metric.value for metric in client.get_metric_history(run.run_id, "loss")] == [2.0, 1.0]
    artifacts = store / "mlruns" / run.run_id / "artifacts"
    assert {path.relative_to(artifacts).as_posix() for path in artifacts.rglob("*.png")} == {
        "curves.png",
        "pictures/curves.png",
    }
    assert found.info.end_time == 3000


def test_a_run_with_the_same_key_is_opened_again(store: Path) -> None:
    first = open_run(experiment="test", name="run", parameters={"a": 1}, tags={"kind": "x"}, key="k", started_ms=1000)
    first.close("KILLED")
    again = open_run(experiment="test", name="run", parameters={"a": 2, "b": 3}, tags={"kind": "y"}, key="k")
    other = open_run(experiment="test", name="run", parameters={}, tags={}, key="l")
    assert again.run_id == first.run_id != other.run_id
    found = MlflowClient(tracking_uri()).get_run(first.run_id)
    assert (found.info.status, found.info.start_time) == ("RUNNING", 1000)
    assert found.data.params == {"a": "1", "b": "3"}
    assert found.data.tags["kind"] == "y"


def test_datasets_are_logged_once(store: Path) -> None:
    read = [Dataset(place="/data/mine/train.conllu", sha256="ab" * 32, role="training")]
    for _ in range(2):
        run = open_run(experiment="test", name="run", parameters={}, tags={}, datasets=read, key="k")
    (item,) = MlflowClient(tracking_uri()).get_run(run.run_id).inputs.dataset_inputs
    assert (item.dataset.name, item.dataset.digest) == ("mine/train.conllu", "ab" * 18)
    assert {tag.key: tag.value for tag in item.tags} == {"mlflow.data.context": "training", "sha256": "ab" * 32}


def test_opening_a_run_closes_those_of_killed_processes(store: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    gone, alive, elsewhere = (
        open_run(experiment="test", name=name, parameters={}, tags={}) for name in ("gone", "alive", "elsewhere")
    )
    client = MlflowClient(tracking_uri())
    client.set_tag(gone.run_id, PROCESS_TAG, process_name(killed.pid))
    client.set_tag(elsewhere.run_id, PROCESS_TAG, "another-host:1:1")
    open_run(experiment="test", name="next", parameters={}, tags={})
    assert client.get_run(gone.run_id).info.status == "RUNNING"
    killed.kill()
    killed.wait()
    open_run(experiment="test", name="next", parameters={}, tags={})
    assert [client.get_run(run.run_id).info.status for run in (gone, alive, elsewhere)] == [
        *("KILLED", "RUNNING", "RUNNING")
    ]


def test_a_process_is_identified_by_pid_and_start_time() -> None:
    host, pid, _ = process_name().split(":")
    assert not has_ended(process_name())
    assert has_ended(f"{host}:{pid}:1")
    assert not has_ended(f"another-host:{pid}:1")


def test_code_tags_name_the_commit() -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()
    tags = code_tags()
    assert tags.get(COMMIT_TAG, "") == commit
    assert tags.get(DIRTY_TAG) in ({"true", "false"} if commit else {None})


def test_a_server_that_is_down_is_reported(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(
        TrackingError, match=r"^http://127\.0\.0\.1:1: .* failed: \[Errno 111\] Connection refused$"
    ) as caught:
        open_run(experiment="test", name="run", parameters={}, tags={})
    assert caught.value.exit_code == 75


def test_database_that_another_process_has_locked_is_reported(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = open_run(experiment="test", name="run", parameters={}, tags={})
    with closing(sqlite3.connect(store / "mlflow.db")) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        result = CliRunner().invoke(main, ["registry", "list"])
        assert result.exit_code == 75
        assert "database is locked; try again later" in result.stderr
        with pytest.raises(TrackingError, match=r"metrics could not be logged: .*database is locked") as raised:
            run.log_metrics({"loss": 1.0}, step=1, time_ms=1000)
        assert "\n" not in str(raised.value)
        assert caplog.text == ""
    run.log_metrics({"loss": 1.0}, step=1, time_ms=1000)


def test_processes_can_create_a_store_concurrently(tmp_path: Path) -> None:
    code = (
        "from concord.workflows.registry.mlflow_client import open_run\n"
        "open_run(experiment='test', name='run', parameters={}, tags={}).close('FINISHED')\n"
    )
    checkout = str(CHECKOUT)
    processes = [
        subprocess.Popen([sys.executable, "-c", f"import sys; sys.path.insert(0, {checkout!r})\n{code}"], cwd=tmp_path)
        for _ in range(2)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]


def test_a_database_without_its_driver_is_a_store_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "oracle+oracledb://nobody@127.0.0.1:1/none")
    with pytest.raises(TrackingError, match="oracledb"):
        open_run(experiment="test", name="run", parameters={}, tags={})
