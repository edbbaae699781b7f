"""A Ray without processes: actors whose calls end at once, or when they are killed, as the executor uses them."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

from ray.exceptions import ActorDiedError, RayError

from concord.models.errors import ConcordError
from concord.pipeline.executors import ray_actors
from concord.pipeline.executors.ray_actors import ShardResult
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.plan import Shard
from concord.pipeline.worker.shard_progress import Timings


class HangError(Exception):
    """A call does not end until its actor is killed."""


class Actor:
    """An actor; override ``load`` and ``do`` for one that fails.

    Attributes:
        number: of the actors that were started, from 0.
    """

    resident_bytes: ClassVar[int] = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def load(self) -> None:
        """Load the models."""

    def do(self, shard: Shard) -> ShardResult:
        """Do a shard."""
        report = CommitRecord(
            shard=shard.index, generation=0, read=shard.records, annotated=shard.records, unchanged=0, dead_letters=0
        )
        return report, Timings(words=1), self.resident_bytes


class Handle:
    """What the driver holds of an actor."""

    def __init__(self, actor: Actor) -> None:
        self.is_killed = False
        self.load = SimpleNamespace(remote=lambda *_: self._call(actor.load))
        self.run = SimpleNamespace(remote=lambda shard: self._call(lambda: actor.do(shard)))
        self._hanging: list[Future[Any]] = []

    def kill(self) -> None:
        """End it, and its calls."""
        self.is_killed = True
        while self._hanging:
            self._hanging.pop().set_exception(ActorDiedError())

    def _call(self, work: Callable[[], object]) -> SimpleNamespace:
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except HangError:
            self._hanging.append(future)
        except (RayError, ConcordError) as error:
            future.set_exception(error)
        return SimpleNamespace(future=lambda: future)


class SimulatedRay:
    """What the executor uses of Ray.

    Args:
        actor: makes an actor from its number.

    Attributes:
        actors: the handles of all that were started.
        stored: what workers get.
    """

    def __init__(self, actor: Callable[[int], Actor] = Actor) -> None:
        self.actors: list[Handle] = []
        self.stored: list[object] = []
        self._actor = actor

    def remote(self, **_options: Any) -> Callable[[type], SimpleNamespace]:
        """Return a decorator that makes a class of actors."""

        def start() -> Handle:
            self.actors.append(Handle(self._actor(len(self.actors))))
            return self.actors[-1]

        return lambda _class: SimpleNamespace(remote=start)

    def put(self, value: Any) -> Any:
        """Return the value as its reference."""
        self.stored.append(value)
        return value

    def kill(self, actor: Handle) -> None:
        """End an actor."""
        actor.kill()

    def available_resources(self) -> dict[str, float]:
        """Return what nobody has taken."""
        return {"CPU": 3.0}

    @contextmanager
    def used(self) -> Iterator["SimulatedRay"]:
        """Have the executor use it while the block runs."""
        with mock.patch.object(ray_actors, "ray", self):
            yield self
