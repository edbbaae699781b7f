"""MLflow: its client, and runs in its store. No other file of the house but serving.py imports it.

The store is the one of ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` in the folder the command is started from, with
the artifacts beside it in ``mlruns``. No server is needed.
"""

import logging
import os
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from concord.models.config import Config
from concord.pipeline.errors import ModelError, StoreError
from concord.workflows.environment import has_ended, process_name
from concord.workflows.registry.file_locks import exclusive

LONGEST_PARAMETER = 6000
LONGEST_DIGEST = 36
PARAMETERS_A_BATCH = 100
METRICS_A_BATCH = 1000
KEY_TAG = "concord.run"
PROCESS_TAG = "concord.process"
REFUSAL = "INVALID_PARAMETER_VALUE"
"""The code of an error that lies in what was sent, and comes again whenever it is."""
_ABSENT = {"RESOURCE_DOES_NOT_EXIST", REFUSAL}

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class TrackingError(StoreError):
    """The tracking store cannot be reached or refuses; the same command may be tried again."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        """Take the message and MLflow's own word for the error, such as ``RESOURCE_ALREADY_EXISTS``."""
        super().__init__(message)
        self.code = code


class Dataset(Config):
    """A file that a run has read."""

    place: str
    sha256: str
    """In hex."""
    role: str
    """What it was read for, such as training or validation."""

    @property
    def name(self) -> str:
        """Its folder and name."""
        return f"{Path(self.place).parent.name}/{Path(self.place).name}"


class Run:
    """A run in the store; opened by ``open_run``. Whatever is told twice stands there once."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self.run_id = run_id

    def log_metrics(self, metrics: Mapping[str, float], *, step: int, time_ms: int) -> None:
        """Write the metrics of one step in one call (a call each takes 26 ms and more).

        Args:
            time_ms: when they were measured, in milliseconds since 1970; a metric of the same time is the same one.
        """
        from mlflow.entities import Metric

        with explained("metrics could not be logged"):
            batch = [Metric(key, float(value), time_ms, step) for key, value in metrics.items()]
            for start in range(0, len(batch), METRICS_A_BATCH):
                self._client.log_batch(self.run_id, metrics=batch[start : start + METRICS_A_BATCH])

    def log_file(self, path: Path, *, folder: str | None = None) -> None:
        """Keep a file with the run, in a folder of the run's if one is named."""
        with explained(f"{path.name} could not be logged"):
            self._client.log_artifact(self.run_id, str(path), folder)

    def close(self, status: RunStatus, *, time_ms: int | None = None) -> None:
        """End the run.

        Args:
            time_ms: when it ended, in milliseconds since 1970; now if None.
        """
        with explained("the run could not be closed"):
            self._client.set_terminated(self.run_id, status=status, end_time=time_ms)


def tracking_uri() -> str:
    """Give the store's address."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path.cwd() / 'mlflow.db'}"


def open_client() -> Any:
    """Give MLflow's client of the store, which a local database is made for.

    Raises:
        TrackingError: when a database cannot be opened; that a server is down shows at the first call only.
    """
    _silence()
    from mlflow import MlflowClient

    uri = tracking_uri()
    # Processes that meet on a fresh sqlite file break one another's migrations, so they come in one by one.
    database = _sqlite_file(uri)
    lock = exclusive(Path(f"{database}.lock")) if database is not None else nullcontext()
    with explained(f"the store {uri} could not be opened"), lock:
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


@contextmanager
def explained(action: str, *, absent: str | None = None) -> Iterator[None]:
    """Turn what MLflow raises into our errors.

    Args:
        absent: what was looked up; that it does not exist is then the model's fault and not the store's.

    Raises:
        ModelError: when what was looked up does not exist.
        TrackingError: for any other error of MLflow or the network.
    """
    _silence()
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if absent is not None and error.error_code in _ABSENT:
            raise ModelError(f"{absent}: not in the registry {tracking_uri()}: {error}") from error
        raise TrackingError(f"{tracking_uri()}: {action}: {_reason(error)}", code=error.error_code) from error
    except OSError as error:
        raise TrackingError(f"{tracking_uri()}: {action}: {error}") from error


def has_store() -> bool:
    """Say whether there may be a store: a local database that nobody has made yet is none."""
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
    """Open a run, or take an earlier one up again; runs that processes of this host left open are closed.

    Args:
        parameters: logged as text; MLflow lets none of them change later.
        datasets: shown among the run's inputs.
        key: names the run in any store: if one bears it already, that is the one.
        started_ms: when it began, in milliseconds since 1970; now if None.

    Raises:
        TrackingError: when the store cannot be reached.
    """
    client = open_client()
    with explained("the run could not be opened"):
        experiment_id = _experiment_id(client, experiment)
        _close_stale(client, experiment_id)
        tags = {**tags, PROCESS_TAG: process_name(), **({KEY_TAG: key} if key is not None else {})}
        found = _find(client, experiment_id, key) if key is not None else None
        run = found or client.create_run(experiment_id, started_ms, tags=tags, run_name=name)
        run_id = run.info.run_id
        if found is not None:
            client.update_run(run_id, status="RUNNING")
            _log_tags(client, run_id, tags)
        _log_parameters(client, run_id, {key: parameters[key] for key in parameters if key not in run.data.params})
        _log_datasets(client, run_id, datasets)
    return Run(client, run_id)


def download(source: str, folder: Path) -> Path:
    """Bring what the store keeps at an address into a folder.

    Raises:
        TrackingError: when it cannot be brought.
    """
    _silence()
    from mlflow.artifacts import download_artifacts

    with explained(f"{source} could not be fetched"):
        return Path(download_artifacts(artifact_uri=source, dst_path=str(folder), tracking_uri=tracking_uri()))


def _reason(error: Exception) -> str:
    """Give MLflow's message; where a server does not answer, only the innermost of the causes that it nests."""
    request, failed, causes = str(error).partition(" failed with exception ")
    cause = causes.rpartition(": ")[2].rstrip("\"')")
    return f"{request} failed: {cause}" if failed else request


def _silence() -> None:
    """Set MLflow's own switches before it is imported; what the user has set stays."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # Its defaults try for four minutes before they say that a server is down.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    import mlflow  # noqa: F401  # sets its loggers up, which is then undone

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It warns of every vain try; the error that follows says it once.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


def _sqlite_file(uri: str) -> Path | None:
    path = uri.removeprefix("sqlite:///")
    return Path(path) if path != uri and path and path != ":memory:" else None


def _experiment_id(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    database = _sqlite_file(tracking_uri())
    # Left to itself, MLflow puts artifacts into the working directory of whoever reads the database.
    location = (database.absolute().parent / "mlruns").as_uri() if database is not None else None
    return str(client.create_experiment(name, artifact_location=location))


def _close_stale(client: Any, experiment_id: str) -> None:
    """Close the runs of processes that were killed: MLflow would show them as running for ever."""
    open_here = f"attributes.status = 'RUNNING' and tags.`{PROCESS_TAG}` LIKE '{socket.gethostname()}:%'"
    for run in client.search_runs([experiment_id], filter_string=open_here):
        if has_ended(run.data.tags[PROCESS_TAG]):
            client.set_terminated(run.info.run_id, status="KILLED")


def _find(client: Any, experiment_id: str, key: str) -> Any:
    found = client.search_runs([experiment_id], filter_string=f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
    return found[0] if found else None


def _log_tags(client: Any, run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])


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
            # It knows local files by two names of one kind, and says so each time.
            warnings.filterwarnings(
                "ignore", message="The specified dataset source can be interpreted in multiple ways"
            )
            source = resolve_dataset_source(dataset.place)
        found = MetaDataset(source, name=dataset.name, digest=dataset.sha256[:LONGEST_DIGEST])
        tags = [InputTag("mlflow.data.context", dataset.role), InputTag("sha256", dataset.sha256)]
        inputs.append(DatasetInput(found._to_mlflow_entity(), tags))
    if inputs:
        client.log_inputs(run_id, inputs)
