"""Shards on plain Ray actors, one in flight on each; the only place in this package that imports Ray.

Ray restarts an actor whose process dies, but never runs a call again by itself: what is tried again, and how often,
is decided here. An actor gets work only after it has answered a ping, so that a cluster that is down for a while costs
no shard any of its tries.
"""

import logging
import os
import shutil
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from models.config import ConfigError
from pipeline.config import ExecutorConfig
from pipeline.errors import ConcordError, ModelError, ShardError
from pipeline.executors.auth import settle_auth_mode
from pipeline.executors.base import BuildWorker, OnReport, StopRequest, stop_request
from pipeline.files import sha256_of
from pipeline.planning import Plan
from pipeline.records import Shard, ShardReport
from pipeline.stages import Timings, build_worker

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 600.0
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
        self._worker = build(Plan.from_json(plan))

    def ping(self) -> None:
        """Answer as soon as parser and tagger are loaded."""

    def run(self, shard: Shard) -> tuple[ShardReport, Timings]:
        return self._worker.run(shard)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in flight; without a shard it is a ping."""

    actor: Any
    shard: Shard | None


class _Crew:
    """The actors of one run, what they are at, and the shards that wait."""

    def __init__(self, plan: Plan, config: ExecutorConfig, build: BuildWorker, *, cpus: int) -> None:
        self._attempts = config.attempts
        self._arguments = (plan.to_json(), build)
        self._actor_class = ray.remote(
            num_cpus=cpus,
            num_gpus=config.gpus,
            max_restarts=-1,
            max_task_retries=0,
            runtime_env=_runtime_env(threads=plan.threads),
        )(_ShardActor)
        self._waiting: deque[Shard] = deque()
        self._idle: list[Any] = []
        self._calls: dict[Any, _Call] = {}
        self._deaths: Counter[int] = Counter()
        self._silent_since: dict[Any, float] = {}
        self._failure: Exception | None = None

    def work(self, shards: Sequence[Shard], *, actors: int, on_report: OnReport, stop: StopRequest) -> None:
        """Have the shards done; on a failure or signal those in flight are finished, then it is raised."""
        self._waiting.extend(shards)
        for _ in range(actors):
            self._hire()
        while True:
            halted = self._failure is not None or stop.received is not None
            while self._idle and self._waiting and not halted:
                actor, shard = self._idle.pop(), self._waiting.popleft()
                self._calls[actor.run.remote(shard)] = _Call(actor, shard)
            in_flight = any(call.shard is not None for call in self._calls.values())
            if not in_flight and (halted or not self._waiting):
                break
            ready, _ = ray.wait(list(self._calls), timeout=_POLL_SECONDS)
            for reference in ready:
                self._take(reference, on_report)
        if self._failure is not None:
            raise self._failure
        if self._waiting:
            stop.raise_if_received()

    def dismiss(self) -> None:
        """End the actors; on a cluster that we joined, others get their room."""
        for actor in [*self._idle, *(call.actor for call in self._calls.values())]:
            ray.kill(actor)

    def _hire(self) -> None:
        self._ping(self._actor_class.remote(*self._arguments))

    def _ping(self, actor: Any) -> None:
        self._calls[actor.ping.remote()] = _Call(actor, None)

    def _take(self, reference: Any, on_report: OnReport) -> None:
        """Take the answer of a call that has ended, whatever it is."""
        call = self._calls.pop(reference)
        try:
            answer = ray.get(reference)
        except ActorUnavailableError as error:
            self._bear(call, error)
            self._await_again(call.actor, error)
        except ActorDiedError as error:
            if call.shard is None:
                self._failure = ModelError(f"a worker cannot be built: {_last_line(error)}")
            else:
                self._bear(call, error)
                self._hire()
        except RayTaskError as error:
            self._idle.append(call.actor)
            self._failure = _cause(error, call.shard)
        except RayError as error:
            self._idle.append(call.actor)
            self._failure = ShardError(f"Ray: {type(error).__name__}: {error}")
        else:
            self._idle.append(call.actor)
            self._silent_since.pop(call.actor, None)
            if call.shard is not None:
                on_report(*answer)

    def _bear(self, call: _Call, error: RayError) -> None:
        """Count a worker's death against the shard it was at; a ping costs nobody a try."""
        if call.shard is None:
            return
        self._deaths[call.shard.index] += 1
        deaths = self._deaths[call.shard.index]
        if deaths < self._attempts:
            logger.warning("shard %s: its worker died, try %d of %d", call.shard.name, deaths, self._attempts)
            # To the end, so that a shard that kills its workers does not keep the others from being done.
            self._waiting.append(call.shard)
        else:
            self._failure = ShardError(
                f"shard {call.shard.name}: its worker died {deaths} times, last with {_last_line(error)}; "
                f"it holds {call.shard.records} records of {', '.join(piece.uri for piece in call.shard.pieces[:3])}"
            )

    def _await_again(self, actor: Any, error: RayError) -> None:
        """Ping an actor whose process is being restarted, until it answers or patience ends."""
        since = self._silent_since.setdefault(actor, time.monotonic())
        if time.monotonic() - since > _PATIENCE_SECONDS:
            self._failure = ShardError(f"a worker did not come up again: {_last_line(error)}")
        # An actor that is restarting refuses calls at once, so this would spin.
        time.sleep(_POLL_SECONDS)
        self._ping(actor)


def _cause(error: RayTaskError, shard: Shard | None) -> Exception:
    cause = error.cause
    if isinstance(cause, ConcordError):
        return cause
    where = f"shard {shard.name}: " if shard is not None else ""
    return ShardError(f"{where}{type(cause).__name__}: {cause}")


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
