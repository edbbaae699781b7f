"""The scheduler's loop, driven by a simulated Ray."""

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from concord_testing import runs
from concord_testing.simulated_ray import Actor, SimulatedRay
from ray.exceptions import ActorUnavailableError, RayTaskError

from concord.models.errors import ConfigError
from concord.pipeline.config import ExecutorConfig
from concord.pipeline.errors import DeviceError
from concord.pipeline.executors import ray_scheduler
from concord.pipeline.executors.base import StopRequest
from concord.pipeline.executors.ray_actors import ProcessPlace, ShardActor, ShardResult, SharedStorage
from concord.pipeline.executors.ray_scheduler import RayScheduler, WorkerRole
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.worker.crash_log import CrashLog
from concord.pipeline.worker.shard_progress import ShardProgress

pytestmark = pytest.mark.slow


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """The plan of a finished run of a few shards."""
    report = runs.run_job(runs.job(runs.write_collection(tmp_path / "in.jsonl"), tmp_path / "out"))
    found = OutputFolder(report.output).plan()
    assert len(found.shards) > 2
    return found


class LostActor(Actor):
    """One whose node is gone for ever."""

    def answer(self) -> ProcessPlace:
        raise ActorUnavailableError("its node is gone", None)


class MovedActor(Actor):
    """One whose process is lost with its first shard, and replaced by another on the next node."""

    calls = 0

    def do(self, shard: Shard) -> ShardResult:
        self.calls += 1
        if self.calls > 1:
            return super().do(shard)
        self.lose()
        self.place = ProcessPlace(process="another", node="node 98")
        raise ActorUnavailableError("its process is gone", None)

    def lose(self) -> None:
        self.ray.lost_nodes.add(self.place.node)


class RestartedActor(MovedActor):
    """The same, with a node that stays up."""

    def lose(self) -> None:
        pass


class DevicelessActor(RestartedActor):
    """One whose process loses its device with its first shard, and is replaced by another."""

    def do(self, shard: Shard) -> ShardResult:
        try:
            return super().do(shard)
        except ActorUnavailableError:
            raise RayTaskError("run", "", DeviceError("the device is lost")).as_instanceof_cause() from None


def run(
    plan: Plan,
    shards: Sequence[Shard],
    *,
    actors: int,
    nodes: tuple[str, ...] = (),
    on_progress: Any = None,
    **config: Any,
) -> tuple[RayScheduler, list[CommitRecord]]:
    """Run shards; return the scheduler and the reports."""
    role = WorkerRole(
        count=actors, cpus=1, gpus=0, key="actors", actor=ShardActor, build=lambda plan: None, nodes=nodes
    )
    storage = SharedStorage.of(plan, shards)
    scheduler = RayScheduler(plan, ExecutorConfig(kind="ray", **config), [role], storage)
    reports: list[CommitRecord] = []
    with storage.marked():
        try:
            scheduler.run(
                shards, on_report=lambda report, _: reports.append(report), on_progress=on_progress, stop=StopRequest()
            )
        finally:
            scheduler.shutdown()
    return scheduler, reports


def many(shards: int) -> list[Shard]:
    return [Shard(index=index) for index in range(shards)]


def test_lost_actors_keep_no_other_worker_waiting(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLD_SECONDS", "PATIENCE_SECONDS"):
        monkeypatch.setattr(ray_scheduler, name, 3600.0)
    ray = SimulatedRay(actor=lambda ray, number: (LostActor if number < 10 else Actor)(ray, number))
    with ray.used():
        _, reports = run(plan, plan.shards, actors=11)
    assert {report.shard for report in reports} == {shard.index for shard in plan.shards}


class BlindActor(Actor):
    """One that sees nothing of the output."""

    def answer(self) -> ProcessPlace:
        raise RayTaskError("ping", "", ConfigError("sees nothing")).as_instanceof_cause()


class LateActor(BlindActor):
    """One before whose start another driver has swept the mark away."""

    def answer(self) -> ProcessPlace:
        if self.place.process == "process 1":
            return self.place
        [mark] = self.ray.output.glob("_run/drivers/*/*")
        mark.unlink()
        return super().answer()


def test_worker_that_does_not_see_the_output_ends_the_run_with_its_words(plan: Plan) -> None:
    with SimulatedRay(actor=BlindActor).used(), pytest.raises(ConfigError, match="sees nothing"):
        run(plan, plan.shards, actors=2)


def test_mark_that_another_driver_has_swept_away_is_written_again(plan: Plan) -> None:
    ray = SimulatedRay(actor=LateActor)
    ray.output = Path(plan.config.output.path)
    with ray.used():
        assert len(run(plan, plan.shards, actors=1)[1]) == len(plan.shards)
    assert not list(ray.output.glob("_run/drivers/*/*"))


def test_process_sees_storage_once_the_mark_is_written_and_the_input_is_there(plan: Plan) -> None:
    storage = SharedStorage.of(plan, plan.shards)
    assert f"does not see the output {plan.config.output.path} of this run" in str(storage.fault())
    with storage.marked():
        assert storage.fault() is None
        Path(plan.config.input).rename(f"{plan.config.input}.gone")
        assert f"does not see the input {plan.config.input} of this run" in str(storage.fault())


@pytest.mark.parametrize("etags", [{}, {f"s3://bucket/{number:060}": "tag" for number in range(1000)}])
def test_actors_are_built_from_what_ray_sends_with_the_call_or_from_an_object_that_is_kept(
    plan: Plan, etags: dict[str, str]
) -> None:
    large = plan.model_copy(update={"shards": tuple(many(1000)), "etags": etags})
    with SimulatedRay().used() as ray, mock.patch.object(ray, "put", side_effect=lambda value: value) as put:
        run(large, plan.shards, actors=2)
    assert put.call_count == bool(etags)
    assert Plan.from_json(ray.plan).shards == ()


@pytest.mark.parametrize(
    ("actor", "cause"),
    [(MovedActor, "node_lost"), (RestartedActor, "worker_died"), (DevicelessActor, "worker_died")],
)
def test_only_the_loss_of_a_worker_counts_as_an_attempt_not_that_of_its_node(
    plan: Plan, actor: type[Actor], cause: str
) -> None:
    with SimulatedRay(actor=actor).used():
        scheduler, reports = run(plan, plan.shards, actors=1)
    assert len(reports) == len(plan.shards)
    assert scheduler.replaced == {cause: 1}
    assert sum(found.deaths for found in CrashLog(plan).read_all().values()) == (cause == "worker_died")


def test_workers_start_on_their_nodes(plan: Plan) -> None:
    with SimulatedRay().used() as ray:
        run(plan, plan.shards, actors=3, nodes=("a" * 56, "b" * 56, "a" * 56))
    assert [node[0] for node in ray.pinned] == ["a", "b", "a"]


def test_driver_takes_little_processor_time_for_a_shard_whatever_the_number_of_workers(plan: Plan) -> None:
    shards = many(3000)
    took: dict[int, float] = {}
    for actors in (10, 1000):
        with SimulatedRay(seconds=0.01).used():
            start = time.thread_time()
            _, reports = run(plan, shards, actors=actors)
            took[actors] = (time.thread_time() - start) / len(shards)
        assert len(reports) == len(shards)
    # A step that looks at every worker for each event would cost a hundred times as much.
    assert took[1000] < 25 * took[10]


def test_progress_is_read_beside_the_loop(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: set[threading.Thread] = set()

    def read_slowly(_log: CrashLog, shard: Shard) -> ShardProgress:
        readers.add(threading.current_thread())
        return ShardProgress(shard=shard.index, stage="tag", share=0.5)

    monkeypatch.setattr(CrashLog, "read_progress", read_slowly)
    monkeypatch.setattr(ray_scheduler, "PROGRESS_SECONDS", 0.1)
    seen: list[ShardProgress] = []
    with SimulatedRay(seconds=0.5).used():
        run(plan, many(200), actors=100, on_progress=seen.append)
    assert seen
    assert threading.current_thread() not in readers


def test_marks_are_removed_only_where_a_worker_has_left_one(plan: Plan) -> None:
    first, *_ = plan.shards
    folder = Path(plan.config.output.path, "_run", "attempts", "0")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{first.name}.mark").write_text("{}")
    with SimulatedRay().used(), mock.patch.object(CrashLog, "remove_mark", autospec=True) as remove:
        run(plan, plan.shards, actors=2)
    assert [call.args[1] for call in remove.call_args_list] == [first]


@pytest.mark.parametrize("held", [True, False], ids=["held by others", "slow to load"])
def test_workers_that_wait_for_others_to_leave_say_so(
    plan: Plan, held: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_scheduler, "WAIT_SECONDS", 0.1)
    ray = SimulatedRay(seconds=0.7)
    ray.free = {"CPU": 0.0 if held else 1.0}
    with ray.used(), caplog.at_level(logging.WARNING):
        run(plan, plan.shards[:1], actors=1)
    said = "1 of 1 workers (executor.actors) have no room yet: others hold the CPUs or GPUs of the cluster"
    assert (said in caplog.text) == held
