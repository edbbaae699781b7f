"""Runs in the tracking store, and errors when it cannot be reached."""

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from concord_testing.command_line import concord
from concord_testing.runs import in_child
from mlflow import MlflowClient

from concord.workflows.mlflow_client import COMMIT_TAG, DIRTY_TAG, TrackingError, code_tags, open_run, tracking_uri

pytestmark = pytest.mark.slow


def test_a_run_holds_parameters_metrics_and_files(store: Path) -> None:
    long = "x" * 10_000
    parameters = {"model.hidden": 8, "long": long}
    with open_run(experiment="test", name="mine", parameters=parameters, tags={"who": "me"}) as run:
        run.log_metrics({"loss": 2.0, "dev_f1": 50.0}, step=1)
        run.log_metrics({"loss": 1.0, "dev_f1": float("nan")}, step=2)
        run.log_text("report.html", "<p>\u00e9</p>")
    client = MlflowClient(tracking_uri())
    found = client.get_run(run.run_id)
    assert found.info.status == "FINISHED"
    assert found.data.params["model.hidden"] == "8"
    assert found.data.params["long"] == long[:6000]
    assert found.data.tags["who"] == "me"
    assert [metric.value for metric in client.get_metric_history(run.run_id, "loss")] == [2.0, 1.0]
    artifacts = store / "mlruns" / run.run_id / "artifacts"
    assert [path.read_text() for path in artifacts.rglob("report.html")] == ["<p>\u00e9</p>"]


def test_a_run_that_an_error_ends_has_failed(store: Path) -> None:
    del store
    opened = open_run(experiment="test", name="run", parameters={"a": 1}, tags={"kind": "x"})
    with pytest.raises(ValueError), opened as run:
        raise ValueError
    found = MlflowClient(tracking_uri()).get_run(run.run_id)
    assert (found.info.status, found.data.params, found.data.tags["kind"]) == ("FAILED", {"a": "1"}, "x")


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
    with (
        pytest.raises(
            TrackingError, match=r"^http://127\.0\.0\.1:1: .* failed: \[Errno 111\] Connection refused$"
        ) as caught,
        open_run(experiment="test", name="run", parameters={}, tags={}),
    ):
        pass
    assert caught.value.exit_code == 75


def test_database_that_another_process_has_locked_is_reported(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        open_run(experiment="test", name="run", parameters={}, tags={}) as run,
        closing(sqlite3.connect(store / "mlflow.db")) as holder,
    ):
        holder.execute("BEGIN EXCLUSIVE")
        result = concord("registry", "list")
        assert result.exit_code == 75
        assert "database is locked; try again later" in result.stderr
        with pytest.raises(TrackingError, match=r"metrics could not be logged: .*database is locked") as raised:
            run.log_metrics({"loss": 1.0}, step=1)
        assert "\n" not in str(raised.value)
        assert caplog.text == ""
        holder.rollback()
        run.log_metrics({"loss": 1.0}, step=1)


def test_processes_can_create_a_store_concurrently(tmp_path: Path) -> None:
    def work() -> None:
        with open_run(experiment="test", name="run", parameters={}, tags={}):
            pass

    processes = [in_child(work, MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db") for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]


def test_a_database_without_its_driver_is_a_store_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "oracle+oracledb://nobody@127.0.0.1:1/none")
    with pytest.raises(TrackingError, match="oracledb"), open_run(experiment="t", name="run", parameters={}, tags={}):
        pass
