"""What the driver does with its actors, on a simulated Ray."""

import pickle
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from concord_testing import fakes, runs
from concord_testing.simulated_ray import Actor, HangError, SimulatedRay
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayError, RayTaskError

from concord.models.errors import ConcordError, ConfigError, ModelError
from concord.pipeline.config import ExecutorConfig
from concord.pipeline.errors import DeviceError, InputError, ReconciliationError, ShardError, StoppedError, StoreError
from concord.pipeline.executors import ray_actors
from concord.pipeline.executors.base import StopRequest
from concord.pipeline.executors.ray_actors import ShardActor, ShardActors, ShardResult
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Piece, Plan, Shard
from concord.pipeline.planning.planner import Planner
from concord.pipeline.worker.attempts import attempts_path
from concord.pipeline.worker.shard_progress import ShardProgress

pytestmark = pytest.mark.slow


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """The plan of a finished run of a few shards."""
    report = runs.run_job(runs.job(runs.write_collection(tmp_path / "in.jsonl"), tmp_path / "out"))
    found = OutputFolder(report.output).plan()
    assert len(found.shards) > 2
    return found


def raised_in_task(error: Exception) -> RayTaskError:
    """Return what Ray raises in the driver for an error in a worker, which has to be sent."""
    sent: RayTaskError = RayTaskError("run", "", pickle.loads(pickle.dumps(error))).as_instanceof_cause()
    return sent


def run(
    plan: Plan,
    shards: Sequence[Shard],
    *,
    actors: int = 1,
    stop: StopRequest | None = None,
    reports: list[CommitRecord] | None = None,
    progress: list[ShardProgress] | None = None,
    memory: int | None = None,
    seconds: float | None = None,
) -> list[CommitRecord]:
    """Run shards; return the reports, in the order in which the shards were done."""
    config = ExecutorConfig(kind="ray", worker_memory_bytes=memory, shard_seconds=seconds)
    found = [] if reports is None else reports
    with OutputFolder(plan.config.output.path).writing():
        started = ShardActors(plan, config, count=actors, build=fakes.build_no_worker)
        try:
            started.run(
                shards,
                on_report=lambda report, _: found.append(report),
                on_progress=(progress if progress is not None else []).append,
                stop=stop or StopRequest(),
            )
        finally:
            started.shutdown()
    return found


def test_each_shard_is_done_once_and_all_actors_are_ended(plan: Plan) -> None:
    seen: list[ShardProgress] = []
    with SimulatedRay().used() as ray:
        reports = run(plan, plan.shards, actors=2, progress=seen)
    assert sorted(report.shard for report in reports) == [shard.index for shard in plan.shards]
    assert [progress.shard for progress in seen] == [report.shard for report in reports]
    assert [actor.is_killed for actor in ray.actors] == [True, True]
    assert ray.stored == [plan.for_workers()]


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        ActorUnavailableError("its node is gone", None),
        OutOfMemoryError("its node has no memory"),
        raised_in_task(DeviceError("the device is lost")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_actor_that_is_lost_is_replaced_and_its_shard_done_last(plan: Plan, error: RayError) -> None:
    lost: list[Shard] = []

    class LostActor(Actor):
        def do(self, shard: Shard) -> ShardResult:
            if self.number == 0:
                lost.append(shard)
                raise error
            return super().do(shard)

    with SimulatedRay(LostActor).used() as ray:
        reports = run(plan, plan.shards)
    assert sorted(report.shard for report in reports) == [shard.index for shard in plan.shards]
    assert reports[-1].shard == lost[0].index
    assert [actor.is_killed for actor in ray.actors] == [True, True]


def test_an_actor_that_never_finds_room_keeps_no_shard_waiting(plan: Plan) -> None:
    class LostActor(Actor):
        def load(self) -> None:
            if self.number == 2:
                raise HangError

        def do(self, shard: Shard) -> ShardResult:
            if self.number == 0:
                raise ActorDiedError
            return super().do(shard)

    with SimulatedRay(LostActor).used() as ray:
        reports = run(plan, plan.shards, actors=2)
    assert len(reports) == len(plan.shards)
    assert [actor.is_killed for actor in ray.actors] == [True, True, True]


def test_a_shard_that_ends_one_worker_after_the_other_fails_after_the_others_are_done(plan: Plan) -> None:
    *others, last = plan.shards

    class DyingActor(Actor):
        def do(self, shard: Shard) -> ShardResult:
            if shard == last:
                raise ActorDiedError
            return super().do(shard)

    reports: list[CommitRecord] = []
    with SimulatedRay(DyingActor).used() as ray, pytest.raises(ShardError, match="5 workers were lost on shard"):
        run(plan, plan.shards, actors=2, reports=reports)
    assert {report.shard for report in reports} == {shard.index for shard in others}
    assert all(actor.is_killed for actor in ray.actors)


def test_workers_that_die_as_they_load_end_the_run(plan: Plan) -> None:
    class DyingActor(Actor):
        def load(self) -> None:
            raise ActorDiedError

    with SimulatedRay(DyingActor).used() as ray, pytest.raises(ShardError, match="5 workers were lost while loading"):
        run(plan, plan.shards)
    assert len(ray.actors) == 5


def test_workers_of_a_lost_node_may_all_die_once_more_as_they_load(plan: Plan) -> None:
    """As Ray starts them on the node that it does not know to be lost."""

    class LateActor(Actor):
        def load(self) -> None:
            if self.number < 16:
                raise ActorDiedError

    with SimulatedRay(LateActor).used():
        assert len(run(plan, plan.shards, actors=16)) == len(plan.shards)


def note_attempt(plan: Plan, shard: Shard, content: str) -> None:
    path = Path(str(attempts_path(plan, shard)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_a_worker_that_hangs_is_replaced_unless_it_annotates_documents_one_by_one(plan: Plan) -> None:
    class HangingActor(Actor):
        def do(self, shard: Shard) -> ShardResult:
            if self.number == 0:
                raise HangError
            return super().do(shard)

    with SimulatedRay(HangingActor).used() as ray:
        reports = run(plan, plan.shards, seconds=0.01)
    assert len(reports) == len(plan.shards)
    assert [actor.is_killed for actor in ray.actors] == [True, True]

    stop = StopRequest(drain_seconds=0.8)

    class SlowActor(Actor):
        def do(self, shard: Shard) -> ShardResult:
            note_attempt(plan, shard, "1 alone")
            stop.receive(signal.SIGTERM)
            raise HangError

    with SimulatedRay(SlowActor).used() as ray, pytest.raises(StoppedError):
        run(plan, plan.shards, seconds=0.01, stop=stop)
    assert len(ray.actors) == 1


def test_workers_that_find_no_room_are_mentioned_once(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class WaitingActor(Actor):
        def load(self) -> None:
            if self.number:
                raise HangError

        def do(self, shard: Shard) -> ShardResult:
            time.sleep(0.7)
            return super().do(shard)

    monkeypatch.setattr(ray_actors, "_START_SECONDS", 0.1)
    with SimulatedRay(WaitingActor).used():
        run(plan, plan.shards, actors=3)
    [warning] = caplog.messages
    assert warning.startswith("2 of 3 workers have not started for 0.1 s: they load, or wait for nodes or for others")
    assert warning.endswith("(each takes 1 CPUs and 0 GPUs, of which the cluster has 3 and 0 free); 1 have started")


def test_workers_that_die_now_and_then_as_they_load_end_no_run(plan: Plan) -> None:
    class OddActor(Actor):
        resident_bytes = 2

        def load(self) -> None:
            if self.number % 2:
                raise ActorDiedError

    shards = [Shard(index=index) for index in range(8)]
    with SimulatedRay(OddActor).used() as ray:
        assert len(run(plan, shards, memory=1)) == 8
    assert len(ray.actors) == 1 + 2 * 7


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

    with SimulatedRay(BrokenActor).used() as ray, pytest.raises(type(raised), match=str(raised)):
        run(plan, plan.shards)
    assert [actor.is_killed for actor in ray.actors] == [True]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (raised_in_task(OSError("no weights")), ModelError("a worker cannot be built: OSError: no weights$")),
        (raised_in_task(ConfigError("sees nothing")), ConfigError("sees nothing")),
    ],
)
def test_worker_that_cannot_be_built_or_sees_no_output_ends_the_run(
    plan: Plan, error: Exception, raised: ConcordError
) -> None:
    class UnbuiltActor(Actor):
        def load(self) -> None:
            raise error

    with SimulatedRay(UnbuiltActor).used(), pytest.raises(type(raised), match=str(raised)):
        run(plan, plan.shards)


def test_a_worker_that_does_not_see_output_or_input_says_on_which_host(tmp_path: Path) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl")
    job = runs.resolved(runs.job(source, tmp_path / "out"))
    plan, actor, lock = Planner(job).resolve(), ShardActor(), tmp_path / "out" / "_run" / "lock"
    host = f"the worker on host {socket.gethostname()}"
    with OutputFolder(plan.config.output.path).writing():
        with pytest.raises(ConfigError, match=f"{host} does not see the output {tmp_path}/out of this run"):
            actor.load(plan, fakes.build_fake_worker, b"another disk")
        actor.load(plan, fakes.build_fake_worker, holder := lock.read_bytes())
        source.unlink()
        with pytest.raises(InputError, match=rf"{host} cannot read the input as it was planned \({source}: "):
            actor.run(plan.shards[0])
    with pytest.raises(ConfigError, match=f"{host} does not see the output"):
        actor.load(plan, fakes.build_fake_worker, holder)


def test_shards_that_take_too_long_after_a_signal_are_dropped_without_an_attempt(plan: Plan) -> None:
    stop = StopRequest(drain_seconds=0.1)

    class StoppedActor(Actor):
        def do(self, shard: Shard) -> ShardResult:
            note_attempt(plan, shard, "1")
            stop.receive(signal.SIGTERM)
            raise HangError

    reports: list[CommitRecord] = []
    with SimulatedRay(StoppedActor).used() as ray, pytest.raises(StoppedError):
        run(plan, plan.shards, stop=stop, reports=reports)
    assert (reports, [actor.is_killed for actor in ray.actors]) == ([], [True])
    assert not list(Path(plan.config.output.path).glob("_run/attempts/*/*"))


def test_workers_above_their_memory_are_replaced_while_shards_are_left(plan: Plan) -> None:
    class LargeActor(Actor):
        resident_bytes = 2

    for limit, replaced in ((1, len(plan.shards) - 1), (2, 0)):
        with SimulatedRay(LargeActor).used() as ray:
            assert len(run(plan, plan.shards, memory=limit)) == len(plan.shards)
        assert len(ray.actors) == 1 + replaced


def test_the_longest_shards_begin_first_and_equal_ones_in_the_order_of_the_plan(plan: Plan) -> None:
    def shard(index: int, *sizes: int, format: str = "jsonl") -> Shard:
        pieces = tuple(Piece(uri="in", format=format, start=7, end=8, records=1, size=size) for size in sizes)
        return Shard(index=index, pieces=pieces)

    shards = [shard(0, 5), shard(1, 5), shard(2, 6, format="parquet"), shard(3, 4, 4), shard(4, 5), shard(5)]
    with SimulatedRay().used():
        assert [report.shard for report in run(plan, shards)] == [3, 2, 0, 1, 4, 5]
