"""How many workers there are, what is refused, and joining or starting a cluster."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from concord_testing import runs

from concord.models.errors import ConfigError
from concord.pipeline.config import AnnotateConfig, ExecutorConfig
from concord.pipeline.errors import StoppedError
from concord.pipeline.executors.ray_cluster import choose_workers, connected, workers_that_fit
from concord.pipeline.plan import Plan
from concord.pipeline.planning.planner import Planner


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of twelve documents."""
    return runs.write_collection(tmp_path / "in.jsonl")


@pytest.fixture
def plan(source: Path, tmp_path: Path) -> Plan:
    """A plan for the CPU, of one thread a worker."""
    return Planner(runs.resolved(runs.job(source, tmp_path / "out"))).resolve()


def count(plan: Plan, *nodes: tuple[float, float], shards: int = 1000, **config: Any) -> int:
    """Return how many workers there are, given the CPUs and GPUs of each node."""
    resources = [{"CPU": cpus, "GPU": gpus} for cpus, gpus in nodes]
    executor = ExecutorConfig(kind="ray", **config)
    return choose_workers(plan, executor, shards, resources)


def test_number_is_chosen_so_that_each_cpu_and_gpu_is_given_once(plan: Plan) -> None:
    assert count(plan, (16, 1), gpus=0.25) == 4
    assert count(plan, (2, 1), gpus=0.25) == 2
    assert count(plan, (4, 1), (16, 2), (8, 0), gpus=0.25) == 12
    assert count(plan.model_copy(update={"threads": 8}), (16, 1), gpus=0.25) == 2
    assert count(plan, (16, 1), (16, 1), gpus=0.25, shards=3) == 3


def test_number_of_the_job_holds(plan: Plan) -> None:
    assert count(plan, (16, 1), (16, 1), gpus=0.25, actors=3) == 3
    assert count(plan, (16, 1)) == 2
    assert count(plan, (16, 1), actors=5) == 5


def test_tagger_on_a_gpu_has_a_quarter_of_it_unless_the_job_says_otherwise(plan: Plan) -> None:
    tagger = plan.config.tagger.model_copy(update={"device": "cuda"})
    on_gpu = plan.model_copy(update={"config": plan.config.model_copy(update={"tagger": tagger})})
    assert count(on_gpu, (16, 1)) == 4
    assert count(on_gpu, (16, 1), gpus=0.5) == 2
    assert count(on_gpu, (16, 1), gpus=0) == 2
    with pytest.raises(ConfigError, match=r"1 workers of 1 CPUs and 0.25 GPUs do not fit .* \(16 CPUs and 0 GPUs\)"):
        count(on_gpu, (16, 0))


def test_what_was_chosen_is_told(plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    count(plan, (16, 1), gpus=0.25)
    count(plan, (16, 1))
    assert [record.message for record in caplog.records] == ["executor.actors=4 with 0.25 GPUs and 1 CPUs each"]


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
        ({"CPU": 64.0, "GPU": 5.0}, 1, 2, 2),
        ({"CPU": 1.0, "GPU": 1.0}, 1, 0.25, 1),
        ({}, 1, 0, 0),
    ],
)
def test_workers_that_fit_counts_whole_workers(node: dict[str, float], cpus: int, gpus: float, room: int) -> None:
    assert workers_that_fit(node, cpus=cpus, gpus=gpus) == room


def test_parts_of_two_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"executor.gpus.*expected a share of one GPU, up to 1, or a whole number"):
        AnnotateConfig.from_mapping({"input": "in", "output": {"path": "out"}, "executor": {"gpus": 1.5}})


@pytest.mark.slow
def test_unreachable_cluster_is_reported_at_once(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = runs.job(source, tmp_path / "out", executor={"kind": "ray", "threads": 1})
    process = runs.in_child(lambda: runs.run_job(config), RAY_ADDRESS="127.0.0.1:1")
    process.join()
    assert process.exitcode == 1
    error = capfd.readouterr().err
    assert "cannot join the cluster at RAY_ADDRESS=127.0.0.1:1" in error
    assert "--executor local" in error


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
