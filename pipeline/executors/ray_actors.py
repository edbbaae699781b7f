"""Ray actors that each hold one worker, and what a worker of another machine must see of the driver's files."""

import gc
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import ray

from concord.models.errors import ConfigError
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.resources import resident_bytes
from concord.pipeline.storage.atomic_writes import store_errors, write_unsynced
from concord.pipeline.storage.files import is_url
from concord.pipeline.storage.output_paths import output_path, remove
from concord.pipeline.worker.crash_log import CrashLog
from concord.pipeline.worker.shard_progress import Timings


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedStorage:
    """What every worker must see.

    Attributes:
        mark: path or URL of a file in the output; its random name tells it from those of a folder of the same path on
            another disk.
        inputs: paths of input files.
    """

    mark: str
    inputs: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, shards: Sequence[Shard]) -> Self:
        """Choose the first and the last input file of the shards; one behind a URL reports its own errors."""
        uris = [piece.uri for shard in (*shards[:1], *shards[-1:]) for piece in shard.pieces if not is_url(piece.uri)]
        mark = output_path(plan.config.output.path) / "_run" / "drivers" / str(plan.generation) / uuid4().hex
        return cls(mark=str(mark), inputs=tuple({*uris[:1], *uris[-1:]}))

    @contextmanager
    def marked(self) -> Iterator[Self]:
        """Write the mark, and remove it after the block."""
        self.renew()
        try:
            yield self
        finally:
            with store_errors(output_path(self.mark)):
                remove(output_path(self.mark))

    def renew(self) -> bool:
        """Write the mark unless it is there; return whether it was not, as after another driver's clean-up."""
        path = output_path(self.mark)
        with store_errors(path):
            if path.exists():
                return False
            write_unsynced(path, b"")
        return True

    def fault(self) -> str | None:
        """Say what this process does not see; None if there is nothing."""
        path = output_path(self.mark)
        unseen = [] if path.exists() else [f"the output {path.parent.parent.parent.parent}"]
        unseen += [f"the input {uri}" for uri in self.inputs if not os.access(uri, os.R_OK)]
        if not unseen:
            return None
        return (
            f"the worker on host {socket.gethostname()} does not see {' and '.join(unseen)} of this run: every node "
            "needs input, output and model at the same paths, on a file system that all nodes mount, or as URLs"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardResult:
    """What a worker returns for a shard.

    Attributes:
        resident_bytes: memory of its process; None where the system does not tell.
    """

    report: CommitRecord
    timings: Timings
    resident_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessPlace:
    """The id of a process, which a restart changes, and of the node on which it runs."""

    process: str
    node: str


class ShardActor:
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

    def run(self, shard: Shard) -> ShardResult:
        """Annotate and commit a shard."""
        on_progress = CrashLog(self._plan).progress_writer(shard)
        report, timings = self._worker.run(shard, on_progress=on_progress)
        return ShardResult(report=report, timings=timings, resident_bytes=resident_bytes())
