"""Records of runs: sent completely and once, whatever interrupts that, and followed while a run works."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from concord_testing.command_line import concord
from mlflow import MlflowClient

from concord.models.bundles.manifest import tagger_digest
from concord.pipeline.errors import InputError
from concord.workflows.registry import mlflow_client as tracking
from concord.workflows.registry import model_versions as registry
from concord.workflows.registry.mlflow_client import Dataset, Run, TrackingError, tracking_uri
from concord.workflows.registry.model_versions import versions
from concord.workflows.registry.run_records import (
    LiveRecord,
    Metrics,
    Registration,
    RunRecord,
    send,
    send_or_warn,
    unsent,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def record(store: Path, tiny_bundle: Path) -> RunRecord:
    """Return the record of a run with a file, a table and a bundle."""
    folder = store / "runs" / "my run"
    (folder / "evaluation").mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    (folder / "evaluation" / "dev.csv").write_text("a,b\n")
    return RunRecord(
        folder=folder,
        key="k",
        experiment="sent_run",
        started_ms=1000,
        ended_ms=5000,
        status="FINISHED",
        parameters={"a": 1},
        tags={"who": "me"},
        datasets=[Dataset(place="/data/train.conllu", sha256="ab" * 32, role="training")],
        metrics=[Metrics(step=step, time_ms=1000 + step, values={"loss": 1.0 / step}) for step in (1, 2)],
        files={name: folder / name for name in ("result.json", "evaluation/dev.csv")},
        registration=Registration(
            bundle=tiny_bundle, name="sent_run", alias="late", description="mine", tags={"dev_f1": "1.00"}
        ),
    )


def check_complete() -> None:
    """Check that the store has the complete run, once."""
    client = MlflowClient(tracking_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("sent_run").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "my run")
    assert (run.data.params, run.data.tags["who"]) == ({"a": "1"}, "me")
    assert [metric.value for metric in client.get_metric_history(run.info.run_id, "loss")] == [1.0, 0.5]
    assert {item.path for item in client.list_artifacts(run.info.run_id)} == {"result.json", "evaluation", "model"}
    assert [item.path for item in client.list_artifacts(run.info.run_id, "evaluation")] == ["evaluation/dev.csv"]
    assert len(run.inputs.dataset_inputs) == 1
    assert (run.info.start_time, run.info.end_time) == (1000, 5000)
    (version,) = versions("sent_run")
    assert (version.version, version.aliases, version.run_id) == (1, ("late",), run.info.run_id)
    assert (version.description, version.tags["dev_f1"]) == ("mine", "1.00")


def test_a_run_is_sent_completely_and_once(record: RunRecord) -> None:
    assert unsent([record]) == [record]
    version = send(record)
    assert version is not None
    assert version.reference == "models:/sent_run/1"
    check_complete()
    assert unsent([record]) == []
    send(record)
    check_complete()


def test_a_run_is_sent_to_a_server_and_its_version_can_be_fetched(
    record: RunRecord, tiny_bundle: Path, mlflow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    version = send(record)
    check_complete()
    assert unsent([record]) == []
    assert version is not None
    assert registry.resolve("models:/sent_run@late") == replace(version, aliases=("late",))
    assert tagger_digest(registry.fetch(version)) == tagger_digest(tiny_bundle)
    assert '"late": 1' in concord("registry", "list", "--json").stdout


@pytest.mark.parametrize(
    "step",
    [
        *[(tracking, "_log_parameters"), (tracking, "_log_datasets"), (Run, "log_metrics"), (Run, "log_file")],
        *[(registry, "create_model"), (registry, "_register"), (registry, "set_alias")],
    ],
    ids=lambda step: step[1],
)
def test_sending_continues_after_it_was_killed(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]
) -> None:
    owner, name = step
    done: Callable[..., Any] = getattr(owner, name)

    def killed(*arguments: Any, **named: Any) -> None:
        done(*arguments, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(KeyboardInterrupt):
            send(record)
    assert unsent([record]) == [record]
    send(record)
    check_complete()


def test_a_run_that_ended_again_is_sent_again(record: RunRecord) -> None:
    send(replace(record, registration=None, ended_ms=2000))
    assert unsent([record]) == [record]
    send(record)
    check_complete()


def test_runs_older_than_one_that_the_store_has_are_not_looked_up(record: RunRecord) -> None:
    older, newer, newest = (
        replace(record, key=key, registration=None, files={}) for key in ("older", "newer", "newest")
    )
    send(newer)
    assert unsent([newest, newer, older]) == [newest]
    assert unsent(iter([newest])) == [newest]


def test_a_store_that_does_not_answer_costs_a_warning_with_the_command(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        assert send_or_warn([record], record.folder) is None
    (warning,) = [part for part in capsys.readouterr().err.split("Warning: ") if part]
    assert warning.endswith(f"concord registry sync '{record.folder}'\n")


def test_a_run_in_progress_is_followed_until_the_store_fails(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = replace(record, metrics=[], status=None, ended_ms=None)
    live = LiveRecord(lambda: written)
    live.update()
    written = replace(written, metrics=record.metrics[:1])
    live.update()
    client = MlflowClient(tracking_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("sent_run").experiment_id])
    assert (run.info.status, run.data.metrics) == ("RUNNING", {"loss": 1.0})

    def fail(*_: object, **__: object) -> None:
        raise TrackingError("the store is down")

    written = replace(written, metrics=record.metrics)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "log_metrics", fail)
        live.update()
        live.update()
    assert capsys.readouterr().err.count("Warning: MLflow does not answer") == 1
    send(record)
    check_complete()


@pytest.mark.parametrize("place", ["gone", "link"])
def test_files_outside_the_folder_are_not_sent(record: RunRecord, tmp_path: Path, place: str) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / str(record.folder) / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=rf"{place}: expected a file"):
        send(replace(record, files={place: record.folder / place}))
    assert unsent([record]) == [record]
