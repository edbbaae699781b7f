"""A Ray without processes: actors of simulated nodes whose calls take a while, as the scheduler uses them."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ray.exceptions import ActorUnavailableError, RayError
from ray.util import metrics

from concord.models.errors import ConcordError
from concord.pipeline.executors import ray_scheduler
from concord.pipeline.executors.ray_actors import ProcessPlace, ShardResult
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.plan import Shard
from concord.pipeline.worker.shard_progress import Timings


class Clock:
    """Calls functions at a later time, in a thread of its own."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after some seconds."""
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), function))
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                function = heapq.heappop(self._due)[2]
            function()


class HangError(Exception):
    """A call never ends unless its actor is killed."""


class Actor:
    """An actor on a node; override ``answer`` and ``do`` for one that fails."""

    resident_bytes: int | None = None
    hanging: Future[Any] | None = None

    def __init__(self, ray: "SimulatedRay", number: int) -> None:
        self.ray = ray
        self.place = ProcessPlace(process=f"process {number}", node=f"node {number}")

    def answer(self) -> ProcessPlace:
        """Answer a ping."""
        return self.place

    def do(self, shard: Shard) -> ShardResult:
        """Do a shard."""
        report = CommitRecord(
            shard=shard.index, generation=0, read=shard.records, annotated=shard.records, unchanged=0, dead_letters=0
        )
        return ShardResult(report=report, timings=Timings(words=1), resident_bytes=self.resident_bytes)

    def restart(self) -> None:
        """Go on as another process."""
        self.place = replace(self.place, process=f"{self.place.process} again")

    @property
    def ping(self) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda: self.ray.call(self, self.answer))

    @property
    def run(self) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda shard: self.ray.call(self, lambda: self.do(shard)))


class SimulatedRay:
    """What the scheduler uses of Ray.

    Args:
        seconds: that a call takes.
        actor: makes an actor; called with this object and the number of the actor.

    Attributes:
        lost_nodes: names of nodes that are down.
        free: the resources that nobody holds.
        plan: from which the last actor was built.
        killed: actors that were killed for good.
        output: for actors that look there.
    """

    def __init__(self, *, seconds: float = 0.0, actor: Callable[["SimulatedRay", int], Actor] = Actor) -> None:
        self.lost_nodes: set[str] = set()
        self.free = {"CPU": 1e6}
        self.plan = b""
        self.output = Path()
        self.killed: list[Actor] = []
        self._seconds = seconds
        self._clock = Clock()
        self._numbers = itertools.count()
        self._actor = actor

    def remote(self, **_options: Any) -> Callable[[type], SimpleNamespace]:
        """Return a decorator that makes a class of actors."""

        def decorate(_class: type) -> SimpleNamespace:
            def start(plan: bytes, *_: Any) -> Actor:
                self.plan = plan
                return self._actor(self, next(self._numbers))

            return SimpleNamespace(remote=start)

        return decorate

    def call(self, actor: Actor, work: Callable[[], Any]) -> SimpleNamespace:
        """Return a reference to what the work returns or raises after the time that a call takes."""
        future: Future[Any] = Future()

        def end() -> None:
            try:
                future.set_result(work())
            except HangError:
                actor.hanging = future
            except (RayError, ConcordError) as error:
                future.set_exception(error)

        self._clock.call_later(self._seconds, end) if self._seconds else end()
        return SimpleNamespace(future=lambda: future)

    def put(self, value: Any) -> Any:
        """Return the value as its reference."""
        return value

    def kill(self, actor: Actor, *, no_restart: bool = True) -> None:
        """End the process of an actor, and the call that hangs in it."""
        if no_restart:
            self.killed.append(actor)
        actor.restart()
        if actor.hanging is not None:
            future, actor.hanging = actor.hanging, None
            future.set_exception(ActorUnavailableError("its process was killed", None))

    def nodes(self) -> list[dict[str, Any]]:
        """Return the node of every actor so far that is not lost."""
        return [{"NodeID": f"node {number}", "Alive": f"node {number}" not in self.lost_nodes} for number in range(99)]

    def available_resources(self) -> dict[str, float]:
        """Return what is free."""
        return self.free

    @contextmanager
    def used(self) -> Iterator["SimulatedRay"]:
        """Have the scheduler use it while the block runs."""
        with (
            mock.patch.object(ray_scheduler, "ray", self),
            mock.patch.multiple(metrics, Counter=SilentMetric, Gauge=SilentMetric, Histogram=SilentMetric),
        ):
            yield self


class SilentMetric:
    """A metric that nobody reads."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def set_default_tags(self, tags: dict[str, str]) -> None: ...

    def set(self, number: float) -> None: ...

    def inc(self, number: float, tags: dict[str, str]) -> None: ...

    def observe(self, number: float) -> None: ...
