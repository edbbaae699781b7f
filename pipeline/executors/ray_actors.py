"""Ray actors that each hold one worker."""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError

from concord.models.errors import ConfigError
from concord.pipeline.executors.shared_storage import SharedStorage
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.worker.crash_log import CrashLog
from concord.pipeline.worker.memory import resident_bytes
from concord.pipeline.worker.shard_progress import Timings
from concord.pipeline.worker.stored_parses import Parses

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardResult:
    """What a worker returns for a shard.

    Attributes:
        report: None if the shard was only parsed.
        resident_bytes: memory of its process; None where the system does not tell.
    """

    report: ShardReport | None
    timings: Timings
    resident_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessPlace:
    """The id of a process, which a restart changes, and of the node on which it runs."""

    process: str
    node: str


class _Actor:
    """A worker in a process of its own.

    Args:
        plan: as Plan.for_workers, in JSON.
        storage: what it must see; without, nothing is built.
    """

    def __init__(self, plan: bytes, build: Callable[[Plan], Any], storage: SharedStorage) -> None:
        self._place = ProcessPlace(process=uuid4().hex, node=ray.get_runtime_context().get_node_id())
        self._plan = Plan.from_json(plan)
        self._fault = storage.fault()
        if self._fault is None:
            self._worker = build(self._plan)
        # As existing_objects_frozen does, in a process that ends with its work.
        gc.freeze()

    def ping(self) -> ProcessPlace:
        """Return which process this is, as soon as parser and tagger are loaded.

        Raises:
            ConfigError: when it does not see what the driver sees.
        """
        if self._fault is not None:
            raise ConfigError(self._fault)
        return self._place


class ShardActor(_Actor):
    """A worker that tags and commits; it parses what was not parsed ahead."""

    def run(self, shard: Shard, parse_tables: Sequence[Any]) -> ShardResult:
        """Annotate and commit a shard.

        Args:
            parse_tables: a reference to its parses, if it was parsed ahead. In a list, since Ray would otherwise
                resolve it, and fail the call when the parses are lost.
        """
        on_progress = CrashLog(self._plan).progress_writer(shard)
        report, timings = self._worker.run(shard, parses=_fetch(parse_tables), on_progress=on_progress)
        return ShardResult(report=report, timings=timings, resident_bytes=resident_bytes())


class ParseActor(_Actor):
    """A worker that only parses."""

    def run(self, shard: Shard) -> tuple[ShardResult, Mapping[str, Any]]:
        """Parse a shard; its tables stay in the object store as an object of their own."""
        tables, timings = self._worker.run(shard)
        return ShardResult(report=None, timings=timings, resident_bytes=resident_bytes()), tables


def _fetch(parse_tables: Sequence[Any]) -> Parses | None:
    try:
        return Parses(ray.get(parse_tables[0])) if parse_tables else None
    except RayError as error:
        logger.warning("parses made ahead are lost (%s); parsing again", type(error).__name__)
        return None
