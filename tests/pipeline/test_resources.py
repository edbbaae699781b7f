"""Threads: the environment decides the default, and a process gets its own number back. Memory: caches are bounded."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from concord_testing import fakes, runs

from concord.pipeline import resources
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Plan
from concord.pipeline.planning.planner import Planner
from concord.pipeline.resources import default_threads, torch_threads
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
    monkeypatch.setattr(resources, "usable_cores", lambda: cores)
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


# Prints by how many MB the resident set grows over 400 different shapes of a convolution; then by how many MB it
# shrinks when every other one of 2,000 blocks is freed, before and after the heap is trimmed: each hole lies below a
# block as large as itself, so that the top of the heap stays where it is.
MEASURE = """
import os
import torch
from concord.pipeline.resources import bound_caches, trim_heap

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

bound_caches()
torch.set_num_threads(1)
network = torch.nn.Conv1d(25, 40, 3)
with torch.inference_mode():
    for shapes in (range(20, 40), range(40, 440)):
        trim_heap()
        before = resident()
        for words in shapes:
            network(torch.zeros(words, 25, 12))
    trim_heap()
    print(resident() - before)
blocks = [torch.ones(15_000) for _ in range(2_000)]
before = resident()
del blocks[::2]
print(before - resident())
trim_heap()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="measures the heap of glibc")
@pytest.mark.slow
def test_new_batch_shapes_cost_no_memory_and_freed_memory_is_returned_to_the_system() -> None:
    # Another test of this session may have bounded the caches in the environment, which torch reads once per process.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("CACHE_CAPACITY")}
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, env=environment)
    growth, before_return, after_return = map(float, done.stdout.split())
    assert growth < 3
    assert after_return > 50
    assert before_return < 30, "glibc returns holes by itself: trim_heap is not needed"
