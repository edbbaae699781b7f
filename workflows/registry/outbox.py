"""What a run has to tell the tracking store, on disk before the store hears of it.

The record stands beside the results, in ``tracking.json``. It is sent as the run goes on and when it ends; what a
store that is down has missed, ``concord registry sync`` sends later. To send it twice changes nothing.
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from concord.models.config import Config
from concord.pipeline.errors import InputError
from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.files import file_sha256
from concord.workflows.console import warn
from concord.workflows.environment import has_ended, process_name
from concord.workflows.registry.mlflow_client import Dataset, Run, RunStatus, TrackingError, open_run
from concord.workflows.registry.model_versions import ModelVersion, register

ENTRY_NAME = "tracking.json"
EXPERIMENT = "concord"
COLLECTION_OUTBOX = Path("_run/tracking")
"""Below an annotated collection: a folder for each generation."""


class Registration(Config):
    """A bundle to register."""

    bundle: str
    """Its folder, below that of the record."""
    name: str
    alias: str | None = None


class Metrics(Config):
    """What was measured at one step."""

    step: int
    time_ms: int
    """Milliseconds since 1970."""
    values: dict[str, float]


class OutboxEntry(Config):
    """All that the store is to know of a run."""

    format_version: Literal[1] = 1
    key: str
    """Names the run in any store."""
    experiment: str
    name: str
    process: str
    """Who is at work on it (environment.process_name)."""
    started_ms: int
    ended_ms: int | None = None
    parameters: dict[str, str]
    tags: dict[str, str]
    datasets: list[Dataset] = Field(default_factory=list)
    metrics: list[Metrics] = Field(default_factory=list)
    files: list[str] = Field(default_factory=list)
    """Paths below the record's folder."""
    registration: Registration | None = None
    status: RunStatus | None = None
    """None while it is at work."""
    sent: bool = False
    """Whether a store has taken all of it."""

    @property
    def is_in_progress(self) -> bool:
        """Whether the run goes on, as far as one can tell from this host."""
        return self.status is None and not has_ended(self.process)


class TrackedRun:
    """A run at work: every fact goes to disk, and to the store as long as it answers."""

    def __init__(self, folder: Path, record: OutboxEntry, *, run: Run | None) -> None:
        """Take the record's folder, the record, and the run in the store if it could be opened."""
        self._folder = folder
        self._record = record
        self._run = run

    def log_metrics(self, values: Mapping[str, float], *, step: int) -> None:
        """Write metrics of a step; of an epoch that is done again those written before give way."""
        measured = Metrics(step=step, time_ms=_now(), values=dict(values))
        earlier = [
            metrics
            for metrics in self._record.metrics
            if metrics.step != step or metrics.values.keys().isdisjoint(values)
        ]
        self._write(metrics=[*earlier, measured])
        if self._run is None:
            return
        try:
            self._run.log_metrics(measured.values, step=step, time_ms=measured.time_ms)
        except TrackingError as error:
            # A store that is down is asked again at the end: each vain call takes seconds.
            self._run = None
            warn(f"the tracking store is told when the run ends. {error}")

    def end(
        self, status: RunStatus, *, files: Sequence[str] = (), registration: Registration | None = None
    ) -> ModelVersion | None:
        """Write the end of the run down and send the whole record; a store that is down costs a warning."""
        self._write(status=status, ended_ms=_now(), files=list(files), registration=registration)
        return send_or_warn(self._folder)

    def _write(self, **changes: Any) -> None:
        self._record = write_entry(self._folder, self._record.model_copy(update=changes))


def start_run(
    folder: Path,
    *,
    experiment: str,
    name: str,
    parameters: Mapping[str, object],
    tags: Mapping[str, str],
    datasets: Sequence[Dataset] = (),
) -> TrackedRun:
    """Open a run in the store, or go on with the one whose record stands in the folder.

    Raises:
        TrackingError: when the store cannot be reached.
    """
    standing = existing_entry(folder)
    record = OutboxEntry(
        key=standing.key if standing is not None else uuid.uuid4().hex,
        experiment=experiment,
        name=name,
        process=process_name(),
        started_ms=standing.started_ms if standing is not None else _now(),
        parameters={key: str(value) for key, value in parameters.items()},
        tags=dict(tags),
        datasets=list(datasets),
        metrics=standing.metrics if standing is not None else [],
    )
    run = _open(record)
    return TrackedRun(folder, write_entry(folder, record), run=run)


def log_finished_run(
    folder: Path,
    *,
    experiment: str,
    name: str,
    seconds: float,
    parameters: Mapping[str, object],
    tags: Mapping[str, str],
    metrics: Mapping[str, float],
    files: Sequence[str],
) -> None:
    """Tell of a run that has ended well just now; a store that is down costs a warning, and nothing is lost.

    Args:
        seconds: how long it took.
    """
    now = _now()
    record = OutboxEntry(
        key=uuid.uuid4().hex,
        experiment=experiment,
        name=name,
        process=process_name(),
        started_ms=now - int(1000 * seconds),
        ended_ms=now,
        parameters={key: str(value) for key, value in parameters.items()},
        tags=dict(tags),
        metrics=[Metrics(step=0, time_ms=now, values=dict(metrics))],
        files=list(files),
        status="FINISHED",
    )
    write_entry(folder, record)
    send_or_warn(folder)


def send(folder: Path) -> ModelVersion | None:
    """Bring the store up to what the record in a folder says, and give the version that was registered.

    Raises:
        InputError: when there is no such record, or one of its files is gone.
        TrackingError: when the store cannot be reached; what it has taken so far is not sent anew the next time.
        ModelError: when the bundle to be registered is not whole.
    """
    record = read_entry(folder)
    for name in record.files:
        if not (folder / name).is_file():
            raise InputError(f"{folder / ENTRY_NAME}: files: expected {folder / name}, found no such file")
    run = _open(record)
    for metrics in record.metrics:
        run.log_metrics(metrics.values, step=metrics.step, time_ms=metrics.time_ms)
    for name in record.files:
        parent = Path(name).parent.as_posix()
        run.log_file(folder / name, folder=parent if parent != "." else None)
    version = None
    if record.registration is not None:
        wanted = record.registration
        version = register(folder / wanted.bundle, name=wanted.name, run_id=run.run_id, alias=wanted.alias)
    # A record without an end is that of a run that was killed.
    run.close(record.status or "KILLED", time_ms=record.ended_ms)
    write_entry(folder, record.model_copy(update={"sent": True}))
    return version


def send_or_warn(folder: Path) -> ModelVersion | None:
    """Send a record as ``send`` does; a store that is down costs a warning that says how to send it later."""
    try:
        return send(folder)
    except TrackingError as error:
        warn(
            "all results are on disk, but the tracking store does not have them; "
            f"'concord registry sync {folder}' sends them later. {error}"
        )
        return None


def existing_entry(folder: Path) -> OutboxEntry | None:
    """Read the record of a folder; None when there is none.

    Raises:
        InputError, ConfigError: as ``read_entry`` does.
    """
    return read_entry(folder) if (folder / ENTRY_NAME).exists() else None


def read_entry(folder: Path) -> OutboxEntry:
    """Read the record of a folder.

    Raises:
        InputError: when there is none, or no JSON in it.
        ConfigError: when it is not one that this version writes.
    """
    path = folder / ENTRY_NAME
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected the record of a run: {error}") from error
    return OutboxEntry.from_mapping(values, where=str(path))


def write_entry(folder: Path, record: OutboxEntry) -> OutboxEntry:
    """Write a record, in one step."""
    path = folder / ENTRY_NAME
    with store_errors(path):
        # A loss may be no number, which JSON of other makers cannot say.
        write_atomically(path, json.dumps(record.model_dump(), indent=1).encode() + b"\n", staging=folder)
    return record


def find_entries(places: Sequence[Path]) -> list[Path]:
    """Give the folders with a record, each once, in the order of the places.

    A place is the folder of a training or of an annotated collection, or one that holds some of these.
    """
    of_collection = f"{COLLECTION_OUTBOX}/*/{ENTRY_NAME}"
    patterns = (ENTRY_NAME, of_collection, f"*/{ENTRY_NAME}", f"*/{of_collection}")
    found = (path.parent for place in places for pattern in patterns for path in sorted(place.glob(pattern)))
    return list(dict.fromkeys(found))


def describe_dataset(place: str, role: str) -> Dataset:
    """Describe a file that a run reads."""
    return Dataset(place=place, sha256=file_sha256(place), role=role)


def _open(record: OutboxEntry) -> Run:
    return open_run(
        experiment=record.experiment,
        name=record.name,
        parameters=record.parameters,
        tags={**record.tags, **{f"sha256 {read.name}": read.sha256 for read in record.datasets}},
        datasets=record.datasets,
        key=record.key,
        started_ms=record.started_ms,
    )


def _now() -> int:
    return int(time.time() * 1000)
