"""Shards on plain Ray actors, one in flight on each; the only place in this package that imports Ray.

Ray restarts an actor whose process dies, but never runs a call again by itself: what is tried again, and how often,
is decided here. An actor gets work only after it has answered a ping, and a shard is charged with its worker's death
only when another process has answered in the place of the one that was at it. So a cluster that is down for a while, or
a connection that breaks, costs no shard any of its tries.
"""

import logging
import os
import shutil
import socket
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayError, RayTaskError

from models.config import ConfigError
from pipeline.config import ExecutorConfig
from pipeline.errors import ConcordError, ModelError, ShardError
from pipeline.executors.auth import settle_auth_mode
from pipeline.executors.base import BuildWorker, OnReport, StopRequest, stop_request
from pipeline.files import sha256_of
from pipeline.planning import Plan
from pipeline.records import Shard, ShardReport
from pipeline.trials import Cause, Place, Trials
from pipeline.worker import Timings, build_worker

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 600.0
_HOLD_SECONDS = 30.0
_KNOCK_SECONDS = 20.0
_CHECKOUT = Path(__file__).resolve().parents[2]


class RayExecutor:
    """An executor on a local Ray of its own, or on the cluster that ``RAY_ADDRESS`` names."""

    def __init__(self, config: ExecutorConfig, *, build: BuildWorker = build_worker) -> None:
        """Take the number and size of workers, and what builds one from a plan in its process."""
        self._config = config
        self._build = build

    def run(self, plan: Plan, shards: Sequence[Shard], on_report: OnReport) -> None:
        """Do as Executor says.

        Raises:
            ConfigError: when the cluster has no room for the workers.
        """
        # No more actors than shards: each costs a process and a copy of the models.
        actors = min(self._config.actors, len(shards))
        with connected(cpus=actors * plan.threads):
            _check_room(actors, cpus=self._cpus(plan), gpus=self._config.gpus)
            # Ray puts a SIGTERM handler of its own in place when it starts, so ours comes after.
            with stop_request() as stop:
                crew = _Crew(plan, self._config, self._build, cpus=self._cpus(plan))
                try:
                    crew.work(shards, actors=actors, on_report=on_report, stop=stop)
                finally:
                    crew.dismiss()

    def _cpus(self, plan: Plan) -> int:
        # An actor with a GPU would otherwise hold a CPU that other work may be waiting for.
        return 0 if self._config.gpus else plan.threads


def hash_files(paths: Sequence[str]) -> list[str]:
    """Give the SHA-256 of each file in hex, computed by Ray tasks; starts or joins Ray like the executor."""
    with connected(cpus=os.cpu_count() or 1):
        hash_file = ray.remote(num_cpus=1, runtime_env=_runtime_env(threads=1))(_hash_file)
        try:
            return list(ray.get([hash_file.remote(path) for path in paths]))
        except RayTaskError as error:
            raise _cause(error, None) from error


@contextmanager
def connected(*, cpus: int) -> Iterator[None]:
    """Join the cluster of ``RAY_ADDRESS``, or start a Ray on this machine; what was started here is shut down.

    Args:
        cpus: how many a Ray of our own offers.

    Raises:
        ConcordError: when the cluster cannot be joined or Ray does not start.
    """
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    settle_auth_mode(address)
    own_folder = None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if not address:
        # Ray's sockets lie below this folder and their paths must stay under 107 bytes: TMPDIR may be too long.
        own_folder = tempfile.mkdtemp(prefix="concord-", dir=os.environ.get("RAY_TMPDIR", "/tmp"))
        options |= {"address": "local", "num_cpus": cpus, "include_dashboard": False, "_temp_dir": own_folder}
    try:
        _init(options, address)
        yield
    finally:
        ray.shutdown()
        if own_folder is not None:
            shutil.rmtree(own_folder, ignore_errors=True)


def _init(options: dict[str, Any], address: str | None) -> None:
    try:
        _knock(address)
        ray.init(**options)
    except (OSError, RuntimeError, RayError) as error:
        what = f"cannot join the cluster at RAY_ADDRESS={address}" if address else "Ray does not start here"
        raise ConcordError(
            f"{what}: {error}\nRAY_AUTH_MODE is {os.environ['RAY_AUTH_MODE']!r}; it must be that of the cluster. "
            "The same job runs without Ray by --executor local"
        ) from error


def _knock(address: str | None) -> None:
    """Fail at once where nothing listens: Ray itself would go on trying for many minutes.

    Raises:
        OSError: when there is no connection.
    """
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


def _runtime_env(*, threads: int) -> dict[str, Any]:
    """Let workers compute with as many threads as the plan says and import what the driver runs.

    A job's own working folder, which Ray unpacks on every node, comes before this path.
    """
    path = os.pathsep.join(filter(None, (str(_CHECKOUT), os.environ.get("PYTHONPATH"))))
    return {"env_vars": {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}}


def _check_room(actors: int, *, cpus: int, gpus: float) -> None:
    """Refuse what Ray would wait for without end.

    Raises:
        ConfigError: when the nodes have no room for so many actors, busy or not.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(places(node, cpus=cpus, gpus=gpus) for node in nodes)
    if room < actors:
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes) or "no node"
        raise ConfigError(
            f"executor: {actors} workers of {cpus} CPUs and {gpus:g} GPUs do not fit the Ray cluster ({have}); "
            "lower executor.actors, executor.threads or executor.gpus, or add nodes"
        )


def places(node: dict[str, float], *, cpus: int, gpus: float) -> int:
    needs = [(node.get(name, 0.0), need) for name, need in (("CPU", cpus), ("GPU", gpus)) if need]
    return int(min(have // need for have, need in needs))


def _hash_file(path: str) -> str:
    return sha256_of(path)


class _ShardActor:
    """A worker in a process of its own."""

    def __init__(self, plan: bytes, build: BuildWorker) -> None:
        self._process = uuid4().hex
        self._worker = build(Plan.from_json(plan))

    def ping(self) -> str:
        """Answer as soon as parser and tagger are loaded; the answer is another after every restart."""
        return self._process

    def run(self, shard: Shard) -> tuple[ShardReport, Timings]:
        return self._worker.run(shard)


@dataclass(kw_only=True, slots=True)
class _Loss:
    """A call that broke off; nobody knows yet whether the process has died.

    Attributes:
        at: what the worker had marked as being at work.
        cause: what the shard is charged with if the process has died.
        is_held: whether the shard still waits for that to be known.
    """

    shard: Shard
    at: Place | None
    cause: Cause
    is_held: bool = True


@dataclass(eq=False, kw_only=True, slots=True)
class _Member:
    """One of the crew.

    Attributes:
        process: what its process last answered to a ping.
        is_late: whether it was killed because its shard took too long.
        silent_since: when it fell silent; seconds of the monotonic clock.
    """

    actor: Any = None
    process: str | None = None
    loss: _Loss | None = None
    is_late: bool = False
    silent_since: float | None = None


@dataclass(kw_only=True, slots=True)
class _Call:
    """A call in flight; without a shard it is a ping.

    Attributes:
        since: when what it is at was begun, as far as anybody has looked; seconds of the monotonic clock.
        at: the document that was alone at work then.
    """

    member: _Member
    shard: Shard | None = None
    since: float
    at: Place | None = None


class _Crew:
    """The actors of one run, what they are at, and the shards that wait."""

    def __init__(self, plan: Plan, config: ExecutorConfig, build: BuildWorker, *, cpus: int) -> None:
        self._shard_seconds = config.shard_seconds
        self._arguments = (plan.to_json(), build)
        self._actor_class = ray.remote(
            num_cpus=cpus,
            num_gpus=config.gpus,
            max_restarts=-1,
            max_task_retries=0,
            runtime_env=_runtime_env(threads=plan.threads),
        )(_ShardActor)
        self._trials = Trials(plan)
        self._waiting: deque[Shard] = deque()
        self._members: list[_Member] = []
        self._idle: list[_Member] = []
        self._calls: dict[Any, _Call] = {}
        self._failure: Exception | None = None

    def work(self, shards: Sequence[Shard], *, actors: int, on_report: OnReport, stop: StopRequest) -> None:
        """Have the shards done; on a failure or signal those in flight are finished, then it is raised."""
        self._waiting.extend(shards)
        self._members = [_Member() for _ in range(actors)]
        for member in self._members:
            self._hire(member)
        while True:
            halted = self._failure is not None or stop.received is not None
            while self._idle and self._waiting and not halted:
                self._give(self._idle.pop(), self._waiting.popleft())
            if not self._in_flight() and (halted or not (self._waiting or self._holds())):
                break
            ready, _ = ray.wait(list(self._calls), timeout=_POLL_SECONDS)
            for reference in ready:
                self._take(reference, on_report)
            self._end_late_calls()
            self._release_held()
        if self._failure is not None:
            raise self._failure
        if self._waiting or self._holds():
            stop.raise_if_received()

    def dismiss(self) -> None:
        """End the actors; on a cluster that we joined, others get their room."""
        for member in self._members:
            ray.kill(member.actor)

    def _in_flight(self) -> bool:
        return any(call.shard is not None for call in self._calls.values())

    def _holds(self) -> bool:
        return any(member.loss is not None and member.loss.is_held for member in self._members)

    def _hire(self, member: _Member) -> None:
        member.actor = self._actor_class.remote(*self._arguments)
        self._ping(member)

    def _ping(self, member: _Member) -> None:
        self._calls[member.actor.ping.remote()] = _Call(member=member, since=time.monotonic())

    def _give(self, member: _Member, shard: Shard) -> None:
        self._trials.forget_mark(shard)
        self._calls[member.actor.run.remote(shard)] = _Call(member=member, shard=shard, since=time.monotonic())

    def _take(self, reference: Any, on_report: OnReport) -> None:
        """Take the answer of a call that has ended, whatever it is."""
        call = self._calls.pop(reference)
        member = call.member
        try:
            answer = ray.get(reference)
        except (ActorUnavailableError, OutOfMemoryError) as error:
            self._lose(call)
            self._await_again(member, error)
        except ActorDiedError as error:
            if call.shard is None:
                self._failure = ModelError(f"a worker cannot be built: {_last_line(error)}")
            else:
                self._lose(call)
                self._hire(member)
        except RayTaskError as error:
            self._idle.append(member)
            self._failure = _cause(error, call.shard)
        except RayError as error:
            self._idle.append(member)
            self._failure = ShardError(f"Ray: {type(error).__name__}: {error}")
        else:
            self._idle.append(member)
            if call.shard is None:
                self._welcome(member, process=answer)
            else:
                on_report(*answer)

    def _lose(self, call: _Call) -> None:
        """Note that a call broke off; a ping's costs nobody anything."""
        member = call.member
        member.silent_since = member.silent_since or time.monotonic()
        if call.shard is not None:
            cause: Cause = "time_limit" if member.is_late else "worker_died"
            member.loss = _Loss(shard=call.shard, at=self._trials.place(call.shard), cause=cause)

    def _welcome(self, member: _Member, *, process: str) -> None:
        """Take up a member that answers; where it is another process than before, the shard it was at is charged."""
        loss, died = member.loss, process != member.process
        member.process, member.loss, member.is_late, member.silent_since = process, None, False, None
        if loss is not None:
            self._release(loss)
            if died:
                self._charge(loss)

    def _charge(self, loss: _Loss) -> None:
        try:
            self._trials.charge(loss.shard, loss.cause, loss.at)
        except ConcordError as error:
            self._failure = error

    def _release(self, loss: _Loss) -> None:
        if loss.is_held:
            loss.is_held = False
            # To the end, so that a shard that kills its workers does not keep the others from being done.
            self._waiting.append(loss.shard)

    def _release_held(self) -> None:
        """Let others do the shards of workers that do not come back soon, as where their node is gone."""
        now = time.monotonic()
        for member in self._members:
            if member.loss is not None and now - (member.silent_since or now) > _HOLD_SECONDS:
                self._release(member.loss)

    def _end_late_calls(self) -> None:
        """Kill the workers that are longer at a shard than they may, or at one document where these are done alone."""
        if self._shard_seconds is None:
            return
        now = time.monotonic()
        for call in self._calls.values():
            if call.shard is None or call.member.is_late or now - call.since < self._shard_seconds:
                continue
            at = self._trials.place(call.shard)
            if at is not None and at != call.at:
                call.at, call.since = at, now
            else:
                call.member.is_late = True
                # Works on a stopped process, too; its call then ends as that of any worker that dies.
                ray.kill(call.member.actor, no_restart=False)

    def _await_again(self, member: _Member, error: RayError) -> None:
        """Ping an actor whose process is being restarted, until it answers or patience ends."""
        if member.silent_since is not None and time.monotonic() - member.silent_since > _PATIENCE_SECONDS:
            self._failure = ShardError(f"a worker did not come up again: {_last_line(error)}")
        # An actor that is restarting refuses calls at once, so this would spin.
        time.sleep(_POLL_SECONDS)
        self._ping(member)


def _cause(error: RayTaskError, shard: Shard | None) -> Exception:
    cause = error.cause
    if isinstance(cause, ConcordError):
        return cause
    where = f"shard {shard.name}: " if shard is not None else ""
    return ShardError(f"{where}{type(cause).__name__}: {cause}")


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
