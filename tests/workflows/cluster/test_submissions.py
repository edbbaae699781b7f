"""Which submission a command sends or follows, decided against a job server that only keeps records."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from concord_testing.command_line import concord
from ray.job_submission import JobStatus

from concord.pipeline.output.schema import SCHEMA_VERSION
from concord.workflows.cluster import submit


class FakeJobServer:
    """Keeps submissions as Ray's job server does."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.jobs: dict[str, SimpleNamespace] = {}

    def submit_job(self, *, submission_id: str, metadata: Mapping[str, str], **_package: Any) -> None:
        self.jobs[submission_id] = SimpleNamespace(
            submission_id=submission_id,
            status=JobStatus.PENDING,
            metadata=metadata,
            driver_exit_code=None,
            message="",
        )

    def get_job_status(self, submission_id: str) -> JobStatus:
        if submission_id not in self.jobs:
            raise RuntimeError("Request failed with status code 404")
        return self.jobs[submission_id].status

    def get_job_info(self, submission_id: str) -> SimpleNamespace:
        return self.jobs[submission_id]

    def list_jobs(self) -> list[SimpleNamespace]:
        return list(self.jobs.values())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeJobServer:
    """Let submissions go to a fake job server."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    found = FakeJobServer("http://fake:8265")
    monkeypatch.setattr(submit, "JobSubmissionClient", lambda _address: found)
    monkeypatch.setattr(submit, "pack", lambda config, **_: (b"archive", config.model_dump_json()))
    return found


@pytest.fixture
def job(tmp_path: Path, tiny_bundle: Path) -> Path:
    """Return a job file beside its input."""
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n')
    job = tmp_path / "tiny.yaml"
    job.write_text(f"input: {tmp_path}/in.jsonl\noutput: {tmp_path}/out\ntagger: {{model: {tiny_bundle}}}\n")
    return job


def send(job: Path, *arguments: object) -> tuple[str, str]:
    """Submit a job and return the submission's id and what was printed to stderr."""
    result = concord("submit", job, "--no-wait", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["submission_id"], result.stderr


def finish(server: FakeJobServer, job: Path, status: JobStatus = JobStatus.SUCCEEDED) -> None:
    """End all submissions, and write the manifest of a finished run where they have succeeded."""
    for details in server.jobs.values():
        details.status = status
    if status == JobStatus.SUCCEEDED:
        current = job.parent / "out" / "current"
        current.mkdir(parents=True, exist_ok=True)
        zeros = dict.fromkeys(("generation", "read", "annotated", "unchanged", "dead_letters"), 0)
        manifest = {"manifest_version": 1, "schema_version": SCHEMA_VERSION, "plan": "", "shards": [], **zeros}
        (current / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.slow
def test_a_job_whose_input_has_grown_is_sent_again_the_same_day(server: FakeJobServer, job: Path) -> None:
    first, _ = send(job)
    finish(server, job)
    again, message = send(job)
    assert again == first
    assert f"{first}: an earlier submission has succeeded; nothing to do" in message

    with (job.parent / "in.jsonl").open("a") as stream:
        stream.write('{"text": "two"}\n')
    grown, message = send(job)
    assert grown != first
    assert grown.rpartition("-")[0] == first.rpartition("-")[0]
    assert f"{grown}: sent to" in message


@pytest.mark.slow
def test_a_job_with_another_list_of_terms_is_sent_again(server: FakeJobServer, job: Path) -> None:
    terms = job.parent / "terms.jsonl"
    terms.write_text('{"label": "PER", "pattern": "Ada"}\n')
    setting = ("--set", f"tagger.terms={terms}")
    first, _ = send(job, *setting)
    finish(server, job)
    assert send(job, *setting)[0] == first
    terms.write_text('{"label": "PER", "pattern": "Charles"}\n')
    assert send(job, *setting)[0] != first


@pytest.mark.slow
def test_a_running_submission_is_followed_though_the_input_has_grown(server: FakeJobServer, job: Path) -> None:
    first, _ = send(job)
    (job.parent / "in.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    followed, message = send(job)
    assert followed == first
    assert f"{first}: sent before the input or the tagger changed; submit again when it has ended" in message
    assert len(server.jobs) == 1
    other, _ = send(job, "--set", "limit=1")
    assert other != first


@pytest.mark.slow
def test_a_removed_output_and_a_chosen_id_are_brought_up_to_date(server: FakeJobServer, job: Path) -> None:
    first, _ = send(job, "--id", "mine")
    finish(server, job)
    assert send(job, "--id", "mine")[0] == first == "mine"
    (job.parent / "in.jsonl").write_text('{"text": "two"}\n')
    second, message = send(job, "--id", "mine")
    assert second == "mine-2"
    assert "mine: an earlier submission has succeeded; a new one looks for what has changed since" in message
    finish(server, job)
    (job.parent / "out" / "current" / "manifest.json").unlink()
    assert send(job, "--id", "mine")[0] == "mine-3"
    finish(server, job, JobStatus.FAILED)
    assert send(job, "--id", "mine")[0] == "mine-4"


@pytest.mark.slow
def test_a_machine_that_cannot_see_the_input_sends_a_finished_job_again(server: FakeJobServer, job: Path) -> None:
    (job.parent / "in.jsonl").unlink()
    first, _ = send(job)
    assert send(job)[0] == first
    finish(server, job)
    assert send(job)[0] == f"{first}-2"
