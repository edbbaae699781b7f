"""Schedule shards on Ray actors."""

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

from concord.pipeline.config import ExecutorConfig
from concord.pipeline.errors import ConcordError, ModelError, ShardError
from concord.pipeline.executors.base import OnReport, StopRequest
from concord.pipeline.executors.prometheus import RunMetrics
from concord.pipeline.executors.ray_actors import ParseActor, ShardResult
from concord.pipeline.executors.threads import WAIT_POLICY
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.worker.crash_log import Cause, CrashLog, WorkPlace
from concord.pipeline.worker.shard_worker import Timings

logger = logging.getLogger(__name__)


_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 600.0
_HOLD_SECONDS = 30.0
_IMPORT_ROOT = Path(__file__).absolute().parents[3]
"""The folder that holds the package; in a checkout the rooms are links below it, which must not be resolved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerRole:
    """A kind of worker.

    Attributes:
        cpus, gpus: that each holds.
        key: of ExecutorConfig, which says how many there are.
        actor: its class, which is given the plan and ``build``.
    """

    count: int
    cpus: int
    gpus: float
    key: str
    actor: type
    build: Callable[[Plan], Any]


def runtime_env(*, threads: int) -> dict[str, Any]:
    """Let workers compute with as many threads as the plan says and import what the driver runs.

    A job's own working folder, which Ray unpacks on every node, comes before this path.
    """
    waiting = {name: os.environ.get(name, value) for name, value in WAIT_POLICY.items()}
    path = os.pathsep.join(filter(None, (str(_IMPORT_ROOT), os.environ.get("PYTHONPATH"))))
    return {"env_vars": {**waiting, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}}


@dataclass(kw_only=True, slots=True)
class _Loss:
    """A call that broke off; nobody knows yet whether the process has died.

    Attributes:
        at: what the worker had marked as being at work.
        cause: what the shard is charged with if the process has died.
        is_held: whether the shard still waits for that to be known.
    """

    shard: Shard
    at: WorkPlace | None
    cause: Cause
    is_held: bool = True


@dataclass(eq=False, kw_only=True, slots=True)
class _Member:
    """One of the crew.

    Attributes:
        role: what it does.
        process: what its process last answered to a ping.
        is_late: whether it was killed because its shard took too long.
        silent_since: when it fell silent; seconds of the monotonic clock.
    """

    role: WorkerRole
    actor: Any = None
    process: str | None = None
    loss: _Loss | None = None
    is_late: bool = False
    silent_since: float | None = None

    @property
    def only_parses(self) -> bool:
        """Whether its shards are not done when it is done with them."""
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
        """Of its death, if it has died."""
        return "time_limit" if self.is_late else "worker_died"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Handed:
    """The parses of a shard: a reference to the tables, and how long they took."""

    tables: Any
    timings: Timings


@dataclass(kw_only=True, slots=True)
class _Call:
    """A call in flight; without a shard it is a ping.

    Attributes:
        since: when what it is at was begun, as far as anybody has looked; seconds of the monotonic clock.
        at: the document that was alone at work then.
        tables: reference to the parses that will come with the answer of a worker that only parses.
        parsed: how long another worker has parsed for this one.
    """

    member: _Member
    shard: Shard | None = None
    since: float
    at: WorkPlace | None = None
    tables: Any = None
    parsed: Timings = field(default_factory=Timings)


class RayScheduler:
    """The actors of one run, what they are at, and the shards that wait."""

    def __init__(self, plan: Plan, config: ExecutorConfig, roles: Sequence[WorkerRole]) -> None:
        self.replaced: Counter[str] = Counter()
        self._shard_seconds = config.shard_seconds
        self._most_bytes = config.worker_memory_bytes
        self._plan = plan.to_json()
        environment = runtime_env(threads=plan.threads)
        self._actor_classes = {
            role: ray.remote(
                num_cpus=role.cpus,
                num_gpus=role.gpus,
                max_restarts=-1,
                max_task_retries=0,
                runtime_env=environment,
            )(role.actor)
            for role in roles
        }
        self._crash_log = CrashLog(plan)
        self._meters = RunMetrics(
            counter=metrics.Counter, gauge=metrics.Gauge, histogram=metrics.Histogram, collection=plan.config.output
        )
        self._undone = 0
        self._unparsed: deque[Shard] = deque()
        self._waiting: deque[Shard] = deque()
        self._handed: dict[int, _Handed] = {}
        self._members = [_Member(role=role) for role in roles for _ in range(role.count)]
        self._idle: list[_Member] = []
        self._calls: dict[Any, _Call] = {}
        self._failure: Exception | None = None

    def work(self, shards: Sequence[Shard], *, on_report: OnReport, stop: StopRequest) -> None:
        """Have the shards done; on a failure or signal those in flight are finished, then it is raised."""
        somebody_parses = any(member.only_parses for member in self._members)
        (self._unparsed if somebody_parses else self._waiting).extend(shards)
        self._undone = len(shards)
        self._meters.left(self._undone)
        for member in self._members:
            self._hire(member)
        while True:
            halted = self._failure is not None or stop.received is not None
            if not halted:
                self._give_out()
            if not self._in_flight() and (halted or not self._is_left()):
                break
            ready, _ = ray.wait(list(self._calls), timeout=_POLL_SECONDS)
            for reference in ready:
                self._take(reference, on_report)
            self._end_late_calls()
            self._release_held()
        if self._failure is not None:
            raise self._failure
        if self._is_left():
            stop.raise_if_received()

    def shutdown(self) -> None:
        """End the actors; on a cluster that we joined, others get their room."""
        for member in self._members:
            ray.kill(member.actor)

    def _in_flight(self) -> bool:
        """Say whether a shard is being done; one that is only being parsed may be left at any time."""
        return any(call.shard is not None and not call.member.only_parses for call in self._calls.values())

    def _is_left(self) -> bool:
        return bool(self._waiting or self._unparsed or self._being_parsed() or self._holds())

    def _being_parsed(self) -> int:
        return sum(call.shard is not None and call.member.only_parses for call in self._calls.values())

    def _holds(self) -> bool:
        return any(member.loss is not None and member.loss.is_held for member in self._members)

    def _hire(self, member: _Member) -> None:
        member.actor = self._actor_classes[member.role].remote(self._plan, member.role.build)
        self._ping(member)

    def _ping(self, member: _Member) -> None:
        self._calls[member.actor.ping.remote()] = _Call(member=member, since=time.monotonic())

    def _give_out(self) -> None:
        """Give work to whoever is idle; no more shards are parsed ahead than there are members."""
        idle, self._idle = self._idle, []
        for member in sorted(idle, key=lambda member: member.only_parses):
            is_room = self._being_parsed() + len(self._handed) < len(self._members)
            if member.only_parses and self._unparsed and is_room:
                self._give_to_parse(member, self._unparsed.popleft())
            elif not member.only_parses and self._waiting:
                self._give(member, self._waiting.popleft())
            else:
                self._idle.append(member)

    def _give(self, member: _Member, shard: Shard) -> None:
        self._crash_log.remove_mark(shard)
        handed = self._handed.pop(shard.index, None)
        reference = member.actor.run.remote(shard, [handed.tables] if handed is not None else [])
        parsed = handed.timings if handed is not None else Timings()
        self._calls[reference] = _Call(member=member, shard=shard, since=time.monotonic(), parsed=parsed)

    def _give_to_parse(self, member: _Member, shard: Shard) -> None:
        reference, tables = member.actor.run.options(num_returns=2).remote(shard)
        self._calls[reference] = _Call(member=member, shard=shard, since=time.monotonic(), tables=tables)

    def _take(self, reference: Any, on_report: OnReport) -> None:
        """Take the answer of a call that has ended, whatever it is."""
        call = self._calls.pop(reference)
        member = call.member
        try:
            answer = ray.get(reference)
        except (ActorUnavailableError, OutOfMemoryError) as error:
            self._lose(call, error)
            self._await_again(member, error)
        except ActorDiedError as error:
            if call.shard is None:
                self._failure = ModelError(f"a worker cannot be built: {_last_line(error)}")
            else:
                self._lose(call, error)
                self._hire(member)
        except RayError as error:
            self._idle.append(member)
            if member.only_parses and call.shard is not None:
                self._leave_to_tagger(call.shard, error)
            else:
                self._failure = cause_of(error, call.shard)
        else:
            if call.shard is None:
                self._idle.append(member)
                self._welcome(member, process=answer)
            else:
                self._take_done(call, call.shard, answer, on_report)

    def _take_done(self, call: _Call, shard: Shard, done: ShardResult, on_report: OnReport) -> None:
        timings = call.parsed + done.timings
        if done.report is None:
            self._handed[shard.index] = _Handed(tables=call.tables, timings=timings)
            self._waiting.append(shard)
        else:
            on_report(done.report, timings)
            self._meters.done(done.report, timings)
            self._undone -= 1
            self._meters.left(self._undone)
        self._keep_or_replace(call.member, done.resident)

    def _keep_or_replace(self, member: _Member, resident: int | None) -> None:
        """Let a member go on, or another in its place where its memory has grown too large and work is left."""
        is_large = self._most_bytes is not None and resident is not None and resident > self._most_bytes
        if not is_large or not (self._waiting or self._unparsed):
            self._idle.append(member)
            return
        logger.info("a worker holds %d bytes and is replaced", resident)
        self._count_replaced("memory")
        ray.kill(member.actor)
        member.process = None
        self._hire(member)

    def _count_replaced(self, cause: str) -> None:
        self.replaced[cause] += 1
        self._meters.replaced(cause)

    def _leave_to_tagger(self, shard: Shard, error: RayError) -> None:
        """Have a shard done whole by one worker, whose ways with poison and lack of memory then apply."""
        logger.warning("shard %s: cannot be parsed ahead (%s)", shard.name, _last_line(error))
        self._waiting.append(shard)

    def _lose(self, call: _Call, error: RayError) -> None:
        """Note that a call broke off; a ping's costs nobody anything."""
        member = call.member
        member.silent_since = member.silent_since or time.monotonic()
        if call.shard is not None and member.only_parses:
            self._leave_to_tagger(call.shard, error)
        elif call.shard is not None:
            member.loss = _Loss(shard=call.shard, at=self._crash_log.in_progress(call.shard), cause=member.cause)

    def _welcome(self, member: _Member, *, process: str) -> None:
        """Take up a member that answers; where it is another process than before, the shard it was at is charged."""
        loss, died = member.loss, member.process not in {None, process}
        if died:
            self._count_replaced(member.cause)
        member.process, member.loss, member.is_late, member.silent_since = process, None, False, None
        if loss is not None:
            self._release(loss)
            if died:
                self._charge(loss)

    def _charge(self, loss: _Loss) -> None:
        try:
            self._crash_log.record_death(loss.shard, loss.cause, loss.at)
        except ConcordError as error:
            self._failure = error

    def _release(self, loss: _Loss) -> None:
        if loss.is_held:
            loss.is_held = False
            # To the end, so that a shard that kills its workers does not keep the others from being done.
            self._waiting.append(loss.shard)

    def _release_held(self) -> None:
        """Let others do the shards of workers that do not come back soon, as where their node is gone."""
        for member in self._members:
            if member.loss is not None and member.silence > _HOLD_SECONDS:
                self._release(member.loss)
        if all(member.silence > _HOLD_SECONDS for member in self._members if member.only_parses):
            self._waiting.extend(self._unparsed)
            self._unparsed.clear()

    def _end_late_calls(self) -> None:
        """Kill the workers that are longer at a shard than they may, or at one document where these are done alone."""
        if self._shard_seconds is None:
            return
        now = time.monotonic()
        for call in self._calls.values():
            if call.shard is None or call.member.is_late or now - call.since < self._shard_seconds:
                continue
            at = self._crash_log.in_progress(call.shard)
            if at is not None and at != call.at:
                call.at, call.since = at, now
            else:
                call.member.is_late = True
                # Works on a stopped process, too; its call then ends as that of any worker that dies.
                ray.kill(call.member.actor, no_restart=False)

    def _await_again(self, member: _Member, error: RayError) -> None:
        """Ping an actor whose process is being restarted, until it answers, or nobody does shards and patience ends."""
        is_work_done = any(other.is_up for other in self._members if not other.only_parses)
        if not is_work_done and member.silence > _PATIENCE_SECONDS:
            self._failure = ShardError(f"a worker did not come up again: {_last_line(error)}")
        # An actor that is restarting refuses calls at once, so this would spin.
        time.sleep(_POLL_SECONDS)
        self._ping(member)


def cause_of(error: RayError, shard: Shard | None) -> Exception:
    if not isinstance(error, RayTaskError):
        return ShardError(f"Ray: {type(error).__name__}: {error}")
    cause = error.cause
    if isinstance(cause, ConcordError):
        return cause
    where = f"shard {shard.name}: " if shard is not None else ""
    return ShardError(f"{where}{type(cause).__name__}: {cause}")


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
