"""Submission: the archive, and what is sent to a job server that only keeps records."""

import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from concord_testing.command_line import concord, concord_json
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus

from concord.workflows import submit
from concord.workflows.annotation.job import read_annotate_job

REQUEST_LIMIT = 100 << 20
"""Bytes that Ray's job server takes."""


class FakeJobServer:
    """Keeps submissions as Ray's job server does."""

    def __init__(self) -> None:
        self.jobs: dict[str, SimpleNamespace] = {}
        self.end: tuple[JobStatus, int] = (JobStatus.FAILED, 3)

    def submit_job(self, *, submission_id: str, **sent: Any) -> str:
        if submission_id in self.jobs:
            raise RuntimeError(f"Traceback ...\nValueError: Job with submission_id {submission_id} already exists")
        details = {"status": JobStatus.PENDING, "driver_exit_code": None, **sent}
        self.jobs[submission_id] = SimpleNamespace(submission_id=submission_id, **details)
        return submission_id

    def stop_job(self, submission_id: str) -> bool:
        was_running = not self.get_job_status(submission_id).is_terminal()
        if was_running:
            self.jobs[submission_id].status = JobStatus.STOPPED
        return was_running

    def get_job_status(self, submission_id: str) -> JobStatus:
        status: JobStatus = self.get_job_info(submission_id).status
        return status

    def get_job_info(self, submission_id: str) -> SimpleNamespace:
        if submission_id not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: Job {submission_id} does not exist.")
        return self.jobs[submission_id]

    def list_jobs(self) -> list[SimpleNamespace]:
        return list(self.jobs.values())

    async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
        yield f"log of {submission_id}\n"
        self.jobs[submission_id].status, self.jobs[submission_id].driver_exit_code = self.end


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeJobServer:
    """Let submissions go to a fake job server, without an archive."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    found = FakeJobServer()
    monkeypatch.setattr(submit, "JobSubmissionClient", lambda _address: found)
    monkeypatch.setattr(submit, "pack", lambda *_: "package.zip")
    return found


@pytest.fixture
def job(tmp_path: Path, tiny_bundle: Path) -> Path:
    """Return the job of four short documents, two to a shard, whose output is ``out`` beside it."""
    texts = (f"Ada King lives in London, at number {number}." for number in range(4))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    job = tmp_path / "tiny.yaml"
    job.write_text(
        f"input: {tmp_path}/in.jsonl\noutput: {tmp_path}/out\ntagger: {{model: {tiny_bundle}}}\n"
        "planning: {shard_bytes: 100}\nexecutor: {actors: 1}\n"
    )
    return job


def pack(folder: Path, **values: object) -> zipfile.ZipFile:
    folder.mkdir()
    config = read_annotate_job(None, values={"input": "in", "output": "out", **values})
    return zipfile.ZipFile(submit.pack(b"input: in\n", config, folder))


def test_an_archive_depends_on_code_models_and_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("__main__.py", "__pycache__/a.pyc", "models/pretrained/entities_bio/w", "models/pretrained/encoder/w")
    for name in names:
        (tmp_path / "concord" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "concord" / name).write_text(name)
    monkeypatch.setattr(submit, "PACKAGE", tmp_path / "concord")
    other, first, second = (pack(tmp_path / name) for name in "123")
    files = {name for name in first.namelist() if not name.endswith("/")}
    assert files == {"concord/__main__.py", "concord/models/pretrained/encoder/w", "job.yaml"}
    assert first.read("job.yaml") == b"input: in\n"
    assert len({Path(str(archive.filename)).read_bytes() for archive in (other, first, second)}) == 1
    own = pack(tmp_path / "4", **{"tagger.model": "entities_bio"})
    assert "concord/models/pretrained/entities_bio/w" in own.namelist()


@pytest.mark.slow(reason="packs every bundled model")
def test_the_largest_archive_is_below_the_limit(tmp_path: Path) -> None:
    for model, parser in (("entities_en_small", "parser_en"), ("entities_multi", "parser_multi")):
        archive = pack(tmp_path / model, **{"tagger.model": model})
        pretrained = {
            name.split("/")[3] for name in archive.namelist() if name.startswith("concord/models/pretrained/")
        }
        assert pretrained - {""} == {parser, "encoder", model}
        assert "concord/pipeline/report/report.html.j2" in archive.namelist()
        assert Path(str(archive.filename)).stat().st_size < 0.9 * REQUEST_LIMIT


def test_what_is_sent(server: FakeJobServer, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(submit, "pack", lambda content, *_: sent.append(content))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    concord_json("submit", job, "--no-wait", "--id", "mine", "--set", "tagger.samples=2", "--python", "/opt/my python")
    arrived = read_annotate_job(None, values=yaml.safe_load(sent[0]))
    assert arrived == read_annotate_job(job, overrides=["tagger.samples=2", "executor.kind=ray"])
    # A default is not sent as a choice.
    assert "model" in arrived.tagger.model_fields_set
    assert "parser" not in yaml.safe_load(sent[0])
    details = server.jobs["mine"]
    assert details.entrypoint == "exec '/opt/my python' -m concord annotate job.yaml"
    variables = details.runtime_env["env_vars"]
    assert variables["RAY_JOB_STOP_WAIT_TIME_S"] == str(submit.STOP_SECONDS)
    assert (variables["RAY_AUTH_MODE"], variables["MLFLOW_TRACKING_URI"]) == ("disabled", "http://mlflow:5000")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@mlflow:5000")
    refused = concord("submit", job)
    assert refused.exit_code == 2
    assert "expected an address without a password" in refused.stderr
    assert "secret" not in refused.output


def test_a_job_is_sent_again_only_when_it_has_ended(server: FakeJobServer, job: Path) -> None:
    first = concord_json("submit", job, "--no-wait")
    assert first["submission_id"].startswith("tiny-2")
    assert (first["status"], first["exit_code"]) == ("PENDING", 0)
    other = concord_json("submit", job, "--no-wait", "--set", "limit=1", "--id", "other")
    assert list(server.jobs) == [first["submission_id"], "other"]

    # A running submission is followed to its end, and its exit code is that of the job.
    followed = concord("submit", job)
    assert followed.exit_code == 3
    assert f"{first['submission_id']}: the same job has not ended; nothing to send" in followed.stderr
    assert f"log of {first['submission_id']}" in followed.stderr
    assert followed.stdout == f"{first['submission_id']}  FAILED\n"

    server.end = (JobStatus.SUCCEEDED, 0)
    succeeded = concord_json("submit", job, "--id", "third")
    assert (succeeded["status"], succeeded["exit_code"]) == ("SUCCEEDED", 0)

    taken = concord("submit", job, "--id", "other")
    assert taken.exit_code == 1
    assert "the job server refused this: ValueError: Job with submission_id other already exists" in taken.stderr

    stopped = concord("submit", "--stop", other["submission_id"])
    assert (stopped.exit_code, stopped.stdout) == (0, "other  STOPPED\n")
    assert "other: stopping" in stopped.stderr
    again = concord("submit", "--stop", other["submission_id"])
    assert (again.exit_code, again.stdout) == (0, "other  STOPPED\n")
    assert "stopping" not in again.stderr
    unknown = concord("submit", "--stop", "nobody")
    assert unknown.exit_code == 1
    assert "Job nobody does not exist" in unknown.stderr


def test_mistakes_are_named(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    for arguments in ((), (job, "--stop", "x")):
        result = concord("submit", *arguments)
        assert result.exit_code == 2
        assert "Expected either JOB.yaml or --stop ID" in result.stderr

    def refuse(_address: str) -> None:
        raise AuthenticationError("invalid token")

    monkeypatch.setattr(submit, "JobSubmissionClient", refuse)
    result = concord("submit", job)
    assert result.exit_code == 1
    assert "authentication failed; RAY_AUTH_MODE, which is 'token'" in result.stderr


def test_an_unreachable_cluster_ends_with_75(job: Path) -> None:
    result = concord("submit", job, "--address", "http://127.0.0.1:1")
    assert result.exit_code == 75
    assert "no Ray job server answers" in result.stderr
