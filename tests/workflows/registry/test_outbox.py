"""The outbox: on disk first, sent completely and once, and later if the store was down."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from concord_testing.command_line import concord
from mlflow import MlflowClient

from concord.models.errors import ConfigError
from concord.models.saved_tagger import tagger_digest
from concord.pipeline.errors import InputError
from concord.workflows.environment import process_name
from concord.workflows.registry import mlflow_client as tracking
from concord.workflows.registry import model_versions as registry
from concord.workflows.registry import outbox
from concord.workflows.registry.mlflow_client import Run, TrackingError, tracking_uri
from concord.workflows.registry.model_versions import versions
from concord.workflows.registry.outbox import (
    ENTRY_NAME,
    Registration,
    describe_dataset,
    find_entries,
    read_entry,
    send,
    start_run,
    write_entry,
)

pytestmark = pytest.mark.slow

DOWN = "http://127.0.0.1:1"


@pytest.fixture
def folder(store: Path, tiny_bundle: Path) -> Path:
    """Return the folder of a run with a file, a table and a bundle."""
    path = store / "runs" / "mine"
    (path / "evaluation").mkdir(parents=True)
    (path / "result.json").write_text("{}")
    (path / "evaluation" / "dev.csv").write_text("a,b\n")
    (path / "bundle").symlink_to(tiny_bundle)
    return path


def work(folder: Path, *, status: tracking.RunStatus | None = "FINISHED") -> registry.ModelVersion | None:
    run = start_run(
        folder,
        experiment="sent_run",
        name="mine",
        parameters={"a": 1},
        tags={"who": "me"},
        datasets=[describe_dataset(str(folder / "result.json"), "training")],
    )
    for epoch in (1, 2):
        run.log_metrics({"loss": 1.0 / epoch}, step=epoch)
    if status is None:
        return None
    files, registration = (
        ["result.json", "evaluation/dev.csv"],
        Registration(bundle="bundle", name="sent_run", alias="late"),
    )
    return run.end(status, files=files, registration=registration)


def check_complete(folder: Path) -> None:
    """Check that the store has the complete run of the folder, once."""
    client = MlflowClient(tracking_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("sent_run").experiment_id])
    assert (run.info.status, run.data.params, run.data.tags["who"]) == ("FINISHED", {"a": "1"}, "me")
    assert [metric.value for metric in client.get_metric_history(run.info.run_id, "loss")] == [1.0, 0.5]
    assert {item.path for item in client.list_artifacts(run.info.run_id)} == {"result.json", "evaluation", "model"}
    assert [item.path for item in client.list_artifacts(run.info.run_id, "evaluation")] == ["evaluation/dev.csv"]
    assert len(run.inputs.dataset_inputs) == 1
    assert [(version.version, version.aliases, version.run_id) for version in versions("sent_run")] == [
        (1, ("late",), run.info.run_id)
    ]
    kept = read_entry(folder)
    assert (kept.sent, kept.status) == (True, "FINISHED")
    assert (run.info.start_time, run.info.end_time) == (kept.started_ms, kept.ended_ms)


def test_a_run_is_sent_completely_and_once(folder: Path) -> None:
    version = work(folder)
    assert version is not None
    assert version.reference == "models:/sent_run/1"
    check_complete(folder)
    send(folder)
    check_complete(folder)


def test_a_run_is_sent_to_a_server_and_its_version_can_be_fetched(
    folder: Path, tiny_bundle: Path, mlflow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    version = work(folder)
    send(folder)
    check_complete(folder)
    assert version is not None
    assert registry.resolve("models:/sent_run@late") == replace(version, aliases=("late",))
    assert tagger_digest(registry.fetch(version)) == tagger_digest(tiny_bundle)
    listed = {
        model["name"]: model["aliases"] for model in json.loads(concord("registry", "list", "--json").stdout)["models"]
    }
    assert listed["sent_run"] == {"late": 1}


@pytest.mark.parametrize(
    "step",
    [
        *[(tracking, "_log_parameters"), (tracking, "_log_datasets"), (Run, "log_metrics"), (Run, "log_file")],
        *[(registry, "create_model"), (registry, "_register"), (registry, "set_alias"), (Run, "close")],
    ],
    ids=lambda step: step[1],
)
def test_sending_continues_after_it_was_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]
) -> None:
    start_run(folder, experiment="sent_run", name="mine", parameters={"a": 1}, tags={"who": "me"})
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "send_or_warn", lambda folder: None)
        work(folder)
    owner, name = step
    done: Callable[..., Any] = getattr(owner, name)

    def killed(*arguments: Any, **named: Any) -> None:
        done(*arguments, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(KeyboardInterrupt):
            send(folder)
    assert not read_entry(folder).sent
    assert concord("registry", "sync", folder).exit_code == 0
    check_complete(folder)


def test_a_run_is_sent_later_when_the_store_was_down(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    def fail(*_: object, **__: object) -> None:
        raise TrackingError("the store is down")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "log_metrics", fail)
        assert work(folder) is None
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", DOWN)
        down = concord("registry", "sync", "--json")
        assert (down.exit_code, DOWN in json.loads(down.stdout)["error"]) == (75, True)
    first = concord("registry", "sync", "--json")
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["sent"] == [{"folder": "runs/mine", "registered": "models:/sent_run/1"}]
    check_complete(folder)
    again = concord("registry", "sync", folder.parent, folder)
    assert again.stdout == f"1 run in {folder.parent}, {folder}: 0 sent, 0 still running, 0 failed\n"


def test_a_broken_entry_does_not_stop_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "send_or_warn", lambda folder: None)
    work(folder)
    for name, content in (("a", "{"), ("b", '{"kye": 1}')):
        (folder.parent / name).mkdir()
        (folder.parent / name / ENTRY_NAME).write_text(content)
    intact = read_entry(folder).model_copy(update={"files": [], "registration": None})
    for name, changes in (("c", {"files": ["gone.txt"]}), ("d", {"parameters": {"bad\nname": "1"}})):
        (folder.parent / name).mkdir()
        write_entry(folder.parent / name, intact.model_copy(update={**changes, "key": name}))
    synced = concord("registry", "sync", "--json")
    values = json.loads(synced.stdout)
    assert (synced.exit_code, [item["folder"] for item in values["failed"]]) == (1, [f"runs/{name}" for name in "abcd"])
    assert [item["folder"] for item in values["sent"]] == ["runs/mine"]


def test_an_entry_can_be_sent_to_another_store(
    folder: Path, store_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(folder)
    other = folder.parents[1] / "other" / "mlflow.db"
    other.parent.mkdir()
    other.write_bytes(store_template.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{other}")
    write_entry(folder, read_entry(folder).model_copy(update={"sent": False}))
    assert concord("registry", "sync").exit_code == 0
    check_complete(folder)


def test_a_run_in_progress_is_skipped_and_that_of_a_dead_process_closed(folder: Path) -> None:
    work(folder, status=None)
    answer = concord("registry", "sync", "--json")
    assert json.loads(answer.stdout)["at_work"] == [{"folder": "runs/mine"}]
    dead = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    gone = read_entry(folder).model_copy(update={"process": process_name(dead.pid)})
    dead.kill()
    dead.wait()
    write_entry(folder, gone)
    assert json.loads(concord("registry", "sync", "--json").stdout)["sent"] == [
        {"folder": "runs/mine", "registered": None}
    ]
    client = MlflowClient(tracking_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("sent_run").experiment_id])
    assert run.info.status == "KILLED"


def test_a_repeated_epoch_replaces_the_earlier_one(folder: Path) -> None:
    run = start_run(folder, experiment="sent_run", name="mine", parameters={}, tags={})
    for loss in (2.0, 1.0):
        run.log_metrics({"loss": loss}, step=1)
    run.log_metrics({"best_dev_f1": 50.0}, step=1)
    assert [metrics.values for metrics in read_entry(folder).metrics] == [{"loss": 1.0}, {"best_dev_f1": 50.0}]


def test_a_loss_that_is_nan_is_kept(folder: Path) -> None:
    start_run(folder, experiment="sent_run", name="mine", parameters={}, tags={}).log_metrics(
        {"loss": float("nan")}, step=1
    )
    (metrics,) = read_entry(folder).metrics
    assert metrics.values["loss"] != metrics.values["loss"]


def test_entries_are_found_in_trainings_collections_and_folders_of_them(tmp_path: Path) -> None:
    for place in ("runs/a", "out/news/_run/tracking/0", "out/old/_run/tracking/0", "out/old/_run/tracking/1"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / ENTRY_NAME).touch()
    runs, out = tmp_path / "runs", tmp_path / "out"
    news, old = out / "news/_run/tracking", out / "old/_run/tracking"
    assert find_entries([runs, out]) == [runs / "a", news / "0", old / "0", old / "1"]
    assert find_entries([runs / "a", out / "news", tmp_path / "none", news / "0"]) == [runs / "a", news / "0"]


def test_an_unreadable_entry_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tracking\.json: expected the tracking file of a run"):
        read_entry(tmp_path)
    (tmp_path / ENTRY_NAME).write_text('{"kye": 1}')
    with pytest.raises(ConfigError, match=r"tracking\.json: kye: unknown key"):
        read_entry(tmp_path)
