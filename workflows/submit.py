"""``concord submit``: send an annotation job to a Ray cluster, follow it, and stop it, by Ray's own job client.

Concord's code, the job and the bundled models that it needs are sent. Input, output and a model given as a folder are
not: every node must see them under the same absolute path. A cluster that cannot be reached is a StoreError.
"""

import asyncio
import hashlib
import logging
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from concord.models.errors import ConcordError, ConfigError
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.errors import StoreError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.parsing.resolve_parser import parser_for
from concord.pipeline.parsing.stanza_packages import EMBEDDED_PACKAGES
from concord.pipeline.storage.files import without_secrets
from concord.workflows.annotation.job import with_settings_of_collection
from concord.workflows.console import Answer, info, warn
from concord.workflows.registry import bundled_names, find_tagger

PACKAGE = Path(__file__).absolute().parents[1]
"""The import package; in a checkout its subfolders are links, which must not be resolved."""
JOB_NAME = "job.yaml"
STOP_SECONDS = 300
"""How long a stopped job may take to finish its shards; Ray's default is 3 seconds."""
POLL_SECONDS = 1.0
_DIGEST = "concord.job"
"""Key of a submission's metadata, which the cluster keeps: the digest of the job."""


def submit_job(
    config: AnnotateConfig, *, address: str, name: str, submission_id: str | None, python: str, wait: bool
) -> Answer:
    """Send a job, unless the same one is still pending or running, and follow it to its end.

    Args:
        name: of the job, usually that of its file.
        submission_id: of the job on the cluster; None for its name and the time, as in ``nightly-20261121-021500``.
        python: command of the Python on the cluster's head node in which Concord's dependencies are installed.
    """
    # Only what was set: an explicit default would count as the user's choice.
    values = config.model_dump(mode="json", exclude_unset=True)
    job: bytes = yaml.safe_dump(values, sort_keys=True, allow_unicode=True).encode()
    digest = hashlib.sha256(job).hexdigest()
    with _connected(address) as client, tempfile.TemporaryDirectory() as folder:
        if submission_id is None and (submission_id := _running(client, digest)):
            info(f"{submission_id}: the same job has not ended; nothing to send")
        else:
            submission_id = client.submit_job(
                submission_id=submission_id or f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}",
                entrypoint=f"exec {shlex.quote(python)} -m concord annotate {JOB_NAME}",
                runtime_env={"working_dir": str(pack(job, config, Path(folder))), "env_vars": _variables()},
                metadata={_DIGEST: digest},
            )
            info(f"{submission_id}: sent to {address}")
        if wait:
            _follow(client, submission_id)
        return _result(client, submission_id)


def stop_job(submission_id: str, *, address: str) -> Answer:
    """Ask a job to stop, which leaves its current shards ``executor.drain_seconds``, and wait until it has."""
    with _connected(address) as client:
        if client.stop_job(submission_id):
            info(f"{submission_id}: stopping; its current shards have executor.drain_seconds to finish")
        _await_end(client, submission_id)
        return replace(_result(client, submission_id), exit_code=0)


def pack(job: bytes, config: AnnotateConfig, folder: Path) -> Path:
    """Write an archive of the code, the bundled models that a job needs, and the job; return its path.

    Its bytes depend on nothing else, since Ray uploads an archive that it has only once.
    """
    bundled, is_known = set(bundled_names()), "package" in config.parser.model_fields_set
    with suppress(ConcordError):  # the output may be one that only the cluster sees
        config, _ = with_settings_of_collection(config, OutputFolder(config.output.path))
        is_known = True
    unused = bundled - {config.tagger.model}
    if is_known and config.tagger.model in bundled:
        parser = parser_for(find_tagger(config.tagger.model).parser, config.parser)
        unused |= set(EMBEDDED_PACKAGES) - {parser.package}
    content = folder / "content"
    shutil.copytree(PACKAGE, content / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__", *unused))
    (content / JOB_NAME).write_bytes(job)
    os.utime(content / JOB_NAME, (PACKAGE.stat().st_mtime,) * 2)
    return Path(shutil.make_archive(str(folder / "package"), "zip", content))


def _variables() -> dict[str, str]:
    """Return the environment of the job.

    Raises:
        ConfigError: when the address of MLflow holds a password, which the cluster would display.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if urlsplit(uri).password is not None:
        raise ConfigError(
            f"MLFLOW_TRACKING_URI: expected an address without a password, got {without_secrets(uri)} with one, which "
            "the cluster would display; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD where the job runs"
        )
    passed = ("RAY_AUTH_MODE", "CONCORD_CACHE", "MLFLOW_TRACKING_URI")
    variables = {name: os.environ[name] for name in passed if name in os.environ}
    return {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), "PYTHONUNBUFFERED": "1", **variables}


@contextmanager
def _connected(address: str) -> Iterator[JobSubmissionClient]:
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"--address: expected a job server's URL, such as http://head:8265, got {address!r}")
    logging.getLogger("ray.dashboard").setLevel(logging.WARNING)
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        os.environ.pop(name, None)  # Ray would prefer it to the address
    try:
        yield JobSubmissionClient(address)
    except (OSError, aiohttp.ClientError) as error:
        raise StoreError(
            f"{address}: no Ray job server answers ({type(error).__name__}); "
            "start one with 'ray start --head', or choose another --address"
        ) from error
    except AuthenticationError as error:
        raise ConcordError(
            f"{address}: authentication failed; RAY_AUTH_MODE, which is {os.environ['RAY_AUTH_MODE']!r}, and the token "
            "in RAY_AUTH_TOKEN or ~/.ray/auth_token must be those of the cluster"
        ) from error
    except RuntimeError as error:  # Ray has no type for what its job server refuses
        raise ConcordError(f"{address}: the job server refused this: {str(error).strip().splitlines()[-1]}") from error


def _running(client: JobSubmissionClient, digest: str) -> str | None:
    """Return the id of a submission of the same job that has not ended, if there is one."""
    same = (job for job in client.list_jobs() if (job.metadata or {}).get(_DIGEST) == digest)
    return next((job.submission_id for job in same if job.submission_id and not job.status.is_terminal()), None)


def _follow(client: JobSubmissionClient, submission_id: str) -> None:
    """Copy the output of a job to stderr until it ends."""

    async def tail() -> None:
        async for lines in client.tail_job_logs(submission_id):
            info(lines.rstrip("\n"))

    try:
        asyncio.run(tail())
    except (RuntimeError, aiohttp.ClientError) as error:
        warn(f"lost the log of {submission_id} ({error}); waiting for the job to end")
    except KeyboardInterrupt:
        info(f"{submission_id} keeps running; run the same command to follow it again")
        raise
    _await_end(client, submission_id)


def _await_end(client: JobSubmissionClient, submission_id: str) -> None:
    while not client.get_job_status(submission_id).is_terminal():
        time.sleep(POLL_SECONDS)


def _result(client: JobSubmissionClient, submission_id: str) -> Answer:
    """Return how a submission is; its exit code is that of the job, or 0 if it has not ended."""
    details = client.get_job_info(submission_id)
    failed = details.status in {JobStatus.FAILED, JobStatus.STOPPED}
    code = (details.driver_exit_code or 1) if failed else 0
    values: dict[str, Any] = {"submission_id": submission_id, "status": str(details.status), "exit_code": code}
    return Answer(values=values, text=f"{submission_id}  {details.status}", exit_code=code)
