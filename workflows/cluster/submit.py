"""``concord submit``: send an annotation job to a Ray cluster, follow it, stop it, and report its result.

Input, output and a model given as a folder are not sent: every node must see them under the same absolute path. A
cluster that cannot be reached is a StoreError.
"""

import asyncio
import json
import logging
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import aiohttp
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from concord.models.errors import ConcordError, ConfigError
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.errors import StoreError
from concord.pipeline.executors.ray_auth import resolve_auth_mode
from concord.pipeline.output.manifest import Outcome
from concord.pipeline.output.output_folder import OutputFolder
from concord.workflows.annotation.job import with_settings_of_collection
from concord.workflows.annotation.summary import equation
from concord.workflows.cluster.package import (
    JOB_NAME,
    STOP_SECONDS,
    is_finished,
    pack,
    tracking_environment,
    work_digest,
)
from concord.workflows.console import Answer, info, warn

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 120.0
# Keys of a submission's metadata, which the cluster keeps: digests of the job, and of what it finds to do.
_JOB = "concord.job"
_WORK = "concord.work"
_ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmitOptions:
    """Where and how to submit a job.

    Attributes:
        name: of the job, usually that of its file.
        submission_id: of the job on the cluster; made from name, date and the work to be done if None.
        python: command of the Python on the cluster's head node in which Concord's dependencies are installed.
    """

    address: str
    name: str
    submission_id: str | None = None
    python: str = "python"
    wait: bool = True


def submit_job(config: AnnotateConfig, options: SubmitOptions) -> Answer:
    """Submit a job, unless it was submitted before and there is nothing new to do, and follow it."""
    job, folder = config, OutputFolder(config.output.path)
    with suppress(ConcordError):  # an output that only the cluster sees
        config, _ = with_settings_of_collection(config, folder)
    content, job_digest = pack(job, completed=config)
    work = work_digest(config, job_digest=job_digest)
    metadata = {_JOB: job_digest, _WORK: work or ""}
    first_id = options.submission_id or default_id(options.name, work or job_digest)
    with tempfile.NamedTemporaryFile(suffix=".zip") as archive, _connected(options.address) as client:
        archive.write(content)
        archive.flush()
        send = partial(
            client.submit_job,
            entrypoint=f"exec {shlex.quote(options.python)} -m concord annotate {JOB_NAME} --executor ray --json",
            entrypoint_num_cpus=0,
            runtime_env={"working_dir": archive.name, "env_vars": _environment(config)},
            metadata=metadata,
        )
        running = _running(client, metadata) if options.submission_id is None else None
        done = work if work is not None and is_finished(folder) else None
        submission_id, earlier = running or _submit(client, first_id, send, done=done)
        if earlier is None:
            info(f"{submission_id}: sent to {options.address}")
        elif earlier.is_terminal():
            info(
                f"{submission_id}: an earlier submission has succeeded; nothing to do. To send it again, use --id NAME"
            )
        else:
            info(f"{submission_id}: an earlier submission is {earlier.lower()}; nothing to send")
        if not options.wait:
            status = str(client.get_job_status(submission_id))
            return Answer(values={"submission_id": submission_id, "status": status}, text=f"{submission_id}  {status}")
        if earlier is None or not earlier.is_terminal():
            _follow(client, submission_id)
        return _result(client, submission_id)


def stop_job(submission_id: str, *, address: str) -> Answer:
    """Ask a job to stop (see ``executor.drain_seconds``), wait until it has, and return its result.

    The exit code is 1 if it took too long and was killed.
    """
    with _connected(address) as client:
        status = _status(client, submission_id)
        if status is None:
            running = [job.submission_id for job in client.list_jobs() if not job.status.is_terminal()]
            raise ConfigError(
                f"--stop {submission_id}: expected a submission at {address}; "
                f"running: {', '.join(filter(None, running)) or 'none'}"
            )
        if status.is_terminal():
            info(f"{submission_id}: already {status.lower()}; nothing to stop")
            return replace(_result(client, submission_id), exit_code=0)
        asked = time.monotonic()
        client.stop_job(submission_id)
        info(f"{submission_id}: stopping; its current shards have executor.drain_seconds to finish")
        _await_end(client, submission_id)
        seconds = time.monotonic() - asked
        answer = _result(client, submission_id)
    killed = answer.values["exit_code"] is None and seconds >= STOP_SECONDS
    if killed:
        ending = f"killed after {STOP_SECONDS} s; committed shards are kept, submit the same job to continue"
    elif answer.values["exit_code"] is None:
        ending = "stopped before its first shard"
    else:
        ending = f"stopped in {seconds:.0f} s; submit the same job to continue"
    values = {**answer.values, "stop_seconds": round(seconds, 1)}
    return Answer(values=values, text=f"{answer.text}\n{ending}", exit_code=int(killed))


def default_id(name: str, digest: str) -> str:
    """Return an id of job, date and digest: the same work on the same day is the same submission."""
    return f"{name}-{datetime.now(UTC).date().isoformat()}-{digest[:8]}"


@contextmanager
def _connected(address: str) -> Iterator[JobSubmissionClient]:
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"--address: expected a job server's URL, such as http://head:8265, got {address!r}")
    # Also done by the command line, before Ray was imported; here for the variable that is passed to the job.
    resolve_auth_mode(address)
    logging.getLogger("ray.dashboard").setLevel(logging.WARNING)
    # Ray would prefer these to the address.
    hidden = {name: os.environ.pop(name) for name in _ADDRESS_VARIABLES if name in os.environ}
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
    finally:
        os.environ.update(hidden)


def _running(client: JobSubmissionClient, metadata: Mapping[str, str]) -> tuple[str, JobStatus] | None:
    """Return the submission of a job that has not ended, and its status; None if there is none."""
    for job in client.list_jobs():
        existing = job.metadata or {}
        if job.submission_id is not None and not job.status.is_terminal() and existing.get(_JOB) == metadata[_JOB]:
            if existing.get(_WORK) != metadata[_WORK]:
                info(
                    f"{job.submission_id}: sent before the input or the tagger changed; submit again when it has ended"
                )
            return job.submission_id, job.status
    return None


def _submit(
    client: JobSubmissionClient, first_id: str, send: Callable[..., object], *, done: str | None
) -> tuple[str, JobStatus | None]:
    """Send a job unless it was sent before; otherwise a further one gets a number behind its id.

    A further one is sent if the earlier one failed, was stopped, or succeeded but did other work.

    Args:
        send: submits the job under the ``submission_id`` that it gets.
        done: the work for which a submission that succeeded is enough; None where there is none.

    Returns:
        The id, and the status of the earlier submission if there is one.
    """
    attempt, submission_id = 1, first_id
    while True:
        status = _status(client, submission_id)
        if status is None and _send(send, submission_id):
            return submission_id, None
        status = status or _status(client, submission_id)
        if status == JobStatus.SUCCEEDED:
            metadata = client.get_job_info(submission_id).metadata or {}
            if done is not None and metadata.get(_WORK) == done:
                return submission_id, status
            info(f"{submission_id}: an earlier submission has succeeded; a new one looks for what has changed since")
        elif status in {JobStatus.FAILED, JobStatus.STOPPED}:
            info(f"{submission_id}: an earlier submission has {status.lower()}; a new one continues from there")
        else:
            return submission_id, status
        attempt += 1
        submission_id = f"{first_id}-{attempt}"


def _send(send: Callable[..., object], submission_id: str) -> bool:
    """Send a job; return False if another process has sent it in the meantime.

    A cluster that has just started answers before it can accept jobs, so this retries for a while.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            send(submission_id=submission_id)
        except OSError:
            if time.monotonic() >= deadline:
                raise
        except RuntimeError as error:
            # Ray has no exception types for these, only the text.
            if "already exists" in str(error):
                return False
            if "No available agent" not in str(error):
                raise ConcordError(f"{submission_id}: the cluster refused the job: {error}") from error
            if time.monotonic() >= deadline:
                raise ConcordError(
                    f"{submission_id}: the cluster refused the job: its head node has no agent that starts jobs; "
                    "dashboard_agent.log of the head says why. If two clusters share a machine, start one with another "
                    "--dashboard-agent-listen-port"
                ) from error
        else:
            return True
        time.sleep(POLL_SECONDS)


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
    details = client.get_job_info(submission_id)
    result = _last_object(client.get_job_logs(submission_id))
    # Ray records no exit code of a stopped job, but the answer of the job has it.
    code = details.driver_exit_code if details.driver_exit_code is not None else (result or {}).get("exit_code")
    values = {
        "submission_id": submission_id,
        "status": str(details.status),
        "exit_code": code,
        "message": details.message,
        "result": result,
    }
    succeeded = details.status == JobStatus.SUCCEEDED
    lines = [f"{submission_id}  {details.status}" + (f", exit code {code}" if code is not None else "")]
    if result is None:
        lines += [] if succeeded else [str(details.message)]
    elif "error" in result:
        lines.append(str(result["error"]))
    else:
        outcome = Outcome(**{name: result[name] for name in ("annotated", "unchanged", "dead_letters")})
        lines += [
            equation(outcome, read=result["read"]),
            f"output  {result['output']}",
            f"report  {result['report'] or 'none'}",
        ]
    return Answer(values=values, text="\n".join(lines), exit_code=0 if succeeded else code or 1)


def _last_object(log: str) -> dict[str, Any] | None:
    """Find the answer of ``--json`` in a log."""
    for line in reversed(log.splitlines()):
        with suppress(ValueError):
            if line.startswith("{") and isinstance(answer := json.loads(line), dict):
                return answer
    return None
