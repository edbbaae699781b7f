"""Schedule shards on Ray actors: start them, hand out shards, collect results, replace workers, shut down.

Each actor has at most one shard in flight.

Ray restarts an actor whose process dies but never repeats a call: what is tried again, and how often, is decided here.
An actor gets work only after it has answered a ping, and a worker's death counts against its shard only when another
process has answered in its place and the node of the dead one is still up. So a cluster that is down for a while, a
connection that breaks, or a node that is lost costs no shard an attempt.

What ends is put into a queue by Ray's own threads. No step for one of them takes longer with more workers; what looks
at all workers is done twice a second, and files are read by other threads.
"""

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayError, RayTaskError
from ray.util import metrics

from concord.models.errors import ConcordError, ModelError
from concord.pipeline.config import ExecutorConfig
from concord.pipeline.documents import STAGES
from concord.pipeline.errors import DeviceError, ShardError
from concord.pipeline.executors.base import BuildWorker, OnReport, StopRequest
from concord.pipeline.executors.ray_actors import ProcessPlace, ShardActor, ShardResult, SharedStorage
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.resources import WAIT_POLICY
from concord.pipeline.worker.crash_log import PROGRESS_SECONDS, Cause, CrashLog, WorkPlace
from concord.pipeline.worker.shard_progress import OnShardProgress, ShardProgress, Timings

SHARD_SECONDS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Upper bounds of the histogram's buckets."""


class RunMetrics:
    """The metrics of one run, each tagged with the output folder as ``collection``."""

    def __init__(
        self, *, counter: Callable[..., Any], gauge: Callable[..., Any], histogram: Callable[..., Any], collection: str
    ) -> None:
        """Create the metrics.

        Args:
            counter, gauge, histogram: classes that are built from name, description and tag_keys, as in
                ray.util.metrics.
        """

        def create(kind: Callable[..., Any], name: str, description: str, *keys: str, **options: object) -> Any:
            metric = kind(f"concord_{name}", description=description, tag_keys=("collection", *keys), **options)
            metric.set_default_tags({"collection": collection})
            return metric

        self._shards = create(counter, "shards_total", "shards committed")
        self._documents = create(counter, "documents_total", "documents annotated")
        self._dead_letters = create(counter, "dead_letters_total", "records that became dead letters")
        self._words = create(counter, "words_total", "words annotated")
        self._stages = create(counter, "stage_seconds_total", "seconds of work, summed over workers", "stage")
        self._replaced = create(counter, "workers_replaced_total", "workers that were replaced", "cause")
        self._shards_left = create(gauge, "shards_left", "shards that are not committed yet")
        self._seconds = create(
            histogram, "shard_seconds", "seconds of work that a shard took", boundaries=list(SHARD_SECONDS)
        )

    def set_shards_left(self, shards: int) -> None:
        """Set how many shards are not committed yet."""
        self._shards_left.set(shards)

    def count_shard(self, report: CommitRecord, timings: Timings) -> None:
        """Count a committed shard."""
        seconds = {stage: getattr(timings, stage) for stage in STAGES}
        _add(self._shards, 1)
        _add(self._documents, report.annotated)
        _add(self._dead_letters, report.dead_letters)
        _add(self._words, timings.words)
        for stage, taken in seconds.items():
            _add(self._stages, taken, {"stage": stage})
        self._seconds.observe(sum(seconds.values()))

    def count_replaced(self, cause: str) -> None:
        """Count a worker that was replaced."""
        _add(self._replaced, 1, {"cause": cause})


def _add(metric: Any, number: float, tags: Mapping[str, str] | None = None) -> None:
    # Ray's counters refuse to be increased by zero.
    if number > 0:
        metric.inc(number, tags=dict(tags or {}))


logger = logging.getLogger(__name__)

HOLD_SECONDS = 30.0
"""How long a shard waits for its silent worker, whose node is gone, before another may do it."""
PATIENCE_SECONDS = 600.0
"""How long all workers may be silent before the run fails, and a shard waits for a worker whose node is there."""

WAIT_SECONDS = 10.0
"""How long workers may wait for room on the cluster before the run says so."""

_POLL_SECONDS = 0.5
_LARGEST_INLINE = 50_000
"""Bytes that Ray surely sends with a call; its limit is 100 KiB for all arguments together."""
_READERS = 16
"""Threads that read the progress of shards."""
_IMPORT_ROOT = Path(__file__).absolute().parents[3]
"""The folder that holds the package; in a checkout the rooms are links below it, which must not be resolved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workers:
    """How many workers there are, and what each needs.

    Attributes:
        cpus, gpus: that each holds.
        build: builds one from a plan in its process.
    """

    count: int
    cpus: int
    gpus: float
    build: BuildWorker


def workers_that_fit(resources: Mapping[str, float], *, cpus: int, gpus: float) -> int:
    """Return how many workers a node has room for, given its resources; a share of a GPU is of one device."""
    room = _times(cpus, resources.get("CPU", 0.0))
    if not gpus:
        return room
    devices, rest = divmod(resources.get("GPU", 0.0), max(1.0, gpus))
    return min(room, int(devices) * _times(gpus, max(1.0, gpus)) + _times(gpus, rest))


def _times(need: float, have: float) -> int:
    """Return how often what is needed is there; Ray counts in ten thousandths."""
    return round(have * 10_000) // round(need * 10_000)


def runtime_env(*, threads: int) -> dict[str, Any]:
    """Return a Ray environment in which workers use this number of threads and import the package that the driver runs.

    A job's own working folder, which Ray unpacks on every node, comes before this path.
    """
    waiting = {name: os.environ.get(name, value) for name, value in WAIT_POLICY.items()}
    path = os.pathsep.join(filter(None, (str(_IMPORT_ROOT), os.environ.get("PYTHONPATH"))))
    return {"env_vars": {**waiting, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}}


@dataclass(slots=True)
class _LostCall:
    """A call that broke off before it is known whether its process has died.

    Attributes:
        at: what the worker had marked as in progress.
        cause: what counts against the shard if the process has died.
        is_held: whether the shard still waits for that to be known.
    """

    shard: Shard
    at: WorkPlace | None
    cause: Cause
    is_held: bool = True


@dataclass(eq=False, kw_only=True, slots=True)
class _Worker:
    """One actor and its state.

    Attributes:
        process: the process that answered its last ping.
        is_late: whether it was killed because its shard took too long.
        silent_since: when it stopped answering; seconds of the monotonic clock.
        ping_at: when it is to be pinged again; seconds of the monotonic clock.
    """

    actor: Any = None
    process: ProcessPlace | None = None
    lost_call: _LostCall | None = None
    is_late: bool = False
    silent_since: float | None = None
    ping_at: float | None = None

    @property
    def silence(self) -> float:
        """How long it has been silent, in seconds."""
        return 0.0 if self.silent_since is None else time.monotonic() - self.silent_since

    @property
    def cause(self) -> Cause:
        """The cause of its death, if it has died."""
        return "time_limit" if self.is_late else "worker_died"


@dataclass(kw_only=True, slots=True)
class _Call:
    """A call; without a shard it is a ping.

    Attributes:
        since: when it started, or was last seen to go on to another document; seconds of the monotonic clock.
        at: the document that was in progress alone then.
    """

    worker: _Worker
    shard: Shard | None = None
    since: float = field(default_factory=time.monotonic)
    at: WorkPlace | None = None


class RayScheduler:
    """The actors of one run, their calls in flight, and the shards that wait."""

    def __init__(self, plan: Plan, config: ExecutorConfig, workers: Workers, storage: SharedStorage) -> None:
        self.replaced: Counter[str] = Counter()
        self._config = config
        self._kind = workers
        self._storage = storage
        self._plan: Any = plan.for_workers().to_json()
        if len(self._plan) > _LARGEST_INLINE:
            # Ray restarts actors from such an object only as long as somebody holds a reference to it.
            self._plan = ray.put(self._plan)
        self._actor_class = ray.remote(
            num_cpus=workers.cpus,
            num_gpus=workers.gpus,
            max_restarts=-1,
            max_task_retries=0,
            runtime_env=runtime_env(threads=plan.threads),
        )(ShardActor)
        self._crash_log = CrashLog(plan)
        self._metrics = RunMetrics(
            counter=metrics.Counter,
            gauge=metrics.Gauge,
            histogram=metrics.Histogram,
            collection=plan.config.output.path,
        )
        self._num_left = 0
        self._waiting: deque[Shard] = deque()
        self._marked = self._crash_log.marked_shards()
        self._lost_with_node: Counter[int] = Counter()
        self._workers = [_Worker() for _ in range(workers.count)]
        # Each worker that has answered is in one of the first two or has a call in flight.
        self._idle: deque[_Worker] = deque()
        self._silent: set[_Worker] = set()
        self._up: set[_Worker] = set()
        self._in_flight: dict[int, _Call] = {}
        """By the shard's index."""
        self._ended: SimpleQueue[tuple[_Call | None, Future[Any]]] = SimpleQueue()
        self._failure: Exception | None = None
        self._readers = ThreadPoolExecutor(_READERS)
        self._reads: set[Future[Any]] = set()
        self._progress_read_at = self._looked_at = time.monotonic()
        self._free_at_start: Mapping[str, float] = ray.available_resources()
        self._wait_is_due_at: float | None = time.monotonic() + WAIT_SECONDS

    def run(
        self, shards: Sequence[Shard], *, on_report: OnReport, on_progress: OnShardProgress | None, stop: StopRequest
    ) -> None:
        """Run all shards; on a failure or signal, finish those in flight and then raise it.

        After a signal, shards in flight that take too long are dropped.
        """
        self._waiting.extend(longest_first(shards))
        self._num_left = len(shards)
        self._metrics.set_shards_left(self._num_left)
        for worker in self._workers:
            self._start(worker)
        while True:
            stopping = self._failure is not None or stop.received is not None
            if not stopping:
                self._hand_out_shards()
            if not self._in_flight and (stopping or not self._has_work_left()):
                break
            if stop.is_overdue:
                self._drop_shards()
                stop.raise_if_received()
            if time.monotonic() - self._looked_at > _POLL_SECONDS:
                self._look_at_workers(shows_progress=on_progress is not None)
            for call, outcome in self._wait():
                if call is not None:
                    self._collect(call, outcome, on_report)
                elif on_progress is not None:
                    self._pass_on(outcome, on_progress)
        if self._failure is not None:
            raise self._failure
        if self._has_work_left():
            stop.raise_if_received()

    def shutdown(self) -> None:
        """Kill the actors, so that a cluster that was joined has its resources back."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            ray.kill(worker.actor)

    def _drop_shards(self) -> None:
        """Kill the actors; no attempt is counted for what they were doing."""
        dropped = [call.shard for call in self._in_flight.values() if call.shard is not None]
        logger.warning("not finished in time, to be done by the next run: shards %s", [shard.name for shard in dropped])
        self.shutdown()
        for shard in dropped:
            self._crash_log.remove_mark(shard)

    def _look_at_workers(self, *, shows_progress: bool) -> None:
        """Do what depends on the time."""
        self._looked_at = now = time.monotonic()
        self._ping_silent_workers()
        self._kill_late_workers()
        self._release_held_shards()
        if self._wait_is_due_at is not None and now > self._wait_is_due_at:
            self._wait_is_due_at = None
            self._warn_of_wait()
        if shows_progress and now - self._progress_read_at > PROGRESS_SECONDS and not self._reads:
            self._progress_read_at = now
            for shard in filter(None, (call.shard for call in self._in_flight.values())):
                read = self._readers.submit(self._crash_log.read_progress, shard)
                self._reads.add(read)
                read.add_done_callback(lambda read: self._ended.put((None, read)))

    def _pass_on(self, read: "Future[ShardProgress | None]", on_progress: OnShardProgress) -> None:
        """Pass on what a worker has last written about a shard, if that is still in flight."""
        self._reads.discard(read)
        progress = None if read.cancelled() else read.result()
        if progress is not None and progress.shard in self._in_flight:
            on_progress(progress)

    def _warn_of_wait(self) -> None:
        """Say how many workers have no room yet because others hold it."""
        kind, free = self._kind, ray.available_resources()
        waiting = sum(worker.process is None for worker in self._workers)
        room_at_start, room = (
            workers_that_fit(resources, cpus=kind.cpus, gpus=kind.gpus) for resources in (self._free_at_start, free)
        )
        if waiting and room_at_start < kind.count and not room:
            logger.warning(
                "%d of %d workers (executor.actors) have no room yet: others hold the CPUs or GPUs of the cluster, of "
                "which %g and %g are free; they start as soon as there is room for %d and %g",
                *(waiting, kind.count, free.get("CPU", 0), free.get("GPU", 0), kind.cpus, kind.gpus),
            )

    def _start(self, worker: _Worker) -> None:
        worker.actor = self._actor_class.remote(self._plan, self._kind.build, self._storage)
        self._ping(worker)

    def _ping(self, worker: _Worker) -> None:
        self._follow(worker.actor.ping.remote(), _Call(worker=worker))

    def _follow(self, reference: Any, call: _Call) -> None:
        """Have the call in the queue when it ends."""
        if call.shard is not None:
            self._in_flight[call.shard.index] = call
        reference.future().add_done_callback(lambda outcome: self._ended.put((call, outcome)))

    def _ping_silent_workers(self) -> None:
        for worker in self._silent:
            if worker.ping_at is not None and time.monotonic() >= worker.ping_at:
                worker.ping_at = None
                self._ping(worker)

    def _wait(self) -> "list[tuple[_Call | None, Future[Any]]]":
        """Return what has ended, after a while at the latest."""
        try:
            first = self._ended.get(timeout=_POLL_SECONDS)
        except Empty:
            return []
        return [first, *(self._ended.get() for _ in range(self._ended.qsize()))]

    def _has_work_left(self) -> bool:
        held = any(worker.lost_call is not None and worker.lost_call.is_held for worker in self._silent)
        return bool(self._waiting or held)

    def _hand_out_shards(self) -> None:
        """Hand shards to idle workers."""
        while self._idle and self._waiting:
            worker, shard = self._idle.popleft(), self._waiting.popleft()
            if shard.name in self._marked:
                self._marked.discard(shard.name)
                self._crash_log.remove_mark(shard)
            self._follow(worker.actor.run.remote(shard), _Call(worker=worker, shard=shard))

    def _collect(self, call: _Call, outcome: Future[Any], on_report: OnReport) -> None:
        """Handle a call that has ended, with a result or an error."""
        worker = call.worker
        if call.shard is not None:
            del self._in_flight[call.shard.index]
        try:
            result = outcome.result()
        except (ActorUnavailableError, OutOfMemoryError) as error:
            self._on_lost(call)
            self._ping_later(worker, error)
        except ActorDiedError as error:
            if call.shard is None:
                self._failure = ModelError(f"a worker cannot be built: {_last_line(error)}")
            else:
                self._on_lost(call)
                self._start(worker)
        except RayError as error:
            if call.shard is None and self._storage.renew():
                self._start(worker)
            elif call.shard is not None and isinstance(cause := cause_of(error, call.shard), DeviceError):
                logger.warning("shard %s: %s; its worker is replaced", call.shard.name, cause)
                self._on_lost(call)
                ray.kill(worker.actor, no_restart=False)
                self._ping_later(worker, error)
            else:
                self._failure = cause_of(error, call.shard)
        else:
            if call.shard is None:
                self._on_ready(worker, process=result)
                self._idle.append(worker)
            else:
                self._on_result(worker, result, on_report)

    def _on_ready(self, worker: _Worker, *, process: ProcessPlace) -> None:
        """Handle a worker that answers a ping; if it is a new process, the shard it was doing has killed the old.

        Unless the whole node of the old one is gone. A shard that has lost several nodes is taken to be the cause.
        """
        lost, before = worker.lost_call, worker.process
        died = before not in {None, process}
        went_with_node = before is not None and died and not _is_up(before.node)
        if died:
            self._count_replaced("node_lost" if went_with_node else worker.cause)
        worker.process, worker.lost_call, worker.is_late, worker.silent_since = process, None, False, None
        self._silent.discard(worker)
        self._up.add(worker)
        if lost is None:
            return
        self._release(lost)
        self._lost_with_node[lost.shard.index] += went_with_node
        if died and (not went_with_node or self._lost_with_node[lost.shard.index] > self._config.attempts):
            try:
                self._crash_log.record_death(lost.shard, lost.cause, lost.at)
            except ConcordError as error:
                self._failure = error

    def _on_result(self, worker: _Worker, result: ShardResult, on_report: OnReport) -> None:
        on_report(result.report, result.timings)
        self._metrics.count_shard(result.report, result.timings)
        self._num_left -= 1
        self._metrics.set_shards_left(self._num_left)
        limit = self._config.worker_memory_bytes or float("inf")
        if (result.resident_bytes or 0) > limit and self._waiting:
            logger.info("a worker holds %d bytes and is replaced", result.resident_bytes)
            self._count_replaced("memory")
            ray.kill(worker.actor)
            worker.process = None
            self._up.discard(worker)
            self._start(worker)
        else:
            self._idle.append(worker)

    def _count_replaced(self, cause: str) -> None:
        self.replaced[cause] += 1
        self._metrics.count_replaced(cause)

    def _on_lost(self, call: _Call) -> None:
        """Remember a call that broke off; a ping counts against nothing."""
        worker = call.worker
        worker.silent_since = worker.silent_since or time.monotonic()
        self._silent.add(worker)
        self._up.discard(worker)
        if call.shard is not None:
            self._marked.add(call.shard.name)
            worker.lost_call = _LostCall(call.shard, self._crash_log.in_progress(call.shard), worker.cause)

    def _ping_later(self, worker: _Worker, error: RayError) -> None:
        """Ping an actor whose process is being restarted; fail if none has answered for too long."""
        if not self._up and worker.silence > PATIENCE_SECONDS:
            self._failure = ShardError(f"a worker did not come up again: {_last_line(error)}")
        # An actor that is restarting refuses calls at once, so that pinging it now would spin.
        worker.ping_at = time.monotonic() + _POLL_SECONDS

    def _release_held_shards(self) -> None:
        """Let others do the shards of silent workers whose node is gone; otherwise a death is counted first."""
        held = [(worker, lost) for worker in self._silent if (lost := worker.lost_call) is not None and lost.is_held]
        for worker, lost in held:
            is_gone = worker.silence > HOLD_SECONDS and not (worker.process and _is_up(worker.process.node))
            if is_gone or worker.silence > PATIENCE_SECONDS:
                self._release(lost)

    def _release(self, lost: _LostCall) -> None:
        if lost.is_held:
            lost.is_held = False
            # At the end, so that a shard that kills its workers does not delay the others.
            self._waiting.append(lost.shard)

    def _kill_late_workers(self) -> None:
        """Kill workers that take too long for a shard, or for one document where these are done alone."""
        if self._config.shard_seconds is None:
            return
        now = time.monotonic()
        for call in self._in_flight.values():
            if call.shard is None or call.worker.is_late or now - call.since < self._config.shard_seconds:
                continue
            at = self._crash_log.in_progress(call.shard)
            if at is not None and at != call.at:
                call.at, call.since = at, now
            else:
                call.worker.is_late = True
                # This also works on a stopped process; the call then ends like that of any worker that dies.
                ray.kill(call.worker.actor, no_restart=False)


def longest_first(shards: Sequence[Shard]) -> list[Shard]:
    """Order shards so that none that takes long begins last, when it would keep one worker busy and all others idle."""
    return sorted(shards, key=lambda shard: -shard.num_bytes)


def cause_of(error: RayError, shard: Shard | None) -> Exception:
    """Return the error to raise for a failed call: that of the task if it is ours, else a ShardError."""
    if not isinstance(error, RayTaskError):
        return ShardError(f"Ray: {type(error).__name__}: {error}")
    cause = error.cause
    if isinstance(cause, ConcordError):
        return cause
    prefix = f"shard {shard.name}: " if shard is not None else ""
    return ShardError(f"{prefix}{type(cause).__name__}: {cause}")


def _is_up(node: str) -> bool:
    return any(known["NodeID"] == node and known["Alive"] for known in ray.nodes())


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
