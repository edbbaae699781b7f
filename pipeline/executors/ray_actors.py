"""The actors of a run on Ray, one shard in flight for each.

Ray restarts nothing here: an actor that restarts keeps its shard, and waits with it for room where its node is gone.
So another takes its place, and any actor its shard. What a worker does again is counted where it does it
(``concord.pipeline.worker.attempts``).
"""

import gc
import logging
import math
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

from concord.models.errors import ConcordError, ConfigError, ModelError
from concord.pipeline.config import ExecutorConfig
from concord.pipeline.errors import DeviceError, InputError, ShardError
from concord.pipeline.executors.base import OnReport, StopRequest
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.resources import resident_bytes, wait_passively
from concord.pipeline.storage.atomic_writes import sync
from concord.pipeline.storage.output_paths import read_bytes
from concord.pipeline.worker.attempts import ShardRunner, forget_attempts, is_annotated_alone
from concord.pipeline.worker.shard_progress import OnShardProgress, ShardProgress, Timings
from concord.pipeline.worker.shard_worker import BuildWorker

logger = logging.getLogger(__name__)

ShardResult = tuple[CommitRecord, Timings, int]
"""What a worker returns for a shard, with the memory that its process holds, in bytes; 0 where that is not known."""

_MOST_LOSSES = 5
"""Actors that are lost on a shard, or one in the place of the other as they load, until the run fails."""
_START_SECONDS = 60.0
"""After which a worker that has not started is mentioned."""
_POLL_SECONDS = 0.5
_IMPORT_ROOT = Path(__file__).absolute().parents[3]
"""The folder that holds the package; in a checkout the rooms are links below it, which must not be resolved."""


class ShardActor:
    """A worker in a process of its own, on a node that has to see what the driver sees."""

    def load(self, plan: Plan, build: BuildWorker, holder: bytes) -> None:
        """Load parser and tagger.

        Args:
            holder: what the lock of the collection contains, which tells it from a folder of its path on another disk.

        Raises:
            ConfigError: when this process does not see this lock.
        """
        seen = None
        with suppress(FileNotFoundError):
            seen = read_bytes(OutputFolder(plan.config.output.path).lock_path)
        if seen != holder:
            raise ConfigError(_unseen(f"does not see the output {plan.config.output.path} of this run"))
        wait_passively()
        self._runner = ShardRunner(plan, build)
        # As existing_objects_frozen does, in a process that ends with its work.
        gc.freeze()

    def run(self, shard: Shard) -> ShardResult:
        """Annotate and commit a shard; InputError if this process does not read what the driver has planned."""
        try:
            return *self._runner.run(shard), resident_bytes()
        except InputError as error:
            raise InputError(_unseen(f"cannot read the input as it was planned ({error})")) from error


def _unseen(what: str) -> str:
    return (
        f"the worker on host {socket.gethostname()} {what}: every node needs input, output and model at the same "
        "paths, on a file system that all nodes mount, or as URLs"
    )


def runtime_env(*, threads: int) -> dict[str, Any]:
    """Return a Ray environment in which workers use this number of threads and import the package that the driver runs.

    A job's own working folder, which Ray unpacks on every node, comes before this path.
    """
    path = os.pathsep.join(filter(None, (str(_IMPORT_ROOT), os.environ.get("PYTHONPATH"))))
    return {"env_vars": {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}}


@dataclass(kw_only=True, slots=True)
class _Call:
    """What an actor does.

    Attributes:
        shard: None while it loads.
        due: when it is late, by the monotonic clock.
        losses: while it loads, how many before it were lost in its place as they loaded.
    """

    actor: Any
    shard: Shard | None
    due: float
    losses: int = 0


class ShardActors:
    """The actors of one run, what each of them does, and the shards that wait."""

    def __init__(self, plan: Plan, config: ExecutorConfig, *, count: int, build: BuildWorker) -> None:
        self._plan = plan
        self._memory = config.worker_memory_bytes or math.inf
        self._seconds = config.shard_seconds or math.inf
        self._gpus = config.gpu_share(plan.config.tagger.device)
        kind = ray.remote(num_cpus=plan.threads, num_gpus=self._gpus, runtime_env=runtime_env(threads=plan.threads))
        self._class = kind(ShardActor)
        lock = OutputFolder(plan.config.output.path).lock_path
        if isinstance(lock, Path):
            sync(lock)  # other machines may not see it before
        self._arguments = (ray.put(plan.for_workers()), build, read_bytes(lock))
        self._count = count
        self._waiting: deque[Shard] = deque()
        self._idle: list[Any] = []
        self._calls: dict[Future[Any], _Call] = {}
        # A second signal that interrupts Ray's own wait would end the process with another exit code.
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()
        self._losses: Counter[int] = Counter()
        self._failure: Exception | None = None

    def run(
        self, shards: Sequence[Shard], *, on_report: OnReport, on_progress: OnShardProgress, stop: StopRequest
    ) -> None:
        """Run all shards; on a failure or signal, finish those in flight and then raise it.

        After a signal, shards in flight that take too long are dropped.
        """
        # One that takes long and begins last would keep one worker busy and all others idle.
        self._waiting.extend(sorted(shards, key=lambda shard: -shard.num_bytes))
        for _ in range(self._count):
            self._start()
        next_look = 0.0
        while True:
            stopping = self._failure is not None or stop.received is not None
            while self._idle and self._waiting and not stopping:
                actor, shard = self._idle.pop(), self._waiting.popleft()
                due = time.monotonic() + self._seconds
                self._follow(actor.run.remote(shard), _Call(actor=actor, shard=shard, due=due))
                on_progress(ShardProgress(shard=shard.index))
            if (stopping or not self._waiting) and not self._in_flight:
                break
            if stop.is_overdue:
                self._drop()
                stop.raise_if_received()
            with suppress(Empty):
                self._collect(self._ended.get(timeout=_POLL_SECONDS), on_report)
            if time.monotonic() >= next_look:
                self._look_at_late()
                next_look = time.monotonic() + _POLL_SECONDS
        if self._failure is not None:
            raise self._failure
        if self._waiting:
            stop.raise_if_received()

    def shutdown(self) -> None:
        """Kill the actors, so that a cluster that was joined has its resources back."""
        for actor in (*self._idle, *(call.actor for call in self._calls.values())):
            ray.kill(actor)

    @property
    def _in_flight(self) -> list[Shard]:
        return [call.shard for call in self._calls.values() if call.shard is not None]

    def _start(self, *, losses: int = 0) -> None:
        actor = self._class.remote()
        due = time.monotonic() + _START_SECONDS
        self._follow(actor.load.remote(*self._arguments), _Call(actor=actor, shard=None, due=due, losses=losses))

    def _follow(self, reference: Any, call: _Call) -> None:
        future: Future[Any] = reference.future()
        self._calls[future] = call
        future.add_done_callback(self._ended.put)

    def _drop(self) -> None:
        """Kill the actors, and have what they were doing done as planned by the next run."""
        dropped = self._in_flight
        logger.warning("not finished in time, to be done by the next run: shards %s", [shard.name for shard in dropped])
        self.shutdown()
        for shard in dropped:
            forget_attempts(self._plan, shard)

    def _collect(self, future: Future[Any], on_report: OnReport) -> None:
        """Handle a call that has ended, with a result or an error, unless its actor was killed meanwhile."""
        call = self._calls.pop(future, None)
        if call is None:
            return
        try:
            result: ShardResult | None = future.result()
        except RayError as error:
            cause = _cause_of(error, call.shard)
            if isinstance(error, RayActorError | OutOfMemoryError) or isinstance(cause, DeviceError):
                self._replace(call, _last_line(cause))
            else:
                self._failure = cause
                self._idle.append(call.actor)
            return
        if result is not None:
            report, timings, memory = result
            on_report(report, timings)
            if memory > self._memory and self._waiting:
                logger.info("a worker holds %d bytes and is replaced", memory)
                ray.kill(call.actor)
                self._start()
                return
        self._idle.append(call.actor)

    def _replace(self, call: _Call, reason: str) -> None:
        """Start another actor; the shard comes last, so that one that kills its workers does not delay the others."""
        ray.kill(call.actor)
        if call.shard is None:
            what, losses = "while loading", call.losses + 1
        else:
            self._waiting.append(call.shard)
            self._losses[call.shard.index] += 1
            what, losses = f"on shard {call.shard.name}", self._losses[call.shard.index]
        logger.warning("a worker was lost %s, and is replaced: %s", what, reason)
        if losses == _MOST_LOSSES:
            self._failure = ShardError(f"{_MOST_LOSSES} workers were lost {what}; the last: {reason}")
        else:
            self._start(losses=losses if call.shard is None else 0)

    def _look_at_late(self) -> None:
        """Replace actors that exceed the limit of a shard, and say which wait for room, each once."""
        now, starting = time.monotonic(), 0
        for future, call in list(self._calls.items()):
            if call.due > now or future.done():
                continue
            call.due = math.inf
            if call.shard is None:
                starting += 1
            elif not is_annotated_alone(self._plan, call.shard):
                del self._calls[future]
                self._replace(call, f"took more than {self._seconds:g} s (executor.shard_seconds)")
        if starting:
            free = ray.available_resources()
            logger.warning(
                "%d of %d workers have not started for %g s: they load, or wait for nodes or for others to leave (each "
                "takes %d CPUs and %g GPUs, of which the cluster has %g and %g free); %d have started",
                *(starting, self._count, _START_SECONDS, self._plan.threads, self._gpus),
                *(free.get("CPU", 0), free.get("GPU", 0), len(self._idle) + len(self._in_flight)),
            )


def _cause_of(error: RayError, shard: Shard | None) -> Exception:
    """Return the error to raise for a failed call: that of the task if it is ours, else one that names it."""
    if not isinstance(error, RayTaskError):
        return ShardError(f"Ray: {type(error).__name__}: {error}")
    cause = error.cause
    if isinstance(cause, ConcordError):
        return cause
    if shard is None:
        return ModelError(f"a worker cannot be built: {type(cause).__name__}: {cause}")
    return ShardError(f"shard {shard.name}: {type(cause).__name__}: {cause}")


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
