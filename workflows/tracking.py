"""MLflow: its client, and runs in its store. No other file of the house but serving.py imports it.

The store is the one of ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` in the folder the command is started from, with
the artifacts beside it in ``mlruns``. No server is needed.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, Protocol

from pipeline.errors import ModelError, StoreError
from workflows.locks import exclusive

LONGEST_PARAMETER = 6000
PARAMETERS_A_BATCH = 100
_ABSENT = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class TrackingError(StoreError):
    """The tracking store cannot be reached or refuses; the same command may be tried again."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        """Take the message and MLflow's own word for the error, such as ``RESOURCE_ALREADY_EXISTS``."""
        super().__init__(message)
        self.code = code


class TrainingRun(Protocol):
    """A run in a tracking store; every method may raise TrackingError."""

    run_id: str

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Write the metrics of one epoch."""

    def log_file(self, path: Path) -> None:
        """Keep a file with the run."""

    def close(self, status: RunStatus) -> None:
        """End the run."""


class MlflowRun:
    """A run in an MLflow store; opened by ``open_run``."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self.run_id = run_id

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Write the metrics of one epoch in one call (a call each takes 26 ms and more)."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        with explained("metrics could not be logged"):
            batch = [Metric(key, float(value), now, step) for key, value in metrics.items()]
            self._client.log_batch(self.run_id, metrics=batch)

    def log_file(self, path: Path) -> None:
        """Keep a file with the run."""
        with explained(f"{path.name} could not be logged"):
            self._client.log_artifact(self.run_id, str(path))

    def close(self, status: RunStatus) -> None:
        """End the run."""
        with explained("the run could not be closed"):
            self._client.set_terminated(self.run_id, status=status)


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
        raise TrackingError(f"{tracking_uri()}: {action}: {error}", code=error.error_code) from error
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
    run_id: str | None = None,
) -> MlflowRun:
    """Open a run, or take an earlier one up again.

    Args:
        parameters: logged as text; MLflow lets none of them change later.
        run_id: the run of a training that was interrupted; a new run if the store does not know it.

    Raises:
        TrackingError: when the store cannot be reached.
    """
    client = open_client()
    with explained("the run could not be opened"):
        if run_id is not None and _reopen(client, run_id):
            return MlflowRun(client, run_id)
        run = client.create_run(_experiment_id(client, experiment), run_name=name, tags=dict(tags))
        _log_parameters(client, run.info.run_id, parameters)
    return MlflowRun(client, run.info.run_id)


def download(source: str, folder: Path) -> Path:
    """Bring what the store keeps at an address into a folder.

    Raises:
        TrackingError: when it cannot be brought.
    """
    _silence()
    from mlflow.artifacts import download_artifacts

    with explained(f"{source} could not be fetched"):
        return Path(download_artifacts(artifact_uri=source, dst_path=str(folder), tracking_uri=tracking_uri()))


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


def _reopen(client: Any, run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        client.update_run(run_id, status="RUNNING")
    except MlflowException as error:
        if error.error_code in _ABSENT:
            return False
        raise
    return True


def _log_parameters(client: Any, run_id: str, parameters: Mapping[str, object]) -> None:
    from mlflow.entities import Param

    texts = [Param(key, str(value)[:LONGEST_PARAMETER]) for key, value in parameters.items()]
    for start in range(0, len(texts), PARAMETERS_A_BATCH):
        client.log_batch(run_id, params=texts[start : start + PARAMETERS_A_BATCH])
