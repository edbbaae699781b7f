"""The tries of a shard: what its worker is at, and what workers have died of.

A worker that dies takes its memory with it, so what the next one has to know stands in a small file for each shard
below ``_run/trials``. A shard is tried as a whole ``executor.attempts`` times; then its documents are done one by one,
and a mark beside that file names the one that is being done. A document whose worker has died twice while it was alone
is left out.

The files outlive the process, not the machine, so they are not flushed to disk. They go when the run is finished.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

import orjson
from pydantic import ValidationError

from concord.models.config import Config
from concord.pipeline.errors import ShardError
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.storage.atomic_writes import store_errors, write_unsynced
from concord.pipeline.storage.output_paths import OutputPath, list_files, output_path

logger = logging.getLogger(__name__)

TRIALS_NAME = "trials"
DEATHS_ALONE = 2
"""A signal from outside may hit any document once."""
_LEAST_LEFT_OUT = 5

Kind = TypeVar("Kind", bound=Config)
Stage = Literal["parse", "tag"]
Cause = Literal["worker_died", "time_limit"]

_TOLD: dict[Cause, str] = {"worker_died": "died", "time_limit": "was killed, since it took too long"}


class WorkPlace(Config):
    """What a worker is at: one record alone, or the shard as a whole."""

    number: int | None = None
    """Of the record among those of the shard, from 0; None for the whole."""
    stage: Stage | None = None

    @property
    def told(self) -> str:
        """The place in words."""
        return "" if self.number is None else f", while record {self.number} was alone at work ({self.stage})"


class Suspect(Config):
    """A record that was alone when its worker died."""

    number: int
    stage: Stage
    cause: Cause
    deaths: int


class ShardAttempts(Config):
    """What is known of the tries of a shard that did not end."""

    deaths: int = 0
    """Of workers that were not at one record alone."""
    suspects: tuple[Suspect, ...] = ()

    @property
    def quarantined(self) -> dict[int, Suspect]:
        """The records to be left out, by their number."""
        return {suspect.number: suspect for suspect in self.suspects if suspect.deaths >= DEATHS_ALONE}

    @property
    def told(self) -> str:
        """The trial in words."""
        alone = [f"{suspect.deaths} at record {suspect.number} alone" for suspect in self.suspects]
        return "workers that died: " + ", ".join([f"{self.deaths} at the whole", *alone])

    def charged(self, cause: Cause, at: WorkPlace) -> "ShardAttempts":
        """Give the trial after its worker's death."""
        if at.number is None or at.stage is None:
            return self.model_copy(update={"deaths": self.deaths + 1})
        deaths = 1 + sum(suspect.deaths for suspect in self.suspects if suspect.number == at.number)
        found = Suspect(number=at.number, stage=at.stage, cause=cause, deaths=deaths)
        others = (suspect for suspect in self.suspects if suspect.number != at.number)
        suspects = tuple(sorted([*others, found], key=lambda suspect: suspect.number))
        return self.model_copy(update={"suspects": suspects})


class CrashLog:
    """The trials of a plan's shards, which drivers write, and the marks of their workers, on disk."""

    def __init__(self, plan: Plan) -> None:
        """Take the plan; nothing is read or made yet."""
        self._folder = output_path(plan.config.output) / "_run" / TRIALS_NAME / str(plan.generation)
        self._attempts = plan.config.executor.attempts
        self._allowed = plan.config.max_dead_letters

    def read(self, shard: Shard) -> ShardAttempts:
        """Give what is known of a shard."""
        return _read(self._path(shard), ShardAttempts) or ShardAttempts()

    def is_suspicious(self, trial: ShardAttempts) -> bool:
        """Say whether the shard has had all its tries as a whole."""
        return trial.deaths >= self._attempts

    def place(self, shard: Shard) -> WorkPlace | None:
        """Give what a worker of the shard is at, or was when it died; None where none has left a mark."""
        return _read(self._mark(shard), WorkPlace)

    @contextmanager
    def mark_in_progress(self, shard: Shard, place: WorkPlace) -> Iterator[None]:
        """Mark what this process is at while the block runs; its death leaves the mark. Blocks may be nested."""
        path = self._mark(shard)
        before = self.place(shard)
        _write(path, place)
        try:
            yield
        finally:
            if before is None:
                path.unlink(missing_ok=True)
            else:
                _write(path, before)

    def forget_mark(self, shard: Shard) -> None:
        """Remove the mark of a worker that is gone."""
        self._mark(shard).unlink(missing_ok=True)

    def charge(self, shard: Shard, cause: Cause, at: WorkPlace | None) -> ShardAttempts:
        """Count a worker's death against what it was at.

        Raises:
            ShardError: when it is no fault of single documents, so that going on would not end well.
        """
        at = at or WorkPlace()
        logger.warning("shard %s: its worker %s%s", shard.name, _TOLD[cause], at.told)
        trial = self.read(shard).charged(cause, at)
        _write(self._path(shard), trial)
        fault = self._common_fault(shard, trial)
        if fault is not None:
            # Once it is mended, the documents are to be tried as if nothing had been.
            self._path(shard).unlink(missing_ok=True)
            where = f"{shard.records} records of {', '.join(piece.uri for piece in shard.pieces[:3])}"
            raise ShardError(f"shard {shard.name}: its worker died {fault}; it holds {where}")
        return trial

    def standing(self) -> dict[str, ShardAttempts]:
        """Give the trials in which a worker has died, by the shard's name."""
        found = {path.stem: _read(path, ShardAttempts) for path in list_files(self._folder, "*.json")}
        return {name: trial for name, trial in found.items() if trial is not None}

    def are_too_many(self, left_out: int, shard: Shard) -> bool:
        """Say whether so many documents of a shard can hardly be to blame themselves."""
        return left_out > max(_LEAST_LEFT_OUT, self._allowed * shard.records)

    def _common_fault(self, shard: Shard, trial: ShardAttempts) -> str | None:
        """Say why the deaths are hardly the fault of single documents; None where they may be."""
        if trial.deaths >= 2 * self._attempts:
            return f"{trial.deaths} times, and not at one of its documents, but while it loaded, read or wrote"
        if self.are_too_many(len(trial.quarantined), shard):
            return (
                f"at {len(trial.quarantined)} documents, each alone: that is the machine, the model or "
                "executor.shard_seconds rather than the documents; --set max_dead_letters=1 goes on all the same"
            )
        return None

    def _path(self, shard: Shard) -> OutputPath:
        return self._folder / f"{shard.name}.json"

    def _mark(self, shard: Shard) -> OutputPath:
        return self._folder / f"{shard.name}.mark"


def _write(path: OutputPath, value: Config) -> None:
    with store_errors(path):
        write_unsynced(path, orjson.dumps(value.model_dump(mode="json")))


def _read(path: OutputPath, kind: type[Kind]) -> Kind | None:
    """Read a file; None where there is none, or one that was cut with its machine."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
