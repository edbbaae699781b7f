"""Threads: the environment decides the default, and a process gets its own number back."""

from pathlib import Path

import pytest
import torch
from concord_testing import fakes, runs

from concord.pipeline import threads
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Plan
from concord.pipeline.planning.planner import Planner
from concord.pipeline.threads import default_threads, torch_threads
from concord.pipeline.worker.shard_worker import ShardWorker


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return runs.write_collection(tmp_path / "in.jsonl")


def planned(config: AnnotateConfig) -> Plan:
    return Planner(runs.resolved(config)).resolve()


@pytest.mark.parametrize(
    ("variable", "cores", "expected"),
    [("1", 8, 1), ("6", 2, 6), ("3,1", 8, 3), (" 2 ", 8, 2), ("", 8, 4), ("0", 2, 2), ("many", 2, 2), ("-1", 1, 1)],
)
def test_environment_decides_the_default(
    monkeypatch: pytest.MonkeyPatch, variable: str, cores: int, expected: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    assert default_threads() == expected


def test_torch_threads_restores_the_number_after_an_error() -> None:
    before, seen = torch.get_num_threads(), []

    def fail() -> None:
        with torch_threads(before + 2):
            seen.append(torch.get_num_threads())
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert (seen, torch.get_num_threads()) == ([before + 2], before)


@pytest.mark.parametrize("kind", ["local", "ray"])
def test_environment_decides_for_a_new_plan_only(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert planned(runs.job(source, tmp_path / "out", executor={"kind": kind})).threads == 3
    assert planned(runs.job(source, tmp_path / "out", executor={"kind": kind, "threads": 2})).threads == 2
    runs.run_job(runs.job(source, tmp_path / "out", executor={"threads": 2}))
    assert planned(runs.job(source, tmp_path / "out", executor={"kind": kind})).threads == 2


def test_local_run_leaves_the_threads_of_its_process(source: Path, tmp_path: Path) -> None:
    before, seen = torch.get_num_threads(), []

    def build(plan: Plan) -> ShardWorker:
        torch.set_num_threads(plan.threads)
        seen.append(torch.get_num_threads())
        return fakes.build_fake_worker(plan)

    runs.run_job(runs.job(source, tmp_path / "out", executor={"threads": before + 1}), build=build)
    assert (seen, torch.get_num_threads()) == ([before + 1], before)
    assert OutputFolder(tmp_path / "out").plan().threads == before + 1
