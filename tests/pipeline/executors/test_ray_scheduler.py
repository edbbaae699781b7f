"""The scheduler's loop, driven by a simulated Ray."""

import logging
import pickle
import signal
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from concord_testing import fakes, runs
from concord_testing.simulated_ray import Actor, HangError, SimulatedRay
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from concord.models.errors import ConcordError, ConfigError, ModelError
from concord.pipeline.config import ExecutorConfig
from concord.pipeline.errors import DeviceError, ReconciliationError, ShardError, StoppedError, StoreError
from concord.pipeline.executors import ray_scheduler
from concord.pipeline.executors.base import StopRequest
from concord.pipeline.executors.ray_actors import ProcessPlace, ShardResult, SharedStorage
from concord.pipeline.executors.ray_scheduler import (
    RayScheduler,
    RunMetrics,
    Workers,
    longest_first,
    workers_that_fit,
)
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Piece, Plan, Shard
from concord.pipeline.worker.crash_log import CrashLog, WorkPlace
from concord.pipeline.worker.shard_progress import ShardProgress, Timings

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


class OnceActor(Actor):
    """One that fails at its first shard."""

    calls = 0

    def do(self, shard: Shard) -> ShardResult:
        self.calls += 1
        if self.calls == 1:
            self.fail(shard)
        return super().do(shard)

    def fail(self, shard: Shard) -> None:
        """Raise an error."""


class MovedActor(OnceActor):
    """One whose process is lost with its node, and replaced by another on the next node."""

    def fail(self, shard: Shard) -> None:
        self.ray.lost_nodes.add(self.place.node)
        self.place = ProcessPlace(process="another", node="node 98")
        raise ActorUnavailableError("its process is gone", None)


class RestartedActor(OnceActor):
    """One whose process is lost, and replaced by another."""

    def fail(self, shard: Shard) -> None:
        self.restart()
        raise ActorUnavailableError("its process is gone", None)


class DevicelessActor(OnceActor):
    """One that loses its device."""

    def fail(self, shard: Shard) -> None:
        raise raised_in_task(DeviceError("the device is lost"))


class HangingActor(OnceActor):
    """One that does not answer until it is killed."""

    def fail(self, shard: Shard) -> None:
        raise HangError


def raised_in_task(error: Exception) -> RayTaskError:
    """Return what Ray raises in the driver for an error in a worker, which has to be sent."""
    sent: RayTaskError = RayTaskError("run", "", pickle.loads(pickle.dumps(error))).as_instanceof_cause()
    return sent


def run(
    plan: Plan,
    shards: Sequence[Shard],
    *,
    actors: int,
    on_progress: Any = None,
    stop: StopRequest | None = None,
    reports: list[CommitRecord] | None = None,
    **config: Any,
) -> tuple[RayScheduler, list[CommitRecord]]:
    """Run shards; return the scheduler and the reports."""
    workers = Workers(count=actors, cpus=1, gpus=0, build=fakes.build_no_worker)
    storage = SharedStorage.of(plan, shards)
    scheduler = RayScheduler(plan, ExecutorConfig(kind="ray", **config), workers, storage)
    found: list[CommitRecord] = [] if reports is None else reports
    with storage.marked():
        try:
            scheduler.run(
                shards,
                on_report=lambda report, _: found.append(report),
                on_progress=on_progress,
                stop=stop or StopRequest(),
            )
        finally:
            scheduler.shutdown()
    return scheduler, found


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
        raise raised_in_task(ConfigError("sees nothing"))


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
    unseen = f"host {socket.gethostname()} does not see the output {plan.config.output.path} of this run"
    assert unseen in str(storage.fault())
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
    [
        (MovedActor, "node_lost"),
        (RestartedActor, "worker_died"),
        (DevicelessActor, "worker_died"),
        (HangingActor, "time_limit"),
    ],
)
def test_only_the_loss_of_a_worker_counts_as_an_attempt_not_that_of_its_node(
    plan: Plan, actor: type[Actor], cause: str
) -> None:
    with SimulatedRay(actor=actor).used():
        scheduler, reports = run(plan, plan.shards, actors=1, shard_seconds=0.1, worker_memory_bytes=1)
    assert len(reports) == len(plan.shards)
    assert scheduler.replaced == {cause: 1}
    assert sum(found.deaths for found in CrashLog(plan).read_all().values()) == (cause != "node_lost")


def test_shard_whose_workers_die_reading_fails_after_the_others_are_done(plan: Plan) -> None:
    *others, last = plan.shards

    class DyingActor(RestartedActor):
        def do(self, shard: Shard) -> ShardResult:
            self.calls = int(shard != last)
            return super().do(shard)

    reports: list[CommitRecord] = []
    died = pytest.raises(ShardError, match=r"its worker died \d times, not on one of its documents")
    with SimulatedRay(actor=DyingActor).used(), died:
        run(plan, plan.shards, actors=2, reports=reports)
    assert {report.shard for report in reports} == {shard.index for shard in others}


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ReconciliationError("shard 0000: lost"), ReconciliationError("shard 0000: lost")),
        (StoreError("no space"), StoreError("no space")),
        (ValueError("a bug"), ShardError("shard .*: ValueError: a bug")),
    ],
)
def test_error_of_a_worker_ends_the_run(plan: Plan, error: Exception, raised: ConcordError) -> None:
    class BrokenActor(Actor):
        def do(self, shard: Shard) -> ShardResult:
            raise raised_in_task(error)

    with SimulatedRay(actor=BrokenActor).used(), pytest.raises(type(raised), match=str(raised)):
        run(plan, plan.shards, actors=1)


def test_worker_that_cannot_be_built_ends_the_run(plan: Plan) -> None:
    class UnbuiltActor(Actor):
        def answer(self) -> ProcessPlace:
            raise ActorDiedError(RayTaskError("__init__", "Traceback:\nOSError: no weights", OSError("no weights")))

    unbuilt = pytest.raises(ModelError, match=r"a worker cannot be built: OSError: no weights$")
    with SimulatedRay(actor=UnbuiltActor).used(), unbuilt:
        run(plan, plan.shards, actors=1)


def test_shards_that_take_too_long_after_a_signal_are_dropped_without_an_attempt(plan: Plan) -> None:
    stop = StopRequest(drain_seconds=0.1)

    class StoppedActor(HangingActor):
        def fail(self, shard: Shard) -> None:
            CrashLog(plan).mark_in_progress(shard, WorkPlace()).__enter__()
            stop.receive(signal.SIGTERM)
            super().fail(shard)

    ray = SimulatedRay(actor=StoppedActor)
    reports: list[CommitRecord] = []
    with ray.used(), pytest.raises(StoppedError):
        run(plan, plan.shards, actors=1, stop=stop, reports=reports)
    assert (reports, len(set(ray.killed))) == ([], 1)
    assert not list(Path(plan.config.output.path).glob("_run/attempts/*/*"))


def test_workers_above_their_memory_are_replaced_while_shards_are_left(plan: Plan) -> None:
    class LargeActor(Actor):
        resident_bytes = 2

    for limit, replaced in ((1, {"memory": len(plan.shards) - 1}), (2, {})):
        with SimulatedRay(actor=LargeActor).used() as ray:
            scheduler, reports = run(plan, plan.shards, actors=1, worker_memory_bytes=limit)
        assert len(reports) == len(plan.shards)
        assert scheduler.replaced == replaced
        assert len(ray.killed) == 1 + len(replaced) * (len(plan.shards) - 1)


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


def test_marks_are_removed_only_where_one_was_left(plan: Plan) -> None:
    first, *_ = plan.shards
    folder = Path(plan.config.output.path, "_run", "attempts", "0")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{first.name}.mark").write_text("{}")
    with SimulatedRay().used(), mock.patch.object(CrashLog, "remove_mark", autospec=True) as remove:
        run(plan, plan.shards, actors=3)
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


class Metric:
    """Remembers its values, by name and tags."""

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def __init__(self, name: str, *, description: str, tag_keys: tuple[str, ...], boundaries: Any = None) -> None:
        assert description
        self._name = name
        self._keys = set(tag_keys)
        self._default: dict[str, str] = {}

    def set_default_tags(self, tags: dict[str, str]) -> None:
        self._default = tags

    def inc(self, number: float, tags: dict[str, str]) -> None:
        assert number > 0
        key = self._key(tags)
        Metric.values[key] = Metric.values.get(key, 0.0) + number

    def set(self, number: float) -> None:
        Metric.values[self._key({})] = number

    def observe(self, number: float) -> None:
        self.inc(number, {})

    def _key(self, tags: dict[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
        tags = self._default | tags
        assert set(tags) == self._keys
        return self._name, tuple(sorted(tags.items()))


def test_metrics_have_names_and_tags() -> None:
    Metric.values = {}
    run_metrics = RunMetrics(counter=Metric, gauge=Metric, histogram=Metric, collection="/out")
    run_metrics.set_shards_left(2)
    report = CommitRecord(shard=0, generation=0, read=3, annotated=2, unchanged=0, dead_letters=1)
    run_metrics.count_shard(report, Timings(read=0.5, parse=2.0, tag=1.0, words=7))
    run_metrics.count_replaced("memory")
    collection = ("collection", "/out")
    assert Metric.values == {
        ("concord_shards_left", (collection,)): 2,
        ("concord_shards_total", (collection,)): 1,
        ("concord_documents_total", (collection,)): 2,
        ("concord_dead_letters_total", (collection,)): 1,
        ("concord_words_total", (collection,)): 7,
        ("concord_stage_seconds_total", (collection, ("stage", "read"))): 0.5,
        ("concord_stage_seconds_total", (collection, ("stage", "parse"))): 2.0,
        ("concord_stage_seconds_total", (collection, ("stage", "tag"))): 1.0,
        ("concord_shard_seconds", (collection,)): 3.5,
        ("concord_workers_replaced_total", (("cause", "memory"), collection)): 1,
    }


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
