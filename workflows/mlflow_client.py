"""MLflow's client, runs in its store, and what they say of the code and the machine.

Apart from serving.py, no other module imports MLflow.

The store is at ``MLFLOW_TRACKING_URI``, or else ``mlflow.db`` in the current folder, with the artifacts in ``mlruns``
beside it; no server is needed. Every function that uses it raises TrackingError when it cannot be reached or refuses.
"""

import logging
import os
import platform
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from concord.pipeline.errors import StoreError
from concord.pipeline.storage.locks import exclusive

LONGEST_PARAMETER = 6000
PARAMETERS_A_BATCH = 100
EXPERIMENT = "concord"
"""Of trainings, registrations and annotations."""
REFUSAL = "INVALID_PARAMETER_VALUE"
"""Error code of a request that is invalid in itself, so that sending it again would fail again."""
_PATIENCE_SECONDS = 5.0
CHECKOUT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = ("torch", "stanza", "pyarrow", "ray", "mlflow", "safetensors", "numpy")
COMMIT_TAG = "mlflow.source.git.commit"
DIRTY_TAG = "concord.git.dirty"


class TrackingError(StoreError):
    """The tracking store cannot be reached, or refuses a request; the same command may be tried again."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        """Store the message and MLflow's error code, such as ``RESOURCE_ALREADY_EXISTS``."""
        super().__init__(message)
        self.code = code


class Run:
    """A run in the store, opened by ``open_run``."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self.run_id = run_id

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log the metrics of one step in a single call, since every call takes 26 ms or more."""
        from mlflow.entities import Metric

        with mlflow_errors("metrics could not be logged"):
            batch = [Metric(key, float(value), int(1000 * time.time()), step) for key, value in metrics.items()]
            self._client.log_batch(self.run_id, metrics=batch)

    def log_text(self, name: str, text: str) -> None:
        """Store a text with the run, as a file of this name."""
        with mlflow_errors(f"{name} could not be logged"):
            self._client.log_text(self.run_id, text, name)

    def set_tag(self, key: str, value: str) -> None:
        """Write a tag, or write it again."""
        with mlflow_errors(f"the tag {key} could not be written"):
            self._client.set_tag(self.run_id, key, value)


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
        raise TrackingError(f"{tracking_uri()}: {action}: {_reason(error)}", code=error.error_code) from error
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


@contextmanager
def open_run(*, experiment: str, name: str, parameters: Mapping[str, object], tags: Mapping[str, str]) -> Iterator[Run]:
    """Yield a new run, which ends as finished, as killed after an interrupt, or as failed after any other error.

    Args:
        parameters: logged as text; MLflow does not allow them to change later.
    """
    client = open_client()
    from mlflow.entities import Param

    with mlflow_errors("the run could not be opened"):
        run_id = client.create_run(_experiment_id(client, experiment), tags=dict(tags), run_name=name).info.run_id
        texts = [Param(key, str(value)[:LONGEST_PARAMETER]) for key, value in parameters.items()]
        for start in range(0, len(texts), PARAMETERS_A_BATCH):
            client.log_batch(run_id, params=texts[start : start + PARAMETERS_A_BATCH])
    try:
        yield Run(client, run_id)
    except BaseException as error:
        with suppress(TrackingError), mlflow_errors("the run could not be closed"):
            client.set_terminated(run_id, status="KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
        raise
    with mlflow_errors("the run could not be closed"):
        client.set_terminated(run_id, status="FINISHED")


def download(source: str, folder: Path) -> Path:
    """Download an artifact of the store into a folder."""
    _configure_mlflow()
    from mlflow.artifacts import download_artifacts

    with mlflow_errors(f"{source} could not be downloaded"):
        return Path(download_artifacts(artifact_uri=source, dst_path=str(folder), tracking_uri=tracking_uri()))


def code_tags() -> dict[str, str]:
    """Return the commit of the code and whether files differ from it; empty without a git checkout."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {COMMIT_TAG: commit, DIRTY_TAG: str(bool(changes)).lower()}


def describe_environment() -> dict[str, object]:
    """Return machine and versions as plain values."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: version(name) for name in DISTRIBUTIONS},
    }


def _reason(error: Exception) -> str:
    """Return MLflow's message: of a server that does not answer the innermost cause, of a database no SQL."""
    request, failed, causes = str(error).partition("\n[SQL: ")[0].partition(" failed with exception ")
    cause = causes.rpartition(": ")[2].rstrip("\"')")
    return f"{request} failed: {cause}" if failed else request


def _configure_mlflow() -> None:
    """Set MLflow's variables before it is imported, unless the user has set them, and quiet its loggers.

    MLflow itself retries what a server does not answer, as its variables say.
    """
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


def _git(*arguments: str) -> str | None:
    # Code that is installed inside another checkout does not have its commit.
    if not (CHECKOUT / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
