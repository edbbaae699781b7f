"""Every executor writes the same bytes for the same shards; failures of Ray."""

import json
import os
import signal
import socket
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from concord_testing import fakes, runs
from concord_testing.heads import Head
from concord_testing.processes import ray_workers

from concord.pipeline.config import AnnotateConfig, PlanningConfig
from concord.pipeline.corrections.correction import LOG_NAME, Correction, Mark, Seen, append_to_log
from concord.pipeline.errors import StoppedError
from concord.pipeline.executors.base import BuildWorker, stop_request
from concord.pipeline.executors.ray_cluster import connected
from concord.pipeline.executors.ray_scheduler import longest_first, workers_that_fit
from concord.pipeline.executors.ray_setup import auth_mode
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Piece, Shard
from concord.pipeline.planning import planner

SUPPORT = Path(fakes.__file__).parents[1]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of twelve documents."""
    return runs.write_collection(tmp_path / "in.jsonl")


def ray_job(source: Path, output: Path, **changes: Any) -> AnnotateConfig:
    """Return a job for Ray with one thread per worker, as in ``runs.job``."""
    return runs.job(source, output, executor={"kind": "ray", "threads": 1, "actors": 2} | changes)


def start(
    config: AnnotateConfig, address: str, build: BuildWorker = fakes.build_fake_worker, *, in_folder: Path | None = None
) -> BaseProcess:
    """Start a driver that joins the cluster."""
    environment = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(SUPPORT)}

    def run() -> None:
        if in_folder is not None:
            os.chdir(in_folder)
        runs.run_job(config, build=build)

    return runs.in_child(run, **environment)


def finish(process: BaseProcess) -> int:
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def wait_for_commits(output: Path, commits: int) -> None:
    deadline = time.monotonic() + 120
    while len(list(output.glob("_run/commits/*/*.json"))) < commits:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.ray
def test_ray_executor_writes_the_same_bytes_as_the_local_one(source: Path, tmp_path: Path, ray_address: str) -> None:
    runs.run_job(runs.job(source, tmp_path / "local"))
    assert finish(start(ray_job(source, tmp_path / "ray"), ray_address)) == 0
    assert runs.committed_bytes(tmp_path / "ray") == runs.committed_bytes(tmp_path / "local")


@pytest.mark.ray
def test_corrections_travel_with_their_shard(source: Path, tmp_path: Path, ray_address: str) -> None:
    text = json.loads(source.read_text().splitlines()[5])["text"]
    mark = Mark(start=0, end=len(text.split()[0]), type="ORG", text=text.split()[0])
    seen = Seen(doc_id="d5", tagger="t", generation=0)
    made = Correction.of(None, mark, text=text, seen=seen, who="ada")
    for name in ("local", "ray"):
        (tmp_path / name).mkdir()
        append_to_log(tmp_path / name / LOG_NAME, [made])
    runs.run_job(runs.job(source, tmp_path / "local"))
    assert finish(start(ray_job(source, tmp_path / "ray"), ray_address)) == 0
    found = [runs.committed_bytes(tmp_path / name) for name in ("local", "ray")]
    assert [name for name in found[0] if found[0][name] != found[1].get(name)] == []
    entities = pq.read_table(tmp_path / "ray" / "entities").to_pylist()
    assert [row["label"] for row in entities if row["source"] == "corrected"] == ["ORG"]


@pytest.mark.ray
def test_texts_of_an_existing_collection_are_stored_on_ray(source: Path, tmp_path: Path, ray_address: str) -> None:
    for name in ("local", "ray"):
        runs.run_job(runs.job(source, tmp_path / name))
    texts = {"keep_text": True}
    runs.run_job(runs.job(source, tmp_path / "local", output={"path": str(tmp_path / "local")} | texts))
    config = ray_job(source, tmp_path / "ray")
    config = config.model_copy(update={"output": config.output.model_copy(update=texts)})
    assert finish(start(config, ray_address)) == 0
    assert None not in pq.read_table(tmp_path / "ray" / "documents")["raw_text"].to_pylist()
    assert runs.committed_bytes(tmp_path / "ray") == runs.committed_bytes(tmp_path / "local")


@pytest.mark.ray
def test_local_run_is_finished_by_ray(source: Path, tmp_path: Path, ray_address: str) -> None:
    runs.run_job(runs.job(source, tmp_path / "local"))
    process = runs.in_child(lambda: runs.run_job(runs.job(source, tmp_path / "out")), crash_at="commit:2")
    assert finish(process) == -signal.SIGKILL
    assert finish(start(ray_job(source, tmp_path / "out", actors=1), ray_address)) == 0
    assert runs.committed_bytes(tmp_path / "out") == runs.committed_bytes(tmp_path / "local")


@pytest.mark.ray
@pytest.mark.parametrize("word", ["KILLER", "STOPPER"])
def test_shard_whose_worker_is_killed_or_hangs_once_is_done_again(
    source: Path, tmp_path: Path, ray_address: str, word: str
) -> None:
    runs.write_collection(source, extra=(f"a {word}",))
    mark = tmp_path / "harmed"
    runs.configure_fakes(source, once=str(mark))
    assert finish(start(ray_job(source, tmp_path / "ray", shard_seconds=4.0), ray_address)) == 0
    assert mark.exists()
    runs.run_job(runs.job(source, tmp_path / "local"))
    assert runs.committed_bytes(tmp_path / "ray") == runs.committed_bytes(tmp_path / "local")
    assert verify(tmp_path / "ray") == []


@pytest.mark.ray
def test_worker_of_a_plan_too_large_to_be_sent_inline_is_replaced(
    tmp_path: Path, ray_cluster: Head, capfd: pytest.CaptureFixture[str]
) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl", documents=1000)
    config = ray_job(source, tmp_path / "out").model_copy(update={"planning": PlanningConfig(shard_bytes=1)})
    process = start(config, ray_cluster.address, fakes.build_record_worker)
    wait_for_commits(tmp_path / "out", 20)
    os.kill(ray_workers(ray_cluster.pid)[0], signal.SIGKILL)
    assert finish(process) == 0, capfd.readouterr().err
    folder = OutputFolder(tmp_path / "out")
    assert len(folder.plan().to_json()) > 100 * 1024, "Ray sends what is smaller with the call"
    assert len(folder.finished_shards(folder.plan())) == 1000


@pytest.mark.ray
def test_workers_that_see_another_output_are_refused_with_the_name_of_their_host(
    tmp_path: Path, ray_address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    # This folder is another one for every process, as a path that is not shared is for every node.
    source, output = runs.write_collection(tmp_path / "in.jsonl"), Path("/proc/self/cwd/out")
    process = start(ray_job(source, output), ray_address, in_folder=tmp_path)
    assert finish(process) == 2
    error = f"ConfigError: the worker on host {socket.gethostname()} does not see the output {output} of this run"
    assert error in capfd.readouterr().err
    assert not list(tmp_path.glob("out/_run/commits/*/*"))


@pytest.mark.ray
def test_shard_whose_workers_die_reading_fails_after_the_others_are_done(
    source: Path, tmp_path: Path, ray_address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    config = ray_job(source, tmp_path / "out", attempts=1)
    assert finish(start(config, ray_address, fakes.build_worker_that_dies_reading)) == 1
    assert "its worker died 2 times, not on one of its documents" in capfd.readouterr().err
    folder = OutputFolder(tmp_path / "out")
    assert len(folder.finished_shards(folder.plan())) == len(folder.plan().shards) - 1


@pytest.mark.ray
@pytest.mark.slow
def test_documents_that_kill_or_stall_their_workers_become_dead_letters(
    source: Path, tmp_path: Path, ray_address: str
) -> None:
    runs.write_collection(source, extra=("a KILLER", "Anna saw it.", "a SLOWPOKE", "a TAGKILLER", "Bob saw it."))
    assert finish(start(ray_job(source, tmp_path / "out", attempts=1, shard_seconds=4.0), ray_address)) == 0
    rows = pq.read_table(tmp_path / "out" / "errors").to_pylist()
    assert [(row["doc_id"], row["stage"], row["error"]) for row in rows] == [
        ("d12", "parse", "worker_died"),
        ("d14", "parse", "time_limit"),
        ("d15", "tag", "worker_died"),
    ]
    assert verify(tmp_path / "out") == []
    assert not list(tmp_path.glob("out/_run/attempts/*/*"))


@pytest.mark.ray
@pytest.mark.parametrize(
    ("build", "exit_code", "message"),
    [
        (fakes.build_no_worker, 2, "ModelError: a worker cannot be built: OSError: no weights for fake_tagger"),
        (fakes.build_worker_that_loses, 1, "ReconciliationError: shard 0000"),
        (fakes.build_worker_without_room, 75, "StoreError: shard 0000"),
    ],
)
def test_error_of_a_worker_ends_the_run(
    source: Path,
    tmp_path: Path,
    ray_address: str,
    capfd: pytest.CaptureFixture[str],
    build: BuildWorker,
    exit_code: int,
    message: str,
) -> None:
    assert finish(start(ray_job(source, tmp_path / "out"), ray_address, build)) == exit_code
    assert message in capfd.readouterr().err
    assert not list((tmp_path / "out").glob("*/*.parquet"))


@pytest.mark.ray
def test_more_workers_than_fit_the_cluster_are_rejected(
    source: Path, tmp_path: Path, ray_address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert finish(start(ray_job(source, tmp_path / "a", actors=3), ray_address)) == 2
    assert "3 workers of 1 CPUs and 0 GPUs do not fit the Ray cluster (2 CPUs and 0 GPUs)" in capfd.readouterr().err
    assert finish(start(ray_job(source, tmp_path / "b", gpus=1), ray_address)) == 2
    assert finish(start(ray_job(source, tmp_path / "c", threads=3, actors=1), ray_address)) == 2


@pytest.mark.ray
def test_killed_or_stopped_run_resumes_where_it_was(source: Path, tmp_path: Path, ray_address: str) -> None:
    runs.write_collection(source, documents=40)
    runs.run_job(runs.job(source, tmp_path / "local"))
    config = ray_job(source, tmp_path / "out", actors=1)
    runs.configure_fakes(source, seconds=0.2)
    for number, exit_code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)):
        done = len(list((tmp_path / "out").glob("_run/commits/*/*.json")))
        process = start(config, ray_address)
        wait_for_commits(tmp_path / "out", done + 1)
        assert process.pid is not None
        os.kill(process.pid, number)
        assert finish(process) == exit_code
        assert not list(tmp_path.glob("out/_run/attempts/*/*"))
    assert finish(start(config, ray_address)) == 0
    assert runs.committed_bytes(tmp_path / "out") == runs.committed_bytes(tmp_path / "local")
    assert verify(tmp_path / "out") == []


@pytest.mark.ray
@pytest.mark.slow
def test_long_shards_on_ray_are_dropped_when_their_time_is_up(source: Path, tmp_path: Path, ray_address: str) -> None:
    config = ray_job(source, tmp_path / "out", drain_seconds=1.0)
    runs.configure_fakes(source, seconds=5.0)
    process = start(config, ray_address)
    # A shard in flight leaves no mark here, but the workers are up when the first has noted its progress.
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("out/_run/attempts/*/*.progress")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    assert finish(process) == 143
    assert not list(tmp_path.glob("out/_run/commits/*/*"))
    # A worker may write its progress while it is being killed; the next run removes it.
    assert not [path for path in tmp_path.glob("out/_run/attempts/*/*") if path.suffix != ".progress"]
    runs.configure_fakes(source)
    assert finish(start(config, ray_address)) == 0
    assert not list(tmp_path.glob("out/_run/attempts/*/*"))
    runs.run_job(runs.job(source, tmp_path / "local"))
    assert runs.committed_bytes(tmp_path / "out") == runs.committed_bytes(tmp_path / "local")


@pytest.mark.ray
@pytest.mark.slow
def test_ray_is_started_and_shut_down_when_no_cluster_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    folder = Path("/tmp") / f"r{os.getpid()}"
    folder.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    config = ray_job(source, tmp_path / "ray")

    def run_hashing_with_ray() -> None:
        with mock.patch.object(planner, "MOST_HASHED_HERE", 1):
            runs.run_job(config)

    process = runs.in_child(run_hashing_with_ray)
    assert finish(process) == 0
    runs.run_job(runs.job(source, tmp_path / "local"))
    assert runs.committed_bytes(tmp_path / "ray") == runs.committed_bytes(tmp_path / "local")
    assert not list(folder.iterdir())
    folder.rmdir()


@pytest.mark.slow
def test_unreachable_cluster_is_reported_at_once(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert finish(start(ray_job(source, tmp_path / "out"), "127.0.0.1:1")) == 1
    error = capfd.readouterr().err
    assert "cannot join the cluster at RAY_ADDRESS=127.0.0.1:1" in error
    assert "--executor local" in error


@pytest.mark.parametrize(
    ("address", "token", "mode"),
    [(None, False, "disabled"), (None, True, "disabled"), ("h:1", False, "disabled"), ("h:1", True, "token")],
)
def test_authentication_mode_depends_on_address_and_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str | None, token: bool, mode: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    if token:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("x")
    assert auth_mode(address) == mode


@pytest.mark.parametrize(
    ("node", "cpus", "gpus", "room"),
    [
        ({"CPU": 4.0}, 1, 0, 4),
        ({"CPU": 4.0}, 3, 0, 1),
        ({"CPU": 2.0}, 3, 0, 0),
        ({"CPU": 4.0, "GPU": 1.0}, 1, 0.5, 2),
        ({"CPU": 4.0}, 1, 1, 0),
        ({"CPU": 64.0, "GPU": 1.0}, 1, 0.2, 5),
        ({"CPU": 64.0, "GPU": 2.0}, 1, 0.4, 4),
        ({"CPU": 64.0, "GPU": 0.5}, 1, 0.25, 2),
        ({"CPU": 64.0, "GPU": 5.0}, 1, 2, 2),
        ({"CPU": 1.0, "GPU": 1.0}, 1, 0.25, 1),
        ({}, 1, 0, 0),
    ],
)
def test_workers_that_fit_counts_whole_workers(node: dict[str, float], cpus: int, gpus: float, room: int) -> None:
    assert workers_that_fit(node, cpus=cpus, gpus=gpus) == room


def test_the_longest_shards_begin_first_and_equal_ones_in_the_order_of_the_plan() -> None:
    def shard(index: int, *sizes: int, format: str = "jsonl") -> Shard:
        pieces = tuple(Piece(uri="in", format=format, start=7, end=7 + size, records=1) for size in sizes)
        return Shard(index=index, pieces=pieces)

    shards = [shard(0, 5), shard(1, 5), shard(2, 90_000, format="parquet"), shard(3, 4, 4), shard(4, 5), shard(5)]
    assert [found.index for found in longest_first(shards)] == [3, 0, 1, 4, 2, 5]


def test_stop_request_remembers_a_signal_and_restores_the_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_request() as stop:
        stop.raise_if_received()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StoppedError) as caught:
            stop.raise_if_received()
    assert caught.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_signal_taken_by_the_handler_of_ray_raises_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**_options: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.init", start)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedError) as stopped, connected(cpus=1):
        pass
    assert stopped.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_second_signal_to_terminate_ends_the_process_at_once() -> None:
    with stop_request(drain_seconds=5.0) as stop:
        signal.raise_signal(signal.SIGTERM)
        stop.raise_if_overdue()
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143


def test_second_interrupt_interrupts_at_once() -> None:
    with stop_request():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
