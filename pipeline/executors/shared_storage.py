"""Whether the workers of other machines see the output and the input of the driver at the same paths."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

from concord.pipeline.plan import Plan, Shard
from concord.pipeline.storage.atomic_writes import store_errors, write_unsynced
from concord.pipeline.storage.output_paths import output_path, remove
from concord.pipeline.storage.urls import is_url


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
