"""MLflow: runs of trainings and versions of models. No other file of the house but serving.py imports it.

The store is the one of ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` in the folder the command is started from, with
the artifacts beside it in ``mlruns``. No server is needed.
"""

import fcntl
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from models.checkpoint import ModelLoadError, tagger_digest
from pipeline.errors import ModelError, StoreError

DIGEST_TAG = "concord.digest"
BUNDLE = "bundle"
LONGEST_PARAMETER = 6000
PARAMETERS_A_BATCH = 100
_REFERENCE = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[\w.-]+)|/(?P<version>\d+))")
_ABSENT = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class TrackingError(StoreError):
    """The tracking store cannot be reached or refuses; the same command may be tried again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVersion:
    """A version in the registry.

    Attributes:
        digest: sha256 in hex over the bundle, as written down when it was registered; None if it was not.
        source: where the store keeps the bundle.
    """

    name: str
    version: int
    digest: str | None
    source: str


class TrainingRun(Protocol):
    """A run in a tracking store; every method may raise TrackingError."""

    run_id: str

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Write the metrics of one epoch."""

    def log_file(self, path: Path) -> None:
        """Keep a file with the run."""

    def register(self, bundle: Path, *, name: str, digest: str, alias: str | None = None) -> ModelVersion:
        """Keep a bundle with the run and make it the newest version of a model."""

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
        with _explained("metrics could not be logged"):
            batch = [Metric(key, float(value), now, step) for key, value in metrics.items()]
            self._client.log_batch(self.run_id, metrics=batch)

    def log_file(self, path: Path) -> None:
        """Keep a file with the run."""
        with _explained(f"{path.name} could not be logged"):
            self._client.log_artifact(self.run_id, str(path))

    def register(self, bundle: Path, *, name: str, digest: str, alias: str | None = None) -> ModelVersion:
        """Keep a bundle with the run and make it the newest version of a model, unless this run has done so before."""
        with _explained(f"the bundle could not be registered as {name}"):
            version = self._registered(name, digest) or self._register(bundle, name, digest)
            if alias is not None:
                self._client.set_registered_model_alias(name, alias, str(version.version))
        return version

    def close(self, status: RunStatus) -> None:
        """End the run."""
        with _explained("the run could not be closed"):
            self._client.set_terminated(self.run_id, status=status)

    def _registered(self, name: str, digest: str) -> ModelVersion | None:
        for found in self._client.search_model_versions(f"run_id = '{self.run_id}'"):
            if found.name == name and found.tags.get(DIGEST_TAG) == digest:
                return _model_version(found)
        return None

    def _register(self, bundle: Path, name: str, digest: str) -> ModelVersion:
        self._client.log_artifacts(self.run_id, str(bundle), BUNDLE)
        _create_model(self._client, name)
        source = f"{self._client.get_run(self.run_id).info.artifact_uri}/{BUNDLE}"
        tags = {DIGEST_TAG: digest}
        return _model_version(self._client.create_model_version(name, source, run_id=self.run_id, tags=tags))


def tracking_uri() -> str:
    """Give the store's address."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path.cwd() / 'mlflow.db'}"


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
    client = _open_client()
    with _explained("the run could not be opened"):
        if run_id is not None and _reopen(client, run_id):
            return MlflowRun(client, run_id)
        run = client.create_run(_experiment_id(client, experiment), run_name=name, tags=dict(tags))
        _log_parameters(client, run.info.run_id, parameters)
    return MlflowRun(client, run.info.run_id)


def is_reference(model: str) -> bool:
    """Say whether a model is named by its place in the registry."""
    return model.startswith("models:/")


def resolve(reference: str) -> ModelVersion:
    """Find the version that ``models:/NAME@ALIAS`` or ``models:/NAME/VERSION`` means now.

    Raises:
        ModelError: when there is no such version.
        TrackingError: when the store cannot be reached.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ModelError(f"{reference}: expected models:/NAME@ALIAS or models:/NAME/VERSION")
    _check_store_exists(reference)
    client = _open_client()
    name, alias, version = match["name"], match["alias"], match["version"]
    with _explained(f"{reference} could not be looked up", absent=reference):
        if alias is not None:
            found = client.get_model_version_by_alias(name, alias)
        else:
            found = client.get_model_version(name, version)
    return _model_version(found)


def fetch(version: ModelVersion, *, cache: Path | None = None) -> Path:
    """Bring a version's bundle to this machine, once, and check it against its digest.

    Args:
        cache: the folder of all bundles; ``CONCORD_CACHE``, else the user's cache folder, if None. Workers on
            other machines must see it too.

    Raises:
        ModelError: when the bundle is not what was registered.
        TrackingError: when it cannot be brought.
    """
    folder = (cache or cache_folder()) / "bundles"
    if version.digest is not None and (folder / version.digest).is_dir():
        return _checked(folder / version.digest, version)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".incoming-") as incoming:
        _silence()
        from mlflow.artifacts import download_artifacts

        with _explained(f"the bundle of {version.name} version {version.version} could not be fetched"):
            fetched = Path(
                download_artifacts(artifact_uri=version.source, dst_path=incoming, tracking_uri=tracking_uri())
            )
        target = folder / tagger_digest(_checked(fetched, version))
        try:
            fetched.rename(target)
        except OSError:
            # Another process was faster; its bundle bears the same digest.
            if not target.is_dir():
                raise
    return target


def cache_folder() -> Path:
    """Give the folder where fetched bundles are kept."""
    chosen = os.environ.get("CONCORD_CACHE")
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "concord"


def _open_client() -> Any:
    _silence()
    from mlflow import MlflowClient

    uri = tracking_uri()
    # Processes that meet on a fresh sqlite file break one another's migrations, so they come in one by one.
    with _explained(f"the store {uri} could not be opened"), _locked(_sqlite_file(uri)):
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


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


@contextmanager
def _locked(database: Path | None) -> Iterator[None]:
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{database}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_store_exists(reference: str) -> None:
    database = _sqlite_file(tracking_uri())
    if database is not None and not database.exists():
        raise ModelError(
            f"{reference}: there is no registry at {tracking_uri()}; "
            "set MLFLOW_TRACKING_URI, or train a model here first"
        )


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


def _model_version(found: Any) -> ModelVersion:
    """Read what MLflow gives, whose version is text over HTTP and a number from sqlite."""
    return ModelVersion(
        name=found.name, version=int(found.version), digest=found.tags.get(DIGEST_TAG), source=found.source
    )


def _create_model(client: Any, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _checked(bundle: Path, version: ModelVersion) -> Path:
    where = f"{version.name} version {version.version}"
    try:
        digest = tagger_digest(bundle)
    except ModelLoadError as error:
        raise ModelError(f"{where}: {error}") from error
    if version.digest is not None and digest != version.digest:
        raise ModelError(
            f"{where}: expected a bundle of digest {version.digest[:12]}, got {digest[:12]} in {bundle}; "
            "the files are not what was registered"
        )
    return bundle


@contextmanager
def _explained(action: str, *, absent: str | None = None) -> Iterator[None]:
    """Turn what MLflow raises into our errors.

    Args:
        absent: what was looked up; that it does not exist is then the model's fault and not the store's.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if absent is not None and error.error_code in _ABSENT:
            raise ModelError(f"{absent}: not in the registry {tracking_uri()}: {error}") from error
        raise TrackingError(f"{tracking_uri()}: {action}: {error}") from error
    except OSError as error:
        raise TrackingError(f"{tracking_uri()}: {action}: {error}") from error
