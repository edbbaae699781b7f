"""Schedule shards on Ray actors: start them, hand out shards, collect results, replace workers, shut down.

Each actor has at most one shard in flight. Where workers hold GPUs, others parse ahead for them on CPUs; the parses go
from process to process as Arrow tables in Ray's object store, a bounded number at a time, and the driver does not open
them. A parse made ahead is only ever help: a shard whose parse fails, or is lost with its node, is parsed by the worker
that tags it.

Ray restarts an actor whose process dies but never repeats a call: what is tried again, and how often, is decided here.
An actor gets work only after it has answered a ping, and a worker's death counts against its shard only when another
process has answered in its place. So a cluster that is down for a while, or a connection that breaks, costs no shard an
attempt.
"""

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayError, RayTaskError
from ray.util import metrics

from concord.models.errors import ConcordError, ModelError
from concord.pipeline.config import ExecutorConfig
from concord.pipeline.errors import ShardError
from concord.pipeline.executors.base import OnReport, StopRequest
from concord.pipeline.executors.prometheus import RunMetrics
from concord.pipeline.executors.ray_actors import ParseActor, ShardResult
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.threads import WAIT_POLICY
from concord.pipeline.worker.crash_log import PROGRESS_SECONDS, Cause, CrashLog, WorkPlace
from concord.pipeline.worker.shard_progress import OnShardProgress, Timings

logger = logging.getLogger(__name__)

HOLD_SECONDS = 30.0
"""How long a shard waits for its silent worker before another may do it."""
PATIENCE_SECONDS = 600.0
"""How long all workers may be silent before the run fails."""

_POLL_SECONDS = 0.5
_IMPORT_ROOT = Path(__file__).absolute().parents[3]
"""The folder that holds the package; in a checkout the rooms are links below it, which must not be resolved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerRole:
    """A kind of worker.

    Attributes:
        cpus, gpus: that each holds.
        key: the setting of ExecutorConfig that says how many there are.
        actor: its class, built from the plan and ``build``.
    """

    count: int
    cpus: int
    gpus: float
    key: str
    actor: type
    build: Callable[[Plan], Any]


def runtime_env(*, threads: int) -> dict[str, Any]:
    """Return a Ray environment in which workers use this number of threads and import the package that the driver runs.

    A job's own working folder, which Ray unpacks on every node, comes before this path.
    """
    waiting = {name: os.environ.get(name, value) for name, value in WAIT_POLICY.items()}
    path = os.pathsep.join(filter(None, (str(_IMPORT_ROOT), os.environ.get("PYTHONPATH"))))
    return {"env_vars": {**waiting, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}}


@dataclass(kw_only=True, slots=True)
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
        process: the process id that its last ping returned.
        is_late: whether it was killed because its shard took too long.
        silent_since: when it stopped answering; seconds of the monotonic clock.
        ping_at: when it is to be pinged again; seconds of the monotonic clock.
    """

    role: WorkerRole
    actor: Any = None
    process: str | None = None
    lost_call: _LostCall | None = None
    is_late: bool = False
    silent_since: float | None = None
    ping_at: float | None = None

    @property
    def only_parses(self) -> bool:
        """Whether its shards remain to be tagged."""
        return self.role.actor is ParseActor

    @property
    def is_up(self) -> bool:
        """Whether it has answered and not fallen silent since."""
        return self.process is not None and self.silent_since is None

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
    """A call in flight; without a shard it is a ping.

    Attributes:
        since: when it started, or was last seen to go on to another document; seconds of the monotonic clock.
        at: the document that was in progress alone then.
        tables: reference to the parses that come with the result of a worker that only parses.
        parse_timings: how long the shard was parsed ahead, once that is done.
    """

    worker: _Worker
    shard: Shard | None = None
    since: float = field(default_factory=time.monotonic)
    at: WorkPlace | None = None
    tables: Any = None
    parse_timings: Timings = field(default_factory=Timings)


class RayScheduler:
    """The actors of one run, their calls in flight, and the shards that wait."""

    def __init__(self, plan: Plan, config: ExecutorConfig, roles: Sequence[WorkerRole]) -> None:
        self.replaced: Counter[str] = Counter()
        self._shard_seconds = config.shard_seconds
        self._max_worker_bytes = config.worker_memory_bytes
        self._plan = plan.to_json()
        environment = runtime_env(threads=plan.threads)
        self._actor_classes = {
            role: ray.remote(
                num_cpus=role.cpus, num_gpus=role.gpus, max_restarts=-1, max_task_retries=0, runtime_env=environment
            )(role.actor)
            for role in roles
        }
        self._crash_log = CrashLog(plan)
        self._metrics = RunMetrics(
            counter=metrics.Counter,
            gauge=metrics.Gauge,
            histogram=metrics.Histogram,
            collection=plan.config.output.path,
        )
        self._num_left = 0
        self._to_parse: deque[Shard] = deque()
        self._to_tag: deque[Shard] = deque()
        self._parsed_ahead: dict[int, _Call] = {}
        self._workers = [_Worker(role=role) for role in roles for _ in range(role.count)]
        self._idle: list[_Worker] = []
        self._calls: dict[Any, _Call] = {}
        self._failure: Exception | None = None
        self._progress_read_at = time.monotonic()

    def run(
        self, shards: Sequence[Shard], *, on_report: OnReport, on_progress: OnShardProgress | None, stop: StopRequest
    ) -> None:
        """Run all shards; on a failure or signal, finish those in flight and then raise it.

        After a signal, shards in flight that take too long are dropped.
        """
        parses_ahead = any(worker.only_parses for worker in self._workers)
        (self._to_parse if parses_ahead else self._to_tag).extend(longest_first(shards))
        self._num_left = len(shards)
        self._metrics.set_shards_left(self._num_left)
        for worker in self._workers:
            self._start(worker)
        while True:
            stopping = self._failure is not None or stop.received is not None
            if not stopping:
                self._hand_out_shards()
            if not self._is_tagging() and (stopping or not self._has_work_left()):
                break
            if stop.is_overdue:
                self._drop_shards()
                stop.raise_if_received()
            self._ping_silent_workers()
            for reference in self._wait():
                self._collect(reference, on_report)
            self._kill_late_workers()
            self._release_held_shards()
            if on_progress is not None and time.monotonic() - self._progress_read_at > PROGRESS_SECONDS:
                self._read_progress(on_progress)
        if self._failure is not None:
            raise self._failure
        if self._has_work_left():
            stop.raise_if_received()

    def shutdown(self) -> None:
        """Kill the actors, so that a cluster that was joined has its resources back."""
        for worker in self._workers:
            ray.kill(worker.actor)

    def _drop_shards(self) -> None:
        """Kill the actors; no attempt is counted for what they were doing."""
        dropped = [
            call.shard for call in self._calls.values() if call.shard is not None and not call.worker.only_parses
        ]
        logger.warning("not finished in time, to be done by the next run: shards %s", [shard.name for shard in dropped])
        self.shutdown()
        for shard in dropped:
            self._crash_log.remove_mark(shard)

    def _read_progress(self, on_progress: OnShardProgress) -> None:
        """Pass on what the workers have last written about the shards in flight."""
        self._progress_read_at = time.monotonic()
        for call in self._calls.values():
            if call.shard is not None and not call.worker.only_parses:
                progress = self._crash_log.read_progress(call.shard)
                if progress is not None:
                    on_progress(progress)

    def _start(self, worker: _Worker) -> None:
        worker.actor = self._actor_classes[worker.role].remote(self._plan, worker.role.build)
        self._ping(worker)

    def _ping(self, worker: _Worker) -> None:
        self._calls[worker.actor.ping.remote()] = _Call(worker=worker)

    def _ping_silent_workers(self) -> None:
        for worker in self._workers:
            if worker.ping_at is not None and time.monotonic() >= worker.ping_at:
                worker.ping_at = None
                self._ping(worker)

    def _wait(self) -> list[Any]:
        """Return the calls that have ended, after a while at the latest."""
        if not self._calls:
            time.sleep(_POLL_SECONDS)
            return []
        ready: list[Any] = ray.wait(list(self._calls), timeout=_POLL_SECONDS)[0]
        return ready

    def _is_tagging(self) -> bool:
        """Return whether a shard is in flight; one that is only being parsed may be dropped at any time."""
        return any(call.shard is not None and not call.worker.only_parses for call in self._calls.values())

    def _num_parsing(self) -> int:
        return sum(call.shard is not None and call.worker.only_parses for call in self._calls.values())

    def _has_work_left(self) -> bool:
        held = any(worker.lost_call is not None and worker.lost_call.is_held for worker in self._workers)
        return bool(self._to_tag or self._to_parse or self._num_parsing() or held)

    def _hand_out_shards(self) -> None:
        """Hand shards to idle workers; no more shards are parsed ahead than there are workers."""
        idle, self._idle = self._idle, []
        for worker in sorted(idle, key=lambda worker: worker.only_parses):
            has_room = self._num_parsing() + len(self._parsed_ahead) < len(self._workers)
            if worker.only_parses and self._to_parse and has_room:
                self._parse(worker, self._to_parse.popleft())
            elif not worker.only_parses and self._to_tag:
                self._tag(worker, self._to_tag.popleft())
            else:
                self._idle.append(worker)

    def _parse(self, worker: _Worker, shard: Shard) -> None:
        reference, tables = worker.actor.run.options(num_returns=2).remote(shard)
        self._calls[reference] = _Call(worker=worker, shard=shard, tables=tables)

    def _tag(self, worker: _Worker, shard: Shard) -> None:
        self._crash_log.remove_mark(shard)
        parsed = self._parsed_ahead.pop(shard.index, None)
        reference = worker.actor.run.remote(shard, [parsed.tables] if parsed is not None else [])
        timings = parsed.parse_timings if parsed is not None else Timings()
        self._calls[reference] = _Call(worker=worker, shard=shard, parse_timings=timings)

    def _collect(self, reference: Any, on_report: OnReport) -> None:
        """Handle a call that has ended, with a result or an error."""
        call = self._calls.pop(reference)
        worker = call.worker
        try:
            result = ray.get(reference)
        except (ActorUnavailableError, OutOfMemoryError) as error:
            self._on_lost(call, error)
            self._ping_later(worker, error)
        except ActorDiedError as error:
            if call.shard is None:
                self._failure = ModelError(f"a worker cannot be built: {_last_line(error)}")
            else:
                self._on_lost(call, error)
                self._start(worker)
        except RayError as error:
            self._idle.append(worker)
            if worker.only_parses and call.shard is not None:
                self._leave_to_tagger(call.shard, error)
            else:
                self._failure = cause_of(error, call.shard)
        else:
            if call.shard is None:
                self._idle.append(worker)
                self._on_ready(worker, process=result)
            else:
                self._on_result(call, call.shard, result, on_report)

    def _on_ready(self, worker: _Worker, *, process: str) -> None:
        """Handle a worker that answers a ping; if it is a new process, the shard it was doing has killed the old."""
        lost, died = worker.lost_call, worker.process not in {None, process}
        if died:
            self._count_replaced(worker.cause)
        worker.process, worker.lost_call, worker.is_late, worker.silent_since = process, None, False, None
        if lost is not None:
            self._release(lost)
            if died:
                try:
                    self._crash_log.record_death(lost.shard, lost.cause, lost.at)
                except ConcordError as error:
                    self._failure = error

    def _on_result(self, call: _Call, shard: Shard, result: ShardResult, on_report: OnReport) -> None:
        timings = call.parse_timings + result.timings
        if result.report is None:
            call.parse_timings = timings
            self._parsed_ahead[shard.index] = call
            self._to_tag.append(shard)
        else:
            on_report(result.report, timings)
            self._metrics.count_shard(result.report, timings)
            self._num_left -= 1
            self._metrics.set_shards_left(self._num_left)
        limit = self._max_worker_bytes
        is_too_large = limit is not None and result.resident_bytes is not None and result.resident_bytes > limit
        if is_too_large and (self._to_tag or self._to_parse):
            logger.info("a worker holds %d bytes and is replaced", result.resident_bytes)
            self._count_replaced("memory")
            ray.kill(call.worker.actor)
            call.worker.process = None
            self._start(call.worker)
        else:
            self._idle.append(call.worker)

    def _count_replaced(self, cause: str) -> None:
        self.replaced[cause] += 1
        self._metrics.count_replaced(cause)

    def _on_lost(self, call: _Call, error: RayError) -> None:
        """Remember a call that broke off; a ping counts against nothing."""
        worker = call.worker
        worker.silent_since = worker.silent_since or time.monotonic()
        if call.shard is not None and worker.only_parses:
            self._leave_to_tagger(call.shard, error)
        elif call.shard is not None:
            at = self._crash_log.in_progress(call.shard)
            worker.lost_call = _LostCall(shard=call.shard, at=at, cause=worker.cause)

    def _leave_to_tagger(self, shard: Shard, error: RayError) -> None:
        """Have one worker parse and tag the shard, which also handles documents that kill it or need much memory."""
        logger.warning("shard %s: cannot be parsed ahead (%s)", shard.name, _last_line(error))
        self._to_tag.append(shard)

    def _ping_later(self, worker: _Worker, error: RayError) -> None:
        """Ping an actor whose process is being restarted; fail if no worker that tags has answered for too long."""
        some_up = any(other.is_up for other in self._workers if not other.only_parses)
        if not some_up and worker.silence > PATIENCE_SECONDS:
            self._failure = ShardError(f"a worker did not come up again: {_last_line(error)}")
        # An actor that is restarting refuses calls at once, so that pinging it now would spin.
        worker.ping_at = time.monotonic() + _POLL_SECONDS

    def _release_held_shards(self) -> None:
        """Let other workers do the shards of those that stay silent, for example because their node is gone."""
        for worker in self._workers:
            if worker.lost_call is not None and worker.silence > HOLD_SECONDS:
                self._release(worker.lost_call)
        if all(worker.silence > HOLD_SECONDS for worker in self._workers if worker.only_parses):
            self._to_tag.extend(self._to_parse)
            self._to_parse.clear()

    def _release(self, lost: _LostCall) -> None:
        if lost.is_held:
            lost.is_held = False
            # At the end, so that a shard that kills its workers does not delay the others.
            self._to_tag.append(lost.shard)

    def _kill_late_workers(self) -> None:
        """Kill workers that take too long for a shard, or for one document where these are done alone."""
        if self._shard_seconds is None:
            return
        now = time.monotonic()
        for call in self._calls.values():
            if call.shard is None or call.worker.is_late or now - call.since < self._shard_seconds:
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


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
