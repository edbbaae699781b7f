"""Sending an annotation job to a running Ray cluster, following it, stopping it, and giving its result.

Input, output and a model given as a folder do not travel: every node must see them under the same absolute path.
"""

import asyncio
import json
import logging
import os
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from concord.models.config import ConfigError
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.errors import ConcordError, StoreError
from concord.pipeline.executors.ray_auth import resolve_auth_mode
from concord.workflows.annotation.summary import equation
from concord.workflows.cluster.package import JOB_NAME, STOP_SECONDS, pack, tracking_environment
from concord.workflows.console import Answer, info, warn

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 120.0
_ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmitOptions:
    """Where a job goes.

    Attributes:
        address: of the cluster's job server.
        name: what the job is called; the job file's name, as a rule.
        submission_id: under which the cluster knows it; made from name, day and content if None.
        python: what the cluster's head calls the Python in which Concord's packages are installed.
        wait: follow the job to its end.
    """

    address: str
    name: str
    submission_id: str | None = None
    python: str = "python"
    wait: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class _Parcel:
    """What is sent: an archive, and how it is started there."""

    archive: Path
    command: str
    environment: Mapping[str, str]


def run(config: AnnotateConfig, options: SubmitOptions) -> Answer:
    """Send a job, or find that it was sent, and follow it.

    Raises:
        ConfigError: when the archive is too large, or the address of MLflow's store holds a password.
        StoreError: when the cluster cannot be reached.
        ConcordError: when it refuses the job.
    """
    package, job_digest = pack(config)
    wanted = options.submission_id or default_id(options.name, job_digest)
    with _archive(package) as archive, _connected(options.address) as client:
        parcel = _Parcel(
            archive=archive,
            command=f"exec {shlex.quote(options.python)} -m concord annotate {JOB_NAME} --executor ray --json",
            environment=_environment(config),
        )
        submission_id, standing = _submit(client, wanted, parcel)
        _tell(submission_id, standing, options.address)
        if not options.wait:
            status = str(client.get_job_status(submission_id))
            values = {"submission_id": submission_id, "status": status}
            return Answer(values=values, text=f"{submission_id}  {status}")
        if standing is None or not standing.is_terminal():
            _follow(client, submission_id)
        return _result(client, submission_id)


def stop(submission_id: str, *, address: str) -> Answer:
    """Ask a job to finish the shards it is at and end, and wait until it has.

    Returns:
        the job's result; exit code 1 when it was killed because that took too long.

    Raises:
        ConfigError: when the cluster knows no such submission.
        StoreError: when the cluster cannot be reached.
    """
    with _connected(address) as client:
        standing = _status(client, submission_id)
        if standing is None:
            running = [job.submission_id for job in client.list_jobs() if not job.status.is_terminal()]
            raise ConfigError(
                f"--stop {submission_id}: expected a submission that {address} knows; "
                f"running: {', '.join(filter(None, running)) or 'none'}"
            )
        if standing.is_terminal():
            info(f"{submission_id}: has {standing.lower()} before; nothing to stop")
            return replace(_result(client, submission_id), exit_code=0)
        asked = time.monotonic()
        client.stop_job(submission_id)
        info(f"{submission_id}: asked to stop; it finishes the shards it is at, which may take {STOP_SECONDS} s")
        _await_end(client, submission_id)
        seconds = time.monotonic() - asked
        return _stopped(_result(client, submission_id), seconds=seconds)


def default_id(name: str, job_digest: str) -> str:
    """Name a submission by job, day and content: the same job on the same day is the same submission."""
    return f"{name}-{datetime.now(UTC).date().isoformat()}-{job_digest[:8]}"


@contextmanager
def _archive(package: bytes) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(prefix="concord-", suffix=".zip") as archive:
        archive.write(package)
        archive.flush()
        yield Path(archive.name)


@contextmanager
def _connected(address: str) -> Iterator[JobSubmissionClient]:
    # The command line has done so before Ray was imported; the job must be told as well.
    resolve_auth_mode(address)
    logging.getLogger("ray.dashboard").setLevel(logging.WARNING)
    # Ray would take these before the address it is given.
    aside = {name: os.environ.pop(name) for name in _ADDRESS_VARIABLES if name in os.environ}
    try:
        yield JobSubmissionClient(address)
    except (OSError, aiohttp.ClientError) as error:
        raise StoreError(
            f"{address}: no Ray job server answers ({type(error).__name__}); "
            "start one with 'ray start --head', or give another --address"
        ) from error
    except AuthenticationError as error:
        raise ConcordError(
            f"{address}: refused us; RAY_AUTH_MODE, which is {os.environ['RAY_AUTH_MODE']!r}, and the token in "
            "RAY_AUTH_TOKEN or ~/.ray/auth_token must be those of the cluster"
        ) from error
    finally:
        os.environ.update(aside)


def _submit(client: JobSubmissionClient, wanted: str, parcel: _Parcel) -> tuple[str, JobStatus | None]:
    """Send a job unless it was sent before; one that failed or was stopped is sent again under a further id.

    Returns:
        the id, and the status of what was sent before.
    """
    for attempt in count(1):
        submission_id = wanted if attempt == 1 else f"{wanted}-{attempt}"
        standing = _status(client, submission_id)
        if standing is None and _send(client, submission_id, parcel):
            return submission_id, None
        standing = standing or _status(client, submission_id)
        if standing not in {JobStatus.FAILED, JobStatus.STOPPED}:
            return submission_id, standing
        info(f"{submission_id}: was sent before and has {standing.lower()}; a further submission goes on from there")
    raise RuntimeError("unreachable: the count has no end")


def _send(client: JobSubmissionClient, submission_id: str, parcel: _Parcel) -> bool:
    """Send a job; false when somebody else has sent it meanwhile.

    A cluster that has just started answers before it can take a job, so it is asked for a while.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            client.submit_job(
                submission_id=submission_id,
                entrypoint=parcel.command,
                entrypoint_num_cpus=0,
                runtime_env={"working_dir": str(parcel.archive), "env_vars": dict(parcel.environment)},
            )
        except OSError:
            if time.monotonic() >= deadline:
                raise
        except RuntimeError as error:
            # Ray has no types for these; the text is all there is.
            if "already exists" in str(error):
                return False
            if "No available agent" not in str(error) or time.monotonic() >= deadline:
                raise ConcordError(f"{submission_id}: the cluster refused the job: {_hint(error)}") from error
        else:
            return True
        time.sleep(POLL_SECONDS)


def _hint(error: RuntimeError) -> str:
    if "No available agent" not in str(error):
        return str(error)
    return (
        "its head node has no agent that starts jobs; dashboard_agent.log of the head tells why. Where two clusters "
        "share a machine, start one with another --dashboard-agent-listen-port"
    )


def _tell(submission_id: str, standing: JobStatus | None, address: str) -> None:
    if standing is None:
        info(f"{submission_id}: sent to {address}")
    elif standing.is_terminal():
        info(f"{submission_id}: was sent before and has succeeded; nothing to do. --id NAME sends it once more")
    else:
        info(f"{submission_id}: was sent before and is {standing.lower()}; nothing is sent again")


def _environment(config: AnnotateConfig) -> dict[str, str]:
    return {
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
        "RAY_AUTH_MODE": os.environ["RAY_AUTH_MODE"],
        "PYTHONUNBUFFERED": "1",
        **{name: os.environ[name] for name in ("CONCORD_CACHE",) if name in os.environ},
        **tracking_environment(config),
    }


def _status(client: JobSubmissionClient, submission_id: str) -> JobStatus | None:
    try:
        return client.get_job_status(submission_id)
    except RuntimeError as error:
        if "status code 404" in str(error):
            return None
        raise ConcordError(f"{submission_id}: {error}") from error


def _follow(client: JobSubmissionClient, submission_id: str) -> None:
    """Write the job's output to stderr until it ends."""

    async def tail() -> None:
        async for lines in client.tail_job_logs(submission_id):
            info(lines.rstrip("\n"))

    try:
        asyncio.run(tail())
    except (RuntimeError, aiohttp.ClientError) as error:
        warn(f"the log of {submission_id} broke off ({error}); waiting for its end")
    except KeyboardInterrupt:
        info(f"{submission_id} goes on without us; the same command follows it again")
        raise
    _await_end(client, submission_id)


def _await_end(client: JobSubmissionClient, submission_id: str) -> None:
    while not client.get_job_status(submission_id).is_terminal():
        time.sleep(POLL_SECONDS)


def _result(client: JobSubmissionClient, submission_id: str) -> Answer:
    details = client.get_job_info(submission_id)
    succeeded = details.status == JobStatus.SUCCEEDED
    result = _last_object(client.get_job_logs(submission_id))
    # Of a job that was stopped Ray keeps no exit code, but the job itself has told it.
    code = details.driver_exit_code if details.driver_exit_code is not None else (result or {}).get("exit_code")
    values = {
        "submission_id": submission_id,
        "status": str(details.status),
        "exit_code": code,
        "message": details.message,
        "result": result,
    }
    lines = [
        f"{submission_id}  {details.status}" + (f", exit code {code}" if code is not None else ""),
        *_told(result),
    ]
    if not succeeded and result is None:
        lines.append(str(details.message))
    return Answer(values=values, text="\n".join(lines), exit_code=0 if succeeded else code or 1)


def _stopped(answer: Answer, *, seconds: float) -> Answer:
    """Tell how a job ended that was asked to."""
    killed = answer.values["exit_code"] is None and seconds >= STOP_SECONDS
    if killed:
        told = f"killed after {STOP_SECONDS} s; what is committed stays, the same job goes on from there"
    elif answer.values["exit_code"] is None:
        told = "it had not begun with its shards"
    else:
        told = f"drained in {seconds:.0f} s"
    values = {**answer.values, "stop_seconds": round(seconds, 1)}
    return Answer(values=values, text=f"{answer.text}\n{told}", exit_code=int(killed))


def _told(result: Mapping[str, Any] | None) -> list[str]:
    if result is None:
        return []
    if "error" in result:
        return [str(result["error"])]
    return [
        equation(result),
        f"output  {result['output']}",
        f"report  {result['report'] or 'none'}",
    ]


def _last_object(log: str) -> dict[str, Any] | None:
    """Find the answer of ``--json`` among the lines of a log."""
    for line in reversed(log.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return None
