"""The Ray actors that hold a worker each."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError

from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.worker.memory import resident_bytes
from concord.pipeline.worker.shard_worker import Timings
from concord.pipeline.worker.stored_parses import Parses

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardResult:
    """What a worker answers when it is done with a shard.

    Attributes:
        report: None where the shard was only parsed.
        resident: bytes of memory that its process holds; None where the system does not tell.
    """

    report: ShardReport | None
    timings: Timings
    resident: int | None


class _Actor:
    """A worker in a process of its own."""

    def __init__(self, plan: bytes, build: Callable[[Plan], Any]) -> None:
        self._process = uuid4().hex
        self._worker = build(Plan.from_json(plan))

    def ping(self) -> str:
        """Answer as soon as parser and tagger are loaded; the answer is another after every restart."""
        return self._process


class ShardActor(_Actor):
    """A worker that tags and commits; it parses what nobody has parsed for it."""

    def run(self, shard: Shard, handed: Sequence[Any]) -> ShardResult:
        """Annotate and commit a shard.

        Args:
            handed: a reference to its parses, if another has made them. In a list, since Ray would otherwise fail the
                call when they are lost.
        """
        report, timings = self._worker.run(shard, parses=_fetch(handed))
        return ShardResult(report=report, timings=timings, resident=resident_bytes())


class ParseActor(_Actor):
    """A worker that only parses."""

    def run(self, shard: Shard) -> tuple[ShardResult, Mapping[str, Any]]:
        """Parse a shard; the tables, an object of their own, stay in the store, and the rest goes to the driver."""
        tables, timings = self._worker.run(shard)
        return ShardResult(report=None, timings=timings, resident=resident_bytes()), tables


def _fetch(handed: Sequence[Any]) -> Parses | None:
    try:
        return Parses(ray.get(handed[0])) if handed else None
    except RayError as error:
        logger.warning("parses are lost (%s) and made anew", type(error).__name__)
        return None
