"""The scheduler's loop, driven by a fake of Ray in which calls end at once."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from concord_testing import runs
from ray.exceptions import ActorUnavailableError
from ray.util import metrics

from concord.pipeline.config import ExecutorConfig
from concord.pipeline.executors import ray_scheduler
from concord.pipeline.executors.base import StopRequest
from concord.pipeline.executors.ray_actors import ShardActor, ShardResult
from concord.pipeline.executors.ray_scheduler import RayScheduler, WorkerRole
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Shard
from concord.pipeline.worker.shard_progress import Timings


@dataclass(eq=False)
class Call:
    """A call of an actor's method; ``get`` gives its result."""

    get: Callable[[], Any]


@dataclass(eq=False)
class Actor:
    """An actor whose process is up, or lost for ever."""

    is_lost: bool

    @property
    def ping(self) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda: Call(self._answer))

    @property
    def run(self) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda shard, tables: Call(lambda: finished(shard)))

    def _answer(self) -> str:
        if self.is_lost:
            raise ActorUnavailableError("its node is gone", None)
        return "a process"


def finished(shard: Shard) -> ShardResult:
    report = ShardReport(
        shard=shard.index, generation=0, read=shard.records, annotated=shard.records, unchanged=0, dead_letters=0
    )
    return ShardResult(report=report, timings=Timings(), resident_bytes=None)


def fake_ray(actors: Sequence[Actor]) -> SimpleNamespace:
    """Return what the scheduler uses of Ray, with these actors in the order in which they are started."""
    remaining = iter(actors)
    return SimpleNamespace(
        remote=lambda **options: lambda kind: SimpleNamespace(remote=lambda *arguments: next(remaining)),
        wait=lambda calls, timeout: (calls, []),
        get=lambda call: call.get(),
        kill=lambda actor: None,
    )


def test_lost_actors_keep_no_other_worker_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = runs.run_job(runs.job(runs.write_collection(tmp_path / "in.jsonl"), tmp_path / "out"))
    plan = OutputFolder(report.output).plan()
    assert len(plan.shards) > 2
    actors = [*(Actor(is_lost=True) for _ in range(10)), Actor(is_lost=False)]
    monkeypatch.setattr(ray_scheduler, "ray", fake_ray(actors))
    monkeypatch.setattr(metrics, "Counter", lambda *_, **__: SilentMetric())
    monkeypatch.setattr(metrics, "Gauge", lambda *_, **__: SilentMetric())
    monkeypatch.setattr(metrics, "Histogram", lambda *_, **__: SilentMetric())
    role = WorkerRole(count=11, cpus=1, gpus=0, key="actors", actor=ShardActor, build=lambda plan: None)
    scheduler = RayScheduler(plan, ExecutorConfig(kind="ray"), [role])
    reports: list[ShardReport] = []
    start = time.monotonic()
    scheduler.run(plan.shards, on_report=lambda report, _: reports.append(report), on_progress=None, stop=StopRequest())
    assert {report.shard for report in reports} == {shard.index for shard in plan.shards}
    assert time.monotonic() - start < 2.5


class SilentMetric:
    """A metric that nobody reads."""

    def set_default_tags(self, tags: dict[str, str]) -> None: ...

    def set(self, number: float) -> None: ...

    def inc(self, number: float, tags: dict[str, str]) -> None: ...

    def observe(self, number: float) -> None: ...
