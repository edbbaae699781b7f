"""Submission: the package, and a job on a local Ray cluster with its own job server."""

import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from concord_testing.command_line import concord
from concord_testing.heads import ray_head

from concord.models.errors import ConfigError
from concord.pipeline.output.verify import verify
from concord.workflows.annotation.job import names_model, read_annotate_job
from concord.workflows.cluster import package as packaging
from concord.workflows.cluster.package import pack
from concord.workflows.cluster.submit import default_id
from concord.workflows.registry.resolve_tagger import DEFAULT, bundled_names


def test_the_package_holds_code_models_and_job() -> None:
    config = read_annotate_job(None, values={"input": "in", "output": "out"})
    package, _ = pack(config)
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        names = archive.namelist()
        job = yaml.safe_load(archive.read("job.yaml"))
    assert {name.partition("/")[0] for name in names} == {"concord", "job.yaml"}
    assert {
        "concord/__main__.py",
        "concord/models/pretrained/parser_en/resources.json",
        "concord/pipeline/report/report.html.j2",
    } <= set(names)
    assert not any(name.endswith(".pyc") for name in names)
    assert job == {"input": str(Path.cwd() / "in"), "output": {"path": str(Path.cwd() / "out")}}


def test_a_default_is_not_sent_as_a_choice() -> None:
    config = read_annotate_job(None, values={"input": "in", "output": "out"}, overrides=["tagger.samples=2"])
    with zipfile.ZipFile(io.BytesIO(pack(config)[0])) as archive:
        job = yaml.safe_load(archive.read("job.yaml"))
    arrived = read_annotate_job(None, values=job)
    assert arrived == config
    assert not names_model(arrived)


@pytest.mark.slow
def test_equal_jobs_have_equal_archives_and_ids() -> None:
    config = read_annotate_job(None, values={"input": "in", "output": "out"})
    other = read_annotate_job(None, values={"input": "in", "output": "out"}, overrides=["limit=1"])
    assert pack(config) == pack(config)
    assert default_id("nightly", pack(config)[1]) == default_id("nightly", pack(config)[1])
    assert default_id("nightly", pack(config)[1]) != default_id("nightly", pack(other)[1])


@pytest.mark.slow
def test_a_package_that_is_too_large_is_refused_naming_the_largest_files() -> None:
    config = read_annotate_job(None, values={"input": "in", "output": "out"})
    with zipfile.ZipFile(io.BytesIO(pack(config)[0])) as archive:
        largest, second, *_ = sorted(archive.infolist(), key=lambda member: -member.compress_size)
    size = len(pack(config)[0])
    with pytest.raises(ConfigError, match=r"expected a package of at most \d+\.\d MB, got \d+\.\d MB") as caught:
        pack(config, limit=size - largest.compress_size - 1)
    named = [line.split() for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert [line[-1] for line in named] == [
        str(packaging.PACKAGE.parent / member.filename) for member in (largest, second)
    ]
    assert named[0][:2] == [f"{largest.compress_size / 1e6:.1f}", "MB"]


def pretrained(content: bytes) -> set[str]:
    """Return the names of the bundled models in a package."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
    return {name.split("/")[3] for name in names if name.startswith("concord/models/pretrained/")}


def test_the_package_has_the_bundled_models_that_the_job_needs_and_is_below_the_limit(tiny_bundle: Path) -> None:
    values = {"input": "in", "output": "out"}
    for model in (None, *bundled_names(), str(tiny_bundle)):
        content, _ = pack(read_annotate_job(None, values=values | ({"tagger.model": model} if model else {})))
        taggers = {model or DEFAULT} & set(bundled_names())
        assert pretrained(content) == {"parser_en", "parser_multi", "encoder", *taggers}
        assert len(content) < 0.9 * packaging.LARGEST_PACKAGE
    default = read_annotate_job(None, values=values)
    own = read_annotate_job(None, values={**values, "tagger.model": str(tiny_bundle)})
    assert pretrained(pack(default, completed=own)[0]) == {"parser_en", "parser_multi", "encoder"}


def test_submit_needs_either_a_job_or_a_submission_to_stop(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("input: in\noutput: out\n")
    for arguments in ((), (job, "--stop", "x")):
        result = concord("submit", *arguments)
        assert result.exit_code == 2
        assert "Expected either JOB.yaml or --stop ID" in result.stderr


def test_an_unreachable_cluster_ends_with_75(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("input: in\noutput: out\n")
    result = concord("submit", job, "--address", "http://127.0.0.1:1")
    assert result.exit_code == 75
    assert "no Ray job server answers" in result.stderr


@pytest.fixture(scope="module")
def job_server() -> Iterator[str]:
    """Return the address of the job server of a new Ray cluster."""
    with ray_head(dashboard=True) as head:
        yield head.job_server


def write_job(folder: Path, *, documents: int, model: Path) -> Path:
    """Write a collection of short documents, two to a shard, and the job that annotates it into ``out``."""
    records = [
        {"id": f"d{number:03}", "text": f"Ada King lives in London, at number {number}."} for number in range(documents)
    ]
    source = folder / "documents.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    job = folder / "tiny.yaml"
    job.write_text(
        f"input: {source}\noutput: {folder / 'out'}\ntagger: {{model: {model}}}\n"
        "planning: {shard_bytes: 100}\nexecutor: {actors: 1}\n"
    )
    return job


def commits(output: Path) -> int:
    return len(list(output.glob("_run/commits/*/*.json")))


@pytest.mark.ray
@pytest.mark.slow
def test_a_job_is_sent_once_and_followed(
    job_server: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    # This must not be mistaken for the job server.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    job = write_job(tmp_path, documents=4, model=tiny_bundle)
    target = ("--address", job_server, "--python", sys.executable)
    first = concord("submit", job, *target, "--json")
    assert first.exit_code == 0, first.output
    values = json.loads(first.stdout)
    assert (values["status"], values["exit_code"]) == ("SUCCEEDED", 0)
    assert "4 of 4 records (100%), 2 of 2 shards" in first.stderr
    assert "words/s" in first.stderr
    result = values["result"]
    assert (result["read"], result["annotated"], result["dead_letters"]) == (4, 4, 0)
    assert result["shards"] == 2
    assert verify(tmp_path / "out") == []

    again = concord("submit", job, *target)
    assert again.exit_code == 0, again.output
    assert "an earlier submission has succeeded; nothing to do" in again.stderr
    assert "4 read = 4 annotated + 0 unchanged + 0 dead letters" in again.stdout

    # A job that fails returns its own exit code, and is sent again under a new id.
    other = shutil.copy(tmp_path / "documents.jsonl", tmp_path / "other.jsonl")
    arguments = ("submit", job, *target, "--set", f"input={other}", "--json")
    refused = concord(*arguments)
    assert refused.exit_code == 2, refused.output
    failed = json.loads(refused.stdout)
    assert "holds the annotation of" in failed["result"]["error"]
    retried = concord(*arguments)
    second = json.loads(retried.stdout)
    assert f"{failed['submission_id']}: an earlier submission has failed" in retried.stderr
    assert second["submission_id"] == f"{failed['submission_id']}-2"


@pytest.mark.ray
@pytest.mark.slow
def test_a_running_job_is_sent_once_stopped_after_its_shards_and_resumed(
    job_server: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    job, output = write_job(tmp_path, documents=200, model=tiny_bundle), tmp_path / "out"
    arguments = ("submit", job, "--address", job_server, "--python", sys.executable, "--json")
    submission_id = json.loads(concord(*arguments, "--no-wait").stdout)["submission_id"]
    deadline = time.monotonic() + 120
    while commits(output) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    twice = concord(*arguments, "--no-wait")
    assert f"{submission_id}: an earlier submission is running; nothing to send" in twice.stderr
    assert json.loads(twice.stdout)["submission_id"] == submission_id

    stopped = concord("submit", "--stop", submission_id, "--address", job_server, "--json")
    assert stopped.exit_code == 0, stopped.output
    values = json.loads(stopped.stdout)
    assert (values["status"], values["exit_code"]) == ("STOPPED", 143)
    assert "stopped by SIGTERM" in values["result"]["error"]
    committed = commits(output)
    assert 3 <= committed < 100
    again = concord("submit", "--stop", submission_id, "--address", job_server)
    assert again.exit_code == 0
    assert "already stopped; nothing to stop" in again.stderr
    unknown = concord("submit", "--stop", "nobody", "--address", job_server)
    assert unknown.exit_code == 2
    assert "running: none" in unknown.stderr

    resumed = concord(*arguments)
    assert f"{submission_id}: an earlier submission has stopped; a new one continues" in resumed.stderr
    result = json.loads(resumed.stdout)["result"]
    assert (result["read"], result["annotated"] + result["unchanged"], result["done_before"]) == (200, 200, committed)
    assert 0 < result["annotated"] < 200
    assert verify(output) == []


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_with_a_token_accepts_jobs_with_that_token_only(tiny_bundle: Path, tmp_path: Path) -> None:
    job = write_job(tmp_path, documents=2, model=tiny_bundle)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
    with ray_head(dashboard=True, environment=token) as head:

        def submit(**environment: str) -> subprocess.CompletedProcess[str]:
            # In a new process: Ray reads the mode of authentication only once.
            command = ["submit", str(job), "--address", head.job_server, "--python", sys.executable, "--json"]
            return subprocess.run(
                [sys.executable, "-m", "concord", *command],
                env=os.environ | environment,
                capture_output=True,
                text=True,
                check=False,
            )

        refused = submit(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="another" * 8)
        assert refused.returncode == 1, refused.stderr
        assert "authentication failed; RAY_AUTH_MODE" in json.loads(refused.stdout)["error"]
        taken = submit(**token)
        assert taken.returncode == 0, taken.stderr
        assert json.loads(taken.stdout)["result"]["annotated"] == 2
