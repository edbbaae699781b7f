"""Runs as MLflow records them, read from what each run has written in its own folder.

A record is read as often as needed and sent as far as MLflow lacks it, so a run does not need MLflow while it works:
what could not be sent when it ended is sent by ``concord registry sync``. Sending a record twice changes nothing.
"""

import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path, PurePosixPath

from concord.pipeline.errors import InputError
from concord.pipeline.storage.output_paths import OutputPath, read_bytes
from concord.workflows.console import warn
from concord.workflows.registry.mlflow_client import Dataset, Run, RunStatus, TrackingError, has_ended_at, open_run
from concord.workflows.registry.model_versions import ModelVersion, register

EXPERIMENT = "concord"


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """Metrics of one step, measured at a time in milliseconds since 1970."""

    step: int
    time_ms: int
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """A bundle that a run registers; description and tags are shown beside the version."""

    bundle: Path
    name: str
    alias: str | None
    description: str
    tags: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """A run, as the files of its folder tell it.

    Attributes:
        folder: of the training or the collection.
        key: identifies the run in any store.
        started_ms, ended_ms: in milliseconds since 1970; None while it works.
        status: None while it works.
        files: to store with the run, from its folder, by the paths under which MLflow keeps them.
    """

    folder: OutputPath
    key: str
    experiment: str
    started_ms: int
    ended_ms: int | None
    status: RunStatus | None
    parameters: Mapping[str, object]
    tags: Mapping[str, str]
    datasets: Sequence[Dataset] = ()
    metrics: Sequence[Metrics]
    files: Mapping[str, OutputPath]
    registration: Registration | None = None

    def open(self) -> Run:
        """Open the run in the store, a new one or that with the same key."""
        return open_run(
            experiment=self.experiment,
            name=self.folder.name,
            parameters=self.parameters,
            tags={**self.tags, **{f"sha256 {read.name}": read.sha256 for read in self.datasets}},
            datasets=self.datasets,
            key=self.key,
            started_ms=self.started_ms,
        )

    def is_sent(self) -> bool:
        """Return whether the store has all of it: a run is closed last."""
        return self.ended_ms is not None and has_ended_at(self.ended_ms, experiment=self.experiment, key=self.key)


def unsent(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the runs of a folder that the store lacks, the oldest first, of all of them, the newest first.

    They are sent in this order, so the store has all that are older than one that it has.
    """
    return list(takewhile(lambda record: not record.is_sent(), records))[::-1]


def send(record: RunRecord) -> ModelVersion | None:
    """Send a run that has ended to the store, and return the version that it registers, if any.

    Raises:
        InputError: when one of its files is not in its folder.
        TrackingError: when the store cannot be reached; what it has received is not sent again next time.
        ModelError: when the bundle to register is incomplete.
    """
    if record.status is None:
        raise ValueError(f"{record.folder}: the run is still in progress")
    files = {name: _read_inside(record.folder, path) for name, path in record.files.items()}
    run = record.open()
    for metrics in record.metrics:
        run.log_metrics(metrics.values, step=metrics.step, time_ms=metrics.time_ms)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = PurePosixPath(name)
            copy = Path(folder) / path.name
            copy.write_bytes(content)
            run.log_file(copy, folder=None if path.parent == PurePosixPath() else str(path.parent))
    version = None
    if new := record.registration:
        version = register(
            new.bundle, name=new.name, run_id=run.run_id, alias=new.alias, description=new.description, tags=new.tags
        )
    run.close(record.status, time_ms=record.ended_ms)
    return version


def send_or_warn(records: Iterable[RunRecord], folder: OutputPath) -> ModelVersion | None:
    """Send the runs of a folder that the store lacks; if it does not answer, warn and name the command for later.

    Returns:
        The version that the newest run registers, if any.
    """
    version = None
    try:
        for record in unsent(records):
            version = send(record)
    except TrackingError as error:
        warn(f"all results are on disk, but MLflow could not record them: {error}\n  {describe_sync(folder)}")
        return None
    return version


def describe_sync(folder: OutputPath) -> str:
    """Return how to send the runs of a folder later."""
    return f"To send them later: concord registry sync {shlex.quote(str(folder))}"


@dataclass(slots=True)
class LiveRecord:
    """The record of a run in progress, which follows what the run writes in its folder as long as MLflow answers."""

    read: Callable[[], RunRecord]
    _run: Run | None = field(default=None, init=False)
    _sent: int = field(default=0, init=False)
    _failed: bool = field(default=False, init=False)

    def update(self) -> None:
        """Send the metrics that are new; if MLflow does not answer, warn."""
        # Not tried again until the end, since every failed call takes seconds.
        if self._failed:
            return
        record = self.read()
        try:
            self._run = self._run or record.open()
            for metrics in record.metrics[self._sent :]:
                self._run.log_metrics(metrics.values, step=metrics.step, time_ms=metrics.time_ms)
            self._sent = len(record.metrics)
        except TrackingError as error:
            self._failed = True
            warn(f"MLflow does not answer; the run goes on, and is recorded when it ends. {error}")


def _read_inside(folder: OutputPath, path: OutputPath) -> bytes:
    """Read a file of a folder; InputError when it is not there, or a link that leads elsewhere."""
    if isinstance(path, Path) and isinstance(folder, Path) and not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{path}: expected a file in the folder of the run, got a link that leads elsewhere")
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise InputError(f"{path}: expected a file of the run, found no such file") from None
