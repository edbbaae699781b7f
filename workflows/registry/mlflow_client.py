"""MLflow's client and runs in its store. Apart from serving.py, no other module imports MLflow.

The store is at ``MLFLOW_TRACKING_URI``, or else ``mlflow.db`` in the current folder, with the artifacts in ``mlruns``
beside it; no server is needed. Every function that uses it raises TrackingError when it cannot be reached or refuses.
"""

import logging
import os
import socket
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from concord.models.config import Config
from concord.pipeline.errors import StoreError
from concord.pipeline.storage.folders import exclusive
from concord.workflows.environment import has_ended, process_name

LONGEST_PARAMETER = 6000
LONGEST_DIGEST = 36
PARAMETERS_A_BATCH = 100
METRICS_A_BATCH = 1000
KEY_TAG = "concord.run"
PROCESS_TAG = "concord.process"
REFUSAL = "INVALID_PARAMETER_VALUE"
"""Error code of a request that is invalid in itself, so that sending it again would fail again."""
_PATIENCE_SECONDS = 5.0

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class TrackingError(StoreError):
    """The tracking store cannot be reached, or refuses a request; the same command may be tried again."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        """Store the message and MLflow's error code, such as ``RESOURCE_ALREADY_EXISTS``."""
        super().__init__(message)
        self.code = code


class NotFoundError(TrackingError):
    """What is asked for does not exist in the store."""


class Dataset(Config):
    """A file that a run reads."""

    place: str
    sha256: str
    """In hex."""
    role: str
    """What it is used for, such as training or validation."""

    @property
    def name(self) -> str:
        """Folder and name of the file."""
        return f"{Path(self.place).parent.name}/{Path(self.place).name}"


class Run:
    """A run in the store, opened by ``open_run``. Logging is idempotent."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self.run_id = run_id

    def log_metrics(self, metrics: Mapping[str, float], *, step: int, time_ms: int) -> None:
        """Log the metrics of one step in a single call, since every call takes 26 ms or more.

        Equal times, in milliseconds since 1970, mean the same measurement.
        """
        from mlflow.entities import Metric

        with mlflow_errors("metrics could not be logged"):
            batch = [Metric(key, float(value), time_ms, step) for key, value in metrics.items()]
            for start in range(0, len(batch), METRICS_A_BATCH):
                self._client.log_batch(self.run_id, metrics=batch[start : start + METRICS_A_BATCH])

    def log_file(self, path: Path, *, folder: str | None = None) -> None:
        """Store a file with the run, in the given folder of the run."""
        with mlflow_errors(f"{path.name} could not be logged"):
            self._client.log_artifact(self.run_id, str(path), folder)

    def close(self, status: RunStatus, *, time_ms: int | None = None) -> None:
        """End the run at a time in milliseconds since 1970; now if None."""
        with mlflow_errors("the run could not be closed"):
            self._client.set_terminated(self.run_id, status=status, end_time=time_ms)


def tracking_uri() -> str:
    """Return the address of the store."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path.cwd() / 'mlflow.db'}"


def open_client() -> Any:
    """Return MLflow's client; a local database is created if there is none, a server is not contacted yet."""
    _configure_mlflow()
    from mlflow import MlflowClient

    uri = tracking_uri()
    # Concurrent migrations of a new SQLite file break each other.
    database = _sqlite_file(uri)
    lock = exclusive(Path(f"{database}.lock")) if database is not None else nullcontext()
    with mlflow_errors(f"the store {uri} could not be opened"), lock:
        if database is not None and database.exists():
            # MLflow waits for a database that another process has locked several times as long.
            with closing(sqlite3.connect(database, timeout=_PATIENCE_SECONDS)) as connection:
                connection.execute("SELECT name FROM sqlite_master")
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


@contextmanager
def mlflow_errors(action: str) -> Iterator[None]:
    """Convert errors of MLflow, its database and the network into a TrackingError."""
    _configure_mlflow()
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except MlflowException as error:
        kind = NotFoundError if error.error_code == "RESOURCE_DOES_NOT_EXIST" else TrackingError
        raise kind(f"{tracking_uri()}: {action}: {_reason(error)}", code=error.error_code) from error
    except (OSError, sqlite3.Error, SQLAlchemyError, ImportError) as error:  # a driver of a database may be missing
        raise TrackingError(f"{tracking_uri()}: {action}: {_reason(error)}; try again later") from error


def every_page(search: Any, **arguments: Any) -> list[Any]:
    """Return the items of all pages of a search."""
    page = search(**arguments)
    items = list(page)
    while page.token:
        page = search(**arguments, page_token=page.token)
        items.extend(page)
    return items


def has_store() -> bool:
    """Return False if the store is a local database that does not exist yet."""
    database = _sqlite_file(tracking_uri())
    return database is None or database.exists()


def open_run(
    *,
    experiment: str,
    name: str,
    parameters: Mapping[str, object],
    tags: Mapping[str, str],
    datasets: Sequence[Dataset] = (),
    key: str | None = None,
    started_ms: int | None = None,
) -> Run:
    """Open a new run, or an earlier one again; runs left open by dead processes of this host are closed.

    Args:
        parameters: logged as text; MLflow does not allow them to change later.
        key: identifies the run in any store; an existing run with this key is opened again.
        started_ms: when it started, in milliseconds since 1970; now if None.
    """
    client = open_client()
    with mlflow_errors("the run could not be opened"):
        from mlflow.entities import RunTag

        experiment_id = _experiment_id(client, experiment)
        _close_stale(client, experiment_id)
        tags = {**tags, PROCESS_TAG: process_name(), **({KEY_TAG: key} if key is not None else {})}
        earlier = _runs_with(client, experiment_id, key) if key else []
        run = earlier[0] if earlier else client.create_run(experiment_id, started_ms, tags=tags, run_name=name)
        run_id = run.info.run_id
        if earlier:
            client.update_run(run_id, status="RUNNING")
            client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        _log_parameters(client, run_id, {key: parameters[key] for key in parameters if key not in run.data.params})
        _log_datasets(client, run_id, datasets)
    return Run(client, run_id)


def has_ended_at(time_ms: int, *, experiment: str, key: str) -> bool:
    """Return whether the store has the run with a key, closed at this time in milliseconds since 1970."""
    client = open_client()
    with mlflow_errors("the run could not be looked up"):
        found = client.get_experiment_by_name(experiment)
        runs = [] if found is None else _runs_with(client, found.experiment_id, key)
        return any(run.info.status != "RUNNING" and run.info.end_time == time_ms for run in runs)


def download(source: str, folder: Path) -> Path:
    """Download an artifact of the store into a folder."""
    _configure_mlflow()
    from mlflow.artifacts import download_artifacts

    with mlflow_errors(f"{source} could not be downloaded"):
        return Path(download_artifacts(artifact_uri=source, dst_path=str(folder), tracking_uri=tracking_uri()))


def _reason(error: Exception) -> str:
    """Return MLflow's message: of a server that does not answer the innermost cause, of a database no SQL."""
    request, failed, causes = str(error).partition("\n[SQL: ")[0].partition(" failed with exception ")
    cause = causes.rpartition(": ")[2].rstrip("\"')")
    return f"{request} failed: {cause}" if failed else request


def _configure_mlflow() -> None:
    """Set MLflow's variables before it is imported, unless the user has set them, and quiet its loggers."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # By default, MLflow retries for four minutes until it reports that a server is down.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    import mlflow  # noqa: F401  # sets the levels of its loggers, which are changed here

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # They report every failed attempt; the error that follows says it once.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


def _sqlite_file(uri: str) -> Path | None:
    path = uri.removeprefix("sqlite:///")
    return Path(path) if path != uri and path and path != ":memory:" else None


def _experiment_id(client: Any, name: str) -> str:
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return str(experiment.experiment_id)
    database = _sqlite_file(tracking_uri())
    # By default, MLflow puts artifacts into the current folder of the process, not beside the database.
    location = (database.absolute().parent / "mlruns").as_uri() if database is not None else None
    return str(client.create_experiment(name, artifact_location=location))


def _runs_with(client: Any, experiment_id: str, key: str) -> list[Any]:
    return list(client.search_runs([experiment_id], f"tags.`{KEY_TAG}` = '{key}'", max_results=1))


def _close_stale(client: Any, experiment_id: str) -> None:
    """Close the runs of processes that were killed, which MLflow would show as running forever."""
    open_here = f"attributes.status = 'RUNNING' and tags.`{PROCESS_TAG}` LIKE '{socket.gethostname()}:%'"
    for run in client.search_runs([experiment_id], filter_string=open_here):
        if has_ended(run.data.tags[PROCESS_TAG]):
            client.set_terminated(run.info.run_id, status="KILLED")


def _log_parameters(client: Any, run_id: str, parameters: Mapping[str, object]) -> None:
    from mlflow.entities import Param

    texts = [Param(key, str(value)[:LONGEST_PARAMETER]) for key, value in parameters.items()]
    for start in range(0, len(texts), PARAMETERS_A_BATCH):
        client.log_batch(run_id, params=texts[start : start + PARAMETERS_A_BATCH])


def _log_datasets(client: Any, run_id: str, datasets: Sequence[Dataset]) -> None:
    from mlflow.data.dataset_source_registry import resolve_dataset_source
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.entities import DatasetInput, InputTag

    inputs = []
    for dataset in datasets:
        with warnings.catch_warnings():
            # MLflow registers two sources for local files, and warns of it each time.
            warnings.filterwarnings("ignore", message="The specified dataset source can be interpreted in multiple")
            source = resolve_dataset_source(dataset.place)
        described = MetaDataset(source, name=dataset.name, digest=dataset.sha256[:LONGEST_DIGEST])
        tags = [InputTag("mlflow.data.context", dataset.role), InputTag("sha256", dataset.sha256)]
        inputs.append(DatasetInput(described._to_mlflow_entity(), tags))
    if inputs:
        client.log_inputs(run_id, inputs)
