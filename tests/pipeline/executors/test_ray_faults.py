"""Failures of a Ray cluster: of workers, nodes and the head; and two drivers at once."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import pytest
from concord_testing import fakes, runs
from concord_testing.heads import Head, ray_head
from concord_testing.processes import command_of, descendants, ray_workers

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.executors import ray_scheduler
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.run_report import RunReport
from concord.pipeline.worker.crash_log import CrashLog

SUPPORT = Path(fakes.__file__).parents[1]
# Ray ends a driver a minute after its cluster is gone, which is too long for a test.
GONE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of forty documents."""
    return runs.write_collection(tmp_path / "in.jsonl", documents=40)


@pytest.fixture
def expected(source: Path, tmp_path: Path) -> dict[str, bytes]:
    """The bytes of an undisturbed run; in later runs documents are slow to parse."""
    runs.run_job(runs.job(source, tmp_path / "local"))
    runs.configure_fakes(source, seconds=0.1)
    return runs.committed_bytes(tmp_path / "local")


def start(
    source: Path,
    output: Path,
    address: str,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    run: Callable[[AnnotateConfig], object] = runs.run_job,
    **executor: Any,
) -> BaseProcess:
    """Start a driver that joins a cluster."""
    config = runs.job(source, output, executor={"kind": "ray", "threads": 1, "actors": 2, **executor})
    variables = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(SUPPORT), **environment}
    return runs.in_child(partial(run, config), **variables)


def wait_until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def commits(output: Path) -> int:
    return len(list(output.glob("_run/commits/*/*.json")))


def end_of(process: BaseProcess) -> int | None:
    process.join(timeout=240)
    return process.exitcode


def check_whole(output: Path, expected: dict[str, bytes]) -> None:
    assert runs.committed_bytes(output) == expected
    assert verify(output) == []


def test_worker_terminated_from_outside_is_replaced(
    source: Path, tmp_path: Path, expected: dict[str, bytes], ray_cluster: Head
) -> None:
    output = tmp_path / "out"
    process = start(source, output, ray_cluster.address)
    wait_until(lambda: commits(output))
    victim = ray_workers(ray_cluster.pid)[0]
    os.kill(victim, signal.SIGTERM)
    assert end_of(process) == 0
    assert victim not in ray_workers(ray_cluster.pid)
    check_whole(output, expected)


def test_two_drivers_share_a_cluster(
    source: Path, tmp_path: Path, expected: dict[str, bytes], ray_address: str
) -> None:
    output = tmp_path / "out"
    both = [start(source, output, ray_address, actors=1) for _ in range(2)]
    assert [end_of(process) for process in both] == [0, 0]
    check_whole(output, expected)


def test_run_ends_when_its_head_is_gone_and_resumes_later(
    source: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    output = tmp_path / "out"
    with ray_head(environment=GONE) as lost:
        process = start(source, output, lost.address, environment=GONE)
        wait_until(lambda: commits(output))
        store = next(pid for pid in descendants(lost.pid) if b"gcs_server" in command_of(pid))
        os.kill(store, signal.SIGKILL)
        assert end_of(process) not in (0, None)
    assert not list(output.glob("_run/attempts/*/*")), "the end of the cluster must not count against a shard"
    folder = OutputFolder(output)
    assert 0 < len(folder.finished_shards(folder.plan())) < len(folder.plan().shards)
    assert run_here(source, output).done_before > 0
    check_whole(output, expected)


def test_node_that_is_lost_from_a_plan_of_a_thousand_shards_costs_no_shard_an_attempt(tmp_path: Path) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl", documents=1000)
    runs.run_job(planned_small(source, tmp_path / "local", {}), build=fakes.build_record_worker)
    expected = runs.committed_bytes(tmp_path / "local")
    with cluster_of_two_nodes({"num_cpus": 1}, {"num_cpus": 1}) as pipe:
        config = planned_small(source, tmp_path / "out", {"kind": "ray", "threads": 1, "actors": 2})
        environment = {"RAY_ADDRESS": pipe.recv(), "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(SUPPORT)}
        process = runs.in_child(partial(run_and_count_attempts, config), **environment)
        wait_until(lambda: commits(tmp_path / "out") > 20)
        pipe.send("lose a node")
        assert pipe.recv() == 1
        assert end_of(process) == 0
    assert runs.committed_bytes(tmp_path / "out") == expected


def planned_small(source: Path, output: Path, executor: Mapping[str, object]) -> AnnotateConfig:
    return runs.job(source, output, planning={"shard_bytes": 1}, executor={"threads": 1, **executor})


def run_and_count_attempts(config: AnnotateConfig) -> None:
    """Run with little patience; fail if an attempt is counted."""
    counting = mock.patch.object(CrashLog, "record_death", side_effect=AssertionError)
    with counting, mock.patch.multiple(ray_scheduler, HOLD_SECONDS=1.0):
        runs.run_job(config, build=fakes.build_record_worker)


def test_shards_of_the_only_node_that_parses_are_parsed_elsewhere_once_it_is_lost(
    source: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    runs.configure_fakes(source, seconds=0.3)
    output = tmp_path / "out"
    with cluster_of_two_nodes({"num_cpus": 1}, {"num_cpus": 1, "num_gpus": 1}) as pipe:
        executor: dict[str, Any] = {"actors": 1, "gpus": 1, "parse_actors": 1}
        process = start(source, output, pipe.recv(), run=run_with_little_patience, **executor)
        wait_until(lambda: commits(output) > 1)
        pipe.send("lose a node")
        assert pipe.recv() == 1
        assert end_of(process) == 0
    check_whole(output, expected)


def run_with_little_patience(config: AnnotateConfig) -> None:
    with mock.patch.multiple(ray_scheduler, HOLD_SECONDS=1.0, PATIENCE_SECONDS=2.0):
        runs.run_job(config)


@contextmanager
def cluster_of_two_nodes(*nodes: dict[str, int]) -> Iterator[Connection]:
    """Run a head and two nodes in a child process; yield the connection to it.

    It sends the address; on any message it kills the first node and sends the number of nodes left.
    """
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    environment = {"RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled"}
    with Listener(str(folder / "pipe")) as listener:
        process = runs.in_child(lambda: keep_cluster(str(folder / "pipe"), nodes), **environment)
        pipe = listener.accept()
    try:
        yield pipe
    finally:
        pipe.send("end")
        process.join()
        shutil.rmtree(folder, ignore_errors=True)


def keep_cluster(address: str, resources: Sequence[dict[str, int]]) -> None:
    from ray.cluster_utils import Cluster

    pipe = Client(address)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(**held) for held in resources]
        pipe.send(cluster.address)
        if pipe.recv() != "end":
            cluster.remove_node(nodes[0], allow_graceful=False)
            pipe.send(len(cluster.worker_nodes))
            pipe.recv()
    finally:
        cluster.shutdown()


def run_here(source: Path, output: Path) -> RunReport:
    runs.configure_fakes(source)
    return runs.run_job(runs.job(source, output))
