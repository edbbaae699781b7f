"""The tracking store: its runs, and what happens when it is not there."""

import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from workflows.tracking import TrackingError, open_run, tracking_uri


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
