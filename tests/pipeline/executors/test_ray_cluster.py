"""How many workers of each kind there are and where, what is refused, and joining or starting a cluster."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from concord_testing import fakes, runs

from concord.models.errors import ConfigError
from concord.pipeline.config import AnnotateConfig, ExecutorConfig
from concord.pipeline.errors import StoppedError
from concord.pipeline.executors.ray_cluster import choose_roles, connected, run_on_ray
from concord.pipeline.plan import Plan
from concord.pipeline.planning.build_plan import PlanInputs, make_plan

BUILD: Any = {"build": fakes.build_fake_worker, "build_parse": fakes.build_fake_parse_worker}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of twelve documents."""
    return runs.write_collection(tmp_path / "in.jsonl")


@pytest.fixture
def plan(source: Path, tmp_path: Path) -> Plan:
    """A plan for the CPU, of one thread a worker."""
    return make_plan(PlanInputs(job=runs.resolved(runs.job(source, tmp_path / "out")), threads=1))


def numbers(plan: Plan, *nodes: tuple[float, float], shards: int = 1000, **config: Any) -> list[list[int]]:
    """Return how many workers of each kind are on each node, given its CPUs and GPUs."""
    resources = {str(number): {"CPU": cpus, "GPU": gpus} for number, (cpus, gpus) in enumerate(nodes)}
    found = choose_roles(plan, ExecutorConfig(kind="ray", **config), shards, resources, **BUILD)
    return [[role.nodes.count(node) if role.nodes else role.count for node in resources] for role in found]


def test_numbers_are_chosen_so_that_each_cpu_is_given_once(plan: Plan) -> None:
    assert numbers(plan, (16, 1), gpus=0.25) == [[4], [12]]
    assert numbers(plan, (8, 1), gpus=0.25) == [[2], [6]]
    assert numbers(plan, (64, 1), gpus=0.25) == [[4], [60]]
    assert numbers(plan, (2, 1), gpus=0.25) == [[1], [1]]
    assert numbers(plan, (1, 1), gpus=0.25) == [[1]]
    assert numbers(plan, (4, 1), (16, 1), (8, 0), gpus=0.25) == [[1, 4, 0], [3, 12, 8]]
    assert numbers(plan.model_copy(update={"threads": 4}), (16, 1), gpus=0.25) == [[2], [8]]
    assert numbers(plan, (16, 1), gpus=0.25, shards=3) == [[3], [3]]


def test_numbers_of_the_job_hold_and_the_others_follow(plan: Plan) -> None:
    assert numbers(plan, (16, 1), gpus=0.25, actors=2) == [[2], [14]]
    assert numbers(plan, (16, 1), gpus=0.25, parse_actors=3) == [[4], [3]]
    assert numbers(plan, (16, 1), gpus=0.0625, parse_actors=0) == [[16]]
    assert numbers(plan, (16, 1), (16, 1), gpus=0.5, actors=2, parse_actors=4) == [[1, 1], [2, 2]]
    assert numbers(plan, (16, 1)) == [[2]]
    assert numbers(plan, (16, 1), actors=5) == [[5]]


def test_tagger_on_a_gpu_has_a_quarter_of_it_unless_the_job_says_otherwise(plan: Plan) -> None:
    tagger = plan.config.tagger.model_copy(update={"device": "cuda"})
    on_gpu = plan.model_copy(update={"config": plan.config.model_copy(update={"tagger": tagger})})
    assert numbers(on_gpu, (16, 1)) == [[4], [12]]
    assert numbers(on_gpu, (16, 1), gpus=0.5) == [[2], [14]]
    assert numbers(on_gpu, (16, 1), gpus=0) == [[2]]
    with pytest.raises(ConfigError, match=r"1 workers of 1 CPUs and 0.25 GPUs do not fit .* \(16 CPUs and 0 GPUs\)"):
        numbers(on_gpu, (16, 0))


def test_what_was_chosen_is_told(plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    numbers(plan, (16, 1), gpus=0.25)
    numbers(plan, (16, 1), gpus=1, parse_actors=0)
    numbers(plan, (16, 1))
    assert [record.message for record in caplog.records] == [
        "executor.actors=4 with 0.25 GPUs and 1 CPUs each, executor.parse_actors=12 with 1 CPU each",
        "executor.actors=1 with 1 GPUs and 1 CPUs each, executor.parse_actors=0 with 1 CPU each",
    ]


def test_parts_of_two_gpus_and_workers_that_parse_without_a_gpu_are_refused(plan: Plan) -> None:
    with pytest.raises(ConfigError, match=r"executor.gpus.*expected a share of one GPU, up to 1, or a whole number"):
        AnnotateConfig.from_mapping({"input": "in", "output": "out", "executor": {"gpus": 1.5}})
    config = ExecutorConfig(kind="ray", parse_actors=2)
    with pytest.raises(ConfigError, match=r"executor\.parse_actors: expected null .* got 2; set tagger\.device=cuda"):
        run_on_ray(plan, plan.shards, lambda *_: None, config=config)


def test_parser_on_a_gpu_is_rejected_when_separate_workers_parse(source: Path, tmp_path: Path) -> None:
    config = runs.job(source, tmp_path / "out", parser={"device": "cuda"}, executor={"kind": "ray", "gpus": 1})
    plan = make_plan(PlanInputs(job=runs.resolved(config), threads=1))
    with pytest.raises(ConfigError, match=r"set executor.parse_actors=0 to parse where the tagger works"):
        run_on_ray(plan, plan.shards, lambda *_: None, config=config.executor)


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
