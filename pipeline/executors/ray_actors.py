"""The actors of a run on Ray, one shard in flight for each, and what they must see of the driver's files.

Ray restarts nothing here: an actor that restarts keeps its shard, and waits with it for room where its node is gone.
So another takes its place, and any actor its shard. What a worker does again is counted where it does it
(``concord.pipeline.worker.attempts``).
"""

import gc
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

from concord.models.errors import ConcordError, ConfigError, ModelError
from concord.pipeline.config import ExecutorConfig
from concord.pipeline.errors import DeviceError, ShardError
from concord.pipeline.executors.base import OnReport, StopRequest
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.resources import WAIT_POLICY, resident_bytes
from concord.pipeline.storage.atomic_writes import sync
from concord.pipeline.storage.files import is_url
from concord.pipeline.storage.output_paths import output_path, read_bytes
from concord.pipeline.worker.attempts import ShardRunner, forget_attempts
from concord.pipeline.worker.shard_progress import OnShardProgress, ShardProgress, Timings
from concord.pipeline.worker.shard_worker import BuildWorker

logger = logging.getLogger(__name__)

ShardResult = tuple[CommitRecord, Timings, int]
"""What a worker returns for a shard, with the memory that its process holds, in bytes; 0 where that is not known."""

_MOST_LOSSES = 5
"""Actors that are lost on a shard, or one after the other as they load, until the run fails."""
_LOADING = "while loading"
_POLL_SECONDS = 0.5
_IMPORT_ROOT = Path(__file__).absolute().parents[3]
"""The folder that holds the package; in a checkout the rooms are links below it, which must not be resolved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedStorage:
    """What every worker must see.

    Attributes:
        lock: path or URL of the lock of the collection.
        holder: its content, which tells it from that of a folder of the same path on another disk.
        inputs: paths of input files.
    """

    lock: str
    holder: bytes
    inputs: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, shards: Sequence[Shard]) -> Self:
        """Choose the first and the last input file of the shards; one behind a URL reports its own errors."""
        uris = [piece.uri for shard in (*shards[:1], *shards[-1:]) for piece in shard.pieces if not is_url(piece.uri)]
        lock = OutputFolder(plan.config.output.path).lock_path
        if isinstance(lock, Path):
            sync(lock)  # other machines may not see it before
        return cls(lock=str(lock), holder=read_bytes(lock), inputs=tuple({*uris[:1], *uris[-1:]}))

    def fault(self) -> str | None:
        """Say what this process does not see; None if there is nothing."""
        lock = output_path(self.lock)
        try:
            unseen = [] if read_bytes(lock) == self.holder else [f"the output {lock.parent.parent}"]
        except FileNotFoundError:
            unseen = [f"the output {lock.parent.parent}"]
        unseen += [f"the input {uri}" for uri in self.inputs if not os.access(uri, os.R_OK)]
        if not unseen:
            return None
        return (
            f"the worker on host {socket.gethostname()} does not see {' and '.join(unseen)} of this run: every node "
            "needs input, output and model at the same paths, on a file system that all nodes mount, or as URLs"
        )


class ShardActor:
    """A worker in a process of its own.

    Args:
        plan: as Plan.for_workers, in JSON.
        storage: what it must see; without, nothing is built.
    """

    def __init__(self, plan: bytes, build: BuildWorker, storage: SharedStorage, shard_seconds: float | None) -> None:
        self._fault = storage.fault()
        if self._fault is None:
            self._runner = ShardRunner(Plan.from_json(plan), build, shard_seconds=shard_seconds)
        # As existing_objects_frozen does, in a process that ends with its work.
        gc.freeze()

    def wait(self) -> None:
        """Return as soon as parser and tagger are loaded; ConfigError if it does not see what the driver sees."""
        if self._fault is not None:
            raise ConfigError(self._fault)

    def run(self, shard: Shard) -> ShardResult:
        """Annotate and commit a shard."""
        return *self._runner.run(shard), resident_bytes() or 0


def runtime_env(*, threads: int) -> dict[str, Any]:
    """Return a Ray environment in which workers use this number of threads and import the package that the driver runs.

    A job's own working folder, which Ray unpacks on every node, comes before this path.
    """
    waiting = {name: os.environ.get(name, value) for name, value in WAIT_POLICY.items()}
    path = os.pathsep.join(filter(None, (str(_IMPORT_ROOT), os.environ.get("PYTHONPATH"))))
    return {"env_vars": {**waiting, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}}


class ShardActors:
    """The actors of one run, what each of them does, and the shards that wait."""

    def __init__(
        self, plan: Plan, config: ExecutorConfig, storage: SharedStorage, *, count: int, build: BuildWorker
    ) -> None:
        self._plan = plan
        self._memory = config.worker_memory_bytes or float("inf")
        gpus = config.gpu_share(plan.config.tagger.device)
        kind = ray.remote(num_cpus=plan.threads, num_gpus=gpus, runtime_env=runtime_env(threads=plan.threads))
        self._class = kind(ShardActor)
        self._arguments = (ray.put(plan.for_workers().to_json()), build, storage, config.shard_seconds)
        self._count = count
        self._waiting: deque[Shard] = deque()
        self._idle: list[Any] = []
        self._calls: dict[Future[Any], tuple[Any, Shard | None]] = {}
        """The actor and the shard of each call; without a shard the actor is loading."""
        # A second signal that interrupts Ray's own wait would end the process with another exit code.
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()
        self._losses: Counter[str] = Counter()
        self._failure: Exception | None = None

    def run(
        self, shards: Sequence[Shard], *, on_report: OnReport, on_progress: OnShardProgress | None, stop: StopRequest
    ) -> None:
        """Run all shards; on a failure or signal, finish those in flight and then raise it.

        After a signal, shards in flight that take too long are dropped.
        """
        self._waiting.extend(longest_first(shards))
        for _ in range(self._count):
            self._start()
        while True:
            stopping = self._failure is not None or stop.received is not None
            while self._idle and self._waiting and not stopping:
                self._hand_out(self._waiting.popleft(), on_progress)
            if not self._in_flight and (stopping or not self._waiting):
                break
            if stop.is_overdue:
                self._drop()
                stop.raise_if_received()
            with suppress(Empty):
                self._collect(self._ended.get(timeout=_POLL_SECONDS), on_report)
        if self._failure is not None:
            raise self._failure
        if self._waiting:
            stop.raise_if_received()

    def shutdown(self) -> None:
        """Kill the actors, so that a cluster that was joined has its resources back."""
        for actor in (*self._idle, *(actor for actor, _ in self._calls.values())):
            ray.kill(actor)

    @property
    def _in_flight(self) -> list[Shard]:
        return [shard for _, shard in self._calls.values() if shard is not None]

    def _start(self) -> None:
        actor = self._class.remote(*self._arguments)
        self._follow(actor.wait.remote(), actor, None)

    def _follow(self, reference: Any, actor: Any, shard: Shard | None) -> None:
        call: Future[Any] = reference.future()
        self._calls[call] = (actor, shard)
        call.add_done_callback(self._ended.put)

    def _hand_out(self, shard: Shard, on_progress: OnShardProgress | None) -> None:
        actor = self._idle.pop()
        self._follow(actor.run.remote(shard), actor, shard)
        if on_progress is not None:
            on_progress(ShardProgress(shard=shard.index))

    def _drop(self) -> None:
        """Kill the actors, and have what they were doing done as planned by the next run."""
        dropped = self._in_flight
        logger.warning("not finished in time, to be done by the next run: shards %s", [shard.name for shard in dropped])
        self.shutdown()
        for shard in dropped:
            forget_attempts(self._plan, shard)

    def _collect(self, call: Future[Any], on_report: OnReport) -> None:
        """Handle a call that has ended, with a result or an error."""
        actor, shard = self._calls.pop(call)
        try:
            result: ShardResult | None = call.result()
        except RayError as error:
            cause = cause_of(error, shard)
            if isinstance(error, RayActorError) and error.actor_init_failed:
                self._failure = ModelError(f"a worker cannot be built: {_last_line(error)}")
            elif isinstance(error, RayActorError | OutOfMemoryError) or isinstance(cause, DeviceError):
                self._on_lost(actor, shard, _last_line(cause))
            else:
                self._failure = cause
                self._idle.append(actor)
            return
        if result is None:
            del self._losses[_LOADING]
        else:
            report, timings, memory = result
            on_report(report, timings)
            if memory > self._memory and self._waiting:
                logger.info("a worker holds %d bytes and is replaced", memory)
                ray.kill(actor)
                self._start()
                return
        self._idle.append(actor)

    def _on_lost(self, actor: Any, shard: Shard | None, reason: str) -> None:
        """Start another actor; the shard comes last, so that one that kills its workers does not delay the others."""
        what = _LOADING if shard is None else f"on shard {shard.name}"
        logger.warning("a worker was lost %s, and is replaced: %s", what, reason)
        ray.kill(actor)
        if shard is not None:
            self._waiting.append(shard)
        self._losses[what] += 1
        if self._losses[what] < _MOST_LOSSES:
            self._start()
        else:
            self._failure = ShardError(f"{_MOST_LOSSES} workers were lost {what}; the last: {reason}")


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
