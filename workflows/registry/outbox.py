"""The outbox: what a run logs to MLflow, written to disk first.

An entry is the file ``tracking.json`` beside the results of a training, or in a folder of an annotated collection. It
is sent while the run works and when it ends; if the store is down, ``concord registry sync`` sends it later. Sending it
twice changes nothing. Functions that open the store raise TrackingError when it cannot be reached.
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from concord.models.config import Config
from concord.models.regular_files import read_regular
from concord.pipeline.errors import InputError
from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.storage.guarded import guard
from concord.workflows.console import warn
from concord.workflows.environment import has_ended, process_name
from concord.workflows.registry.mlflow_client import Dataset, Run, RunStatus, TrackingError, open_run
from concord.workflows.registry.model_versions import ModelVersion, register

ENTRY_NAME = "tracking.json"
EXPERIMENT = "concord"
COLLECTION_OUTBOX = Path("_run/tracking")
"""Below an annotated collection; it has a folder per generation."""


class Registration(Config):
    """A bundle to register."""

    bundle: str = Field(pattern=r"^\w[\w.-]*$")
    """The name of its folder, in that of the entry."""
    name: str
    alias: str | None = None
    description: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    """Shown beside the version, with the description."""


class Metrics(Config):
    """Metrics of one step."""

    step: int
    time_ms: int
    """Milliseconds since 1970."""
    values: dict[str, float]


class OutboxEntry(Config):
    """Everything about a run that is logged to the store."""

    format_version: Literal[1] = 1
    key: str
    """Identifies the run in any store."""
    experiment: str
    name: str
    process: str
    """The process that works on the run (environment.process_name)."""
    started_ms: int
    ended_ms: int | None = None
    parameters: dict[str, str]
    tags: dict[str, str]
    datasets: list[Dataset] = Field(default_factory=list)
    metrics: list[Metrics] = Field(default_factory=list)
    files: list[str] = Field(default_factory=list)
    """Paths relative to the entry's folder."""
    registration: Registration | None = None
    status: RunStatus | None = None
    """None while the run is in progress."""
    sent: bool = False
    """Whether a store has received all of it."""

    @property
    def is_in_progress(self) -> bool:
        """Whether the run has not ended and its process, as far as this host can tell, is alive."""
        return self.status is None and not has_ended(self.process)


class TrackedRun:
    """A run in progress: everything is written to the outbox, and sent to the store as long as it answers."""

    def __init__(self, folder: Path, entry: OutboxEntry, *, run: Run) -> None:
        self._folder = folder
        self._entry = entry
        self._run: Run | None = run

    def log_metrics(self, values: Mapping[str, float], *, step: int) -> None:
        """Log metrics of a step; those of an epoch that is repeated are replaced."""
        measured = Metrics(step=step, time_ms=_now(), values=dict(values))
        earlier = [it for it in self._entry.metrics if it.step != step or it.values.keys().isdisjoint(values)]
        self._write(metrics=[*earlier, measured])
        if self._run is None:
            return
        try:
            self._run.log_metrics(measured.values, step=step, time_ms=measured.time_ms)
        except TrackingError as error:
            # Not tried again until the end, since every failed call takes seconds.
            self._run = None
            warn(f"the tracking store does not answer; the run is sent when it ends. {error}")

    def end(
        self, status: RunStatus, *, files: Sequence[str] = (), registration: Registration | None = None
    ) -> ModelVersion | None:
        """Record the end of the run and send it; if the store is down, warn."""
        self._write(status=status, ended_ms=_now(), files=list(files), registration=registration)
        return send_or_warn(self._folder)

    def _write(self, **changes: Any) -> None:
        self._entry = write_entry(self._folder, self._entry.model_copy(update=changes))


def start_run(
    folder: Path,
    *,
    experiment: str,
    name: str,
    parameters: Mapping[str, object],
    tags: Mapping[str, str],
    datasets: Sequence[Dataset] = (),
) -> TrackedRun:
    """Open a run in the store, or the earlier one whose entry is in the folder."""
    entry = _new_entry(experiment=experiment, name=name, parameters=parameters, tags=tags, datasets=list(datasets))
    earlier = existing_entry(folder)
    if earlier is not None:
        kept = {"key": earlier.key, "started_ms": earlier.started_ms, "metrics": earlier.metrics}
        entry = entry.model_copy(update=kept)
    run = _open(entry)
    return TrackedRun(folder, write_entry(folder, entry), run=run)


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
    """Log a run of the given seconds that has just succeeded; if the store is down, warn."""
    entry = _new_entry(experiment=experiment, name=name, parameters=parameters, tags=tags)
    ended = {
        "started_ms": entry.started_ms - int(1000 * seconds),
        "ended_ms": entry.started_ms,
        "metrics": [Metrics(step=0, time_ms=entry.started_ms, values=dict(metrics))],
        "files": list(files),
        "status": "FINISHED",
    }
    write_entry(folder, entry.model_copy(update=ended))
    send_or_warn(folder)


def send(folder: Path) -> ModelVersion | None:
    """Send the entry of a folder to the store and return the version that it registers, if any.

    Raises:
        InputError: when there is no entry, or one of its files is gone.
        TrackingError: when the store cannot be reached; what it has received is not sent again next time.
        ModelError: when the bundle to register is incomplete.
    """
    entry = read_entry(folder)
    for name in entry.files:
        if not (folder / name).is_file() or not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"{folder / ENTRY_NAME}: files: expected {folder / name}, found no such file in the folder"
            )
    run = _open(entry)
    for metrics in entry.metrics:
        run.log_metrics(metrics.values, step=metrics.step, time_ms=metrics.time_ms)
    for name in entry.files:
        parent = Path(name).parent.as_posix()
        run.log_file(folder / name, folder=parent if parent != "." else None)
    version = None
    if registration := entry.registration:
        shown = registration.model_dump(include={"name", "alias", "description", "tags"})
        version = register(folder / registration.bundle, run_id=run.run_id, **shown)
    # Without a status, the run was killed.
    run.close(entry.status or "KILLED", time_ms=entry.ended_ms)
    write_entry(folder, entry.model_copy(update={"sent": True}))
    return version


def send_or_warn(folder: Path) -> ModelVersion | None:
    """Send an entry as ``send`` does; if the store is down, warn and say how to send it later."""
    try:
        return send(folder)
    except TrackingError as error:
        warn(
            "all results are on disk, but not in the tracking store; "
            f"'concord registry sync {folder}' sends them later. {error}"
        )
        return None


def existing_entry(folder: Path) -> OutboxEntry | None:
    """Read the entry of a folder; return None if there is none."""
    return read_entry(folder) if (folder / ENTRY_NAME).exists() else None


def read_entry(folder: Path) -> OutboxEntry:
    """Read the entry of a folder.

    Raises:
        InputError: when there is none, or it is not JSON.
        ConfigError: when it has unknown or missing keys.
    """
    path = folder / ENTRY_NAME
    try:
        values = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected the tracking file of a run: {error}") from error
    return OutboxEntry.from_mapping(values, where=str(path))


def write_entry(folder: Path, entry: OutboxEntry) -> OutboxEntry:
    """Write an entry atomically and return it."""
    path = folder / ENTRY_NAME
    with store_errors(path):
        # Not model_dump_json: a loss may be NaN, which only Python's JSON can represent.
        write_atomically(path, json.dumps(entry.model_dump(), indent=1).encode() + b"\n", staging=folder)
    return entry


def find_entries(places: Sequence[Path]) -> list[Path]:
    """Return the folders with an entry, each once, in the order of the places.

    A place is the folder of a training or of an annotated collection, or a folder that contains some of these.
    """
    of_collection = f"{COLLECTION_OUTBOX}/*/{ENTRY_NAME}"
    patterns = (ENTRY_NAME, of_collection, f"*/{ENTRY_NAME}", f"*/{of_collection}")
    folders = [path.parent for place in places for pattern in patterns for path in sorted(place.glob(pattern))]
    for folder in folders:
        if folder.parent.match(str(COLLECTION_OUTBOX)):
            guard(folder.parents[2])
    return list(dict.fromkeys(folders))


def describe_dataset(place: str, role: str) -> Dataset:
    """Return a file that a run reads, with its hash."""
    return Dataset(place=place, sha256=file_sha256(Path(place)), role=role)


def _new_entry(*, parameters: Mapping[str, object], tags: Mapping[str, str], **fields: Any) -> OutboxEntry:
    return OutboxEntry(
        key=uuid.uuid4().hex,
        process=process_name(),
        started_ms=_now(),
        parameters={key: str(value) for key, value in parameters.items()},
        tags=dict(tags),
        **fields,
    )


def _open(entry: OutboxEntry) -> Run:
    return open_run(
        experiment=entry.experiment,
        name=entry.name,
        parameters=entry.parameters,
        tags={**entry.tags, **{f"sha256 {read.name}": read.sha256 for read in entry.datasets}},
        datasets=entry.datasets,
        key=entry.key,
        started_ms=entry.started_ms,
    )


def _now() -> int:
    return int(time.time() * 1000)
