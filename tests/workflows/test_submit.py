"""Submission: what travels, and a real job on a real cluster with its job server on loopback."""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from models.config import ConfigError
from pipeline.commits import verify
from workflows import submit
from workflows.cli import main
from workflows.config import names_model, read_annotate_job
from workflows.submit import default_id, pack

START_SECONDS = 120.0


def concord(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_code_models_and_the_job_travel() -> None:
    config = read_annotate_job(None, values={"input": "in", "output": "out"})
    package, _ = pack(config)
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        names = archive.namelist()
        job = yaml.safe_load(archive.read("job.yaml"))
    assert {name.partition("/")[0] for name in names} == {"models", "pipeline", "workflows", "job.yaml"}
    assert {"workflows/cli.py", "models/pretrained/parser_en/resources.json", "pipeline/report.html.j2"} <= set(names)
    assert not any(name.endswith(".pyc") for name in names)
    assert job == {"input": str(Path.cwd() / "in"), "output": str(Path.cwd() / "out")}


def test_a_default_does_not_become_a_choice_on_the_way() -> None:
    config = read_annotate_job(None, values={"input": "in", "output": "out"}, overrides=["tagger.samples=2"])
    with zipfile.ZipFile(io.BytesIO(pack(config)[0])) as archive:
        job = yaml.safe_load(archive.read("job.yaml"))
    arrived = read_annotate_job(None, values=job)
    assert arrived == config
    assert not names_model(arrived)


def test_equal_jobs_have_equal_archives_and_ids() -> None:
    config = read_annotate_job(None, values={"input": "in", "output": "out"})
    other = read_annotate_job(None, values={"input": "in", "output": "out"}, overrides=["limit=1"])
    assert pack(config) == pack(config)
    assert default_id("nightly", pack(config)[1]) == default_id("nightly", pack(config)[1])
    assert default_id("nightly", pack(config)[1]) != default_id("nightly", pack(other)[1])


def test_an_archive_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "LARGEST_PACKAGE", 1000)
    with pytest.raises(ConfigError, match=r"expected at most 1,000 bytes to travel.*largest files are models/"):
        pack(read_annotate_job(None, values={"input": "in", "output": "out"}))


def test_a_cluster_that_is_not_there_ends_with_75(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("input: in\noutput: out\n")
    result = concord("submit", job, "--address", "http://127.0.0.1:1")
    assert result.exit_code == 75
    assert "no Ray job server answers" in result.stderr


@pytest.fixture(scope="module")
def job_server() -> Iterator[str]:
    """Give the address of the job server of a Ray cluster of its own."""
    # Ray's sockets lie below this folder and their paths must stay under 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    process = None
    try:
        process, address = _start_head(folder)
        yield address
    finally:
        if process is not None:
            # Never `ray stop`: it would end every Ray on the machine.
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _start_head(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    dashboard = _free_port()
    command = [
        str(Path(sys.executable).with_name("ray")),
        *("start", "--head", "--block", "--num-cpus=2", f"--port={_free_port()}"),
        *("--node-ip-address=127.0.0.1", "--include-dashboard=true"),
        *("--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
        # Another cluster on this machine has taken the usual ones.
        *(f"--dashboard-agent-listen-port={_free_port()}", f"--ray-client-server-port={_free_port()}"),
    ]
    environment = os.environ | {
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    environment.pop("RAY_ADDRESS", None)
    log = folder / "start.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if b"Ray runtime started" in log.read_bytes():
            return process, f"http://127.0.0.1:{dashboard}"
        time.sleep(0.2)
    process.kill()
    pytest.fail(f"Ray does not start: {log.read_text()[-2000:]}")


@pytest.mark.ray
@pytest.mark.slow
def test_a_job_is_sent_followed_and_not_sent_twice(
    job_server: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    # Whatever this names must not be taken for the job server.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    records = [{"id": f"d{number}", "text": f"Ada King lives in London, at number {number}."} for number in range(4)]
    source = tmp_path / "documents.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    job = tmp_path / "tiny.yaml"
    job.write_text(
        f"input: {source}\noutput: {tmp_path / 'out'}\ntagger: {{model: {tiny_bundle}}}\n"
        "planning: {shard_bytes: 100}\nexecutor: {actors: 1}\n"
    )
    target = ("--address", job_server, "--python", sys.executable)
    first = concord("submit", job, *target, "--json")
    assert first.exit_code == 0, first.output
    values = json.loads(first.stdout)
    assert (values["status"], values["exit_code"]) == ("SUCCEEDED", 0)
    result = values["result"]
    assert (result["read"], result["annotated"], result["dead_letters"]) == (4, 4, 0)
    assert result["shards"] == 2
    assert verify(tmp_path / "out") == []

    again = concord("submit", job, *target)
    assert again.exit_code == 0, again.output
    assert "was sent before and has succeeded; nothing to do" in again.stderr
    assert "4 read = 4 annotated + 0 unchanged + 0 dead letters" in again.stdout

    # A job that fails gives its own exit code, and is sent again under a further id.
    other = shutil.copy(source, tmp_path / "other.jsonl")
    arguments = ("submit", job, *target, "--set", f"input={other}", "--json")
    refused = concord(*arguments)
    assert refused.exit_code == 2, refused.output
    failed = json.loads(refused.stdout)
    assert "holds the annotation of" in failed["result"]["error"]
    second = json.loads(concord(*arguments).stdout)
    assert second["submission_id"] == f"{failed['submission_id']}-2"
