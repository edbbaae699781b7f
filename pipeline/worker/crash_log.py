"""What is known of attempts at a shard that did not end: which record was being done, and which workers died.

A worker that dies takes its memory with it, so what the next one needs to know is in a small file for each shard
below ``_run/attempts``. A shard is tried as a whole ``executor.attempts`` times; then its documents are probed one by
one, and a mark beside that file names the one in progress. A document whose worker has died twice while it was alone
is left out, and the others are done as planned: the probe only finds documents that kill, so that kills from outside
change no byte. A shard backs off only if workers go on dying on it as a whole.

The files outlive the process, not the machine, so they are not flushed to disk. They are removed when the run is
finished.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TypeVar

import orjson
from pydantic import ValidationError

from concord.models.config import Config
from concord.pipeline.errors import ShardError, StoreError
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.storage.atomic_writes import store_errors, write_unsynced
from concord.pipeline.storage.output_paths import OutputPath, list_files, output_path, read_bytes, remove
from concord.pipeline.worker.shard_progress import OnShardProgress, ShardProgress

logger = logging.getLogger(__name__)

DEATHS_ALONE = 2
"""Deaths of a worker on one record alone after which it is left out: a signal from outside may hit any once."""

PROGRESS_SECONDS = 5.0
"""Between two notes of a worker on how far its shard is."""

_MARK, _PROGRESS = ".mark", ".progress"
_ALWAYS_PLAUSIBLE = 5
"""Left-out documents of a shard that never count as implausibly many."""

Kind = TypeVar("Kind", bound=Config)
Stage = Literal["parse", "tag"]
Cause = Literal["worker_died", "time_limit"]

_DESCRIPTIONS: dict[Cause, str] = {"worker_died": "died", "time_limit": "was killed because it took too long"}


class WorkPlace(Config):
    """What a worker is doing: one record alone, or the shard as a whole."""

    number: int | None = None
    """The record's number in the shard, from 0; None for the whole shard."""
    stage: Stage | None = None

    @property
    def description(self) -> str:
        """The place in words."""
        return "" if self.number is None else f" on record {self.number} alone ({self.stage})"


class Suspect(Config):
    """A record that was being done alone when its worker died."""

    number: int
    stage: Stage
    cause: Cause
    deaths: int


class ShardAttempts(Config):
    """The attempts at a shard that ended with the death of a worker."""

    deaths: int = 0
    """Deaths of workers that were not doing one record alone, until the probe was done."""
    probed: int = 0
    """Records, from the first, that were done alone or left out."""
    is_probed: bool = False
    """Whether all of them were."""
    deaths_since_probe: int = 0
    """The same, after the probe."""
    suspects: tuple[Suspect, ...] = ()

    @property
    def quarantined(self) -> dict[int, Suspect]:
        """The records to be left out, by number."""
        return {suspect.number: suspect for suspect in self.suspects if suspect.deaths >= DEATHS_ALONE}

    @property
    def description(self) -> str:
        """The attempts in words."""
        alone = [f"{suspect.deaths} on record {suspect.number} alone" for suspect in self.suspects]
        return "workers that died: " + ", ".join(
            [f"{self.deaths + self.deaths_since_probe} on the whole shard", *alone]
        )

    def after_death(self, cause: Cause, at: WorkPlace) -> "ShardAttempts":
        """Return the attempts with one more dead worker."""
        if at.number is None or at.stage is None:
            counted = "deaths_since_probe" if self.is_probed else "deaths"
            return self.model_copy(update={counted: getattr(self, counted) + 1})
        deaths = 1 + sum(suspect.deaths for suspect in self.suspects if suspect.number == at.number)
        suspect = Suspect(number=at.number, stage=at.stage, cause=cause, deaths=deaths)
        others = (other for other in self.suspects if other.number != at.number)
        return self.model_copy(
            update={"suspects": tuple(sorted([*others, suspect], key=lambda suspect: suspect.number))}
        )


class CrashLog:
    """The failed attempts at a plan's shards, which drivers record, and the marks that workers leave, on disk."""

    def __init__(self, plan: Plan) -> None:
        self._folder = output_path(plan.config.output.path) / "_run" / "attempts" / str(plan.generation)
        self._attempts = plan.config.executor.attempts
        self._max_dead_letters = plan.config.max_dead_letters

    def read(self, shard: Shard) -> ShardAttempts:
        """Read what is known of a shard."""
        return _read(self._path(shard), ShardAttempts) or ShardAttempts()

    def read_all(self) -> dict[str, ShardAttempts]:
        """Read the attempts at every shard in which a worker has died, by the shard's name."""
        attempts_of = {path.stem: _read(path, ShardAttempts) for path in list_files(self._folder, "*.json")}
        return {name: attempts for name, attempts in attempts_of.items() if attempts is not None}

    def marked_shards(self) -> set[str]:
        """Return the names of the shards of which workers, most likely of an earlier run, have left marks."""
        return {path.stem for suffix in (_MARK, _PROGRESS) for path in list_files(self._folder, f"*{suffix}")}

    def needs_probe(self, attempts: ShardAttempts) -> bool:
        """Return whether the shard has used up its attempts as a whole, and its documents are to be tried alone."""
        return attempts.deaths >= self._attempts and not attempts.is_probed

    def needs_isolation(self, attempts: ShardAttempts) -> bool:
        """Return whether the shard has used up its attempts as a whole after the probe as well."""
        return attempts.deaths_since_probe >= self._attempts

    def record_probed(self, shard: Shard, probed: int, *, is_done: bool = False) -> ShardAttempts:
        """Remember how many records the probe has passed, so that one that is killed continues from there."""
        attempts = self.read(shard).model_copy(update={"probed": probed, "is_probed": is_done})
        _write(self._path(shard), attempts)
        return attempts

    def in_progress(self, shard: Shard) -> WorkPlace | None:
        """Read what a worker of the shard is doing, or was when it died; None if there is no mark."""
        return _read(self._path(shard, _MARK), WorkPlace)

    @contextmanager
    def mark_in_progress(self, shard: Shard, place: WorkPlace) -> Iterator[None]:
        """Mark what this process is doing while the block runs; if it dies, the mark stays. Blocks may be nested."""
        path = self._path(shard, _MARK)
        before = self.in_progress(shard)
        _write(path, place)
        try:
            yield
        finally:
            if before is None:
                _remove(path)
            else:
                _write(path, before)

    def progress_writer(self, shard: Shard) -> OnShardProgress:
        """Return a function that writes how far a shard is, every few seconds, for a driver in another process."""
        written_at = time.monotonic()

        def write(progress: ShardProgress) -> None:
            nonlocal written_at
            if time.monotonic() - written_at > PROGRESS_SECONDS:
                written_at = time.monotonic()
                # Nobody depends on it.
                with suppress(OSError, StoreError):
                    write_unsynced(self._path(shard, _PROGRESS), orjson.dumps(progress))

        return write

    def read_progress(self, shard: Shard) -> ShardProgress | None:
        """Read how far a shard was a few seconds ago; None if that is not known."""
        try:
            return ShardProgress(**orjson.loads(read_bytes(self._path(shard, _PROGRESS))))
        except (OSError, ValueError, TypeError):
            return None

    def remove_mark(self, shard: Shard) -> None:
        """Remove what a worker that is gone has left."""
        for path in (self._path(shard, _MARK), self._path(shard, _PROGRESS)):
            _remove(path)

    def record_death(self, shard: Shard, cause: Cause, at: WorkPlace | None) -> ShardAttempts:
        """Count a worker's death against what it was doing.

        Raises:
            ShardError: when single documents are hardly at fault, so that trying again would not help.
        """
        at = at or WorkPlace()
        logger.warning("shard %s: its worker %s%s", shard.name, _DESCRIPTIONS[cause], at.description)
        attempts = self.read(shard).after_death(cause, at)
        _write(self._path(shard), attempts)
        fault = self._common_fault(shard, attempts)
        if fault is not None:
            # Once the cause is fixed, the documents get all their attempts again.
            _remove(self._path(shard))
            content = f"{shard.records} records of {', '.join(piece.uri for piece in shard.pieces[:3])}"
            raise ShardError(f"shard {shard.name}: its worker died {fault}; the shard holds {content}")
        return attempts

    def is_implausible(self, left_out: int, shard: Shard) -> bool:
        """Return whether so many documents of a shard were left out that they are hardly at fault themselves."""
        return left_out > max(_ALWAYS_PLAUSIBLE, self._max_dead_letters * shard.records)

    def _common_fault(self, shard: Shard, attempts: ShardAttempts) -> str | None:
        """Say why the deaths are hardly the fault of single documents; None where they may be."""
        if max(attempts.deaths, attempts.deaths_since_probe) >= 2 * self._attempts:
            deaths = attempts.deaths + attempts.deaths_since_probe
            return f"{deaths} times, not on one of its documents but while it loaded, read or wrote"
        if self.is_implausible(len(attempts.quarantined), shard):
            return (
                f"on {len(attempts.quarantined)} documents, each alone: that is the machine, the model or "
                "executor.shard_seconds rather than the documents; --set max_dead_letters=1 continues regardless"
            )
        return None

    def _path(self, shard: Shard, suffix: str = ".json") -> OutputPath:
        return self._folder / f"{shard.name}{suffix}"


def _write(path: OutputPath, value: Config) -> None:
    with store_errors(path):
        write_unsynced(path, orjson.dumps(value.model_dump(mode="json")))


def _remove(path: OutputPath) -> None:
    with store_errors(path):
        remove(path)


def _read(path: OutputPath, kind: type[Kind]) -> Kind | None:
    """Read a file; None if there is none, or one that was cut off when its machine went down."""
    try:
        return kind.model_validate_json(read_bytes(path))
    except (FileNotFoundError, ValidationError):
        return None
