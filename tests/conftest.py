"""What tests of every room share."""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pipeline import s3

_START_SECONDS = 120.0

# A busy machine is no fault of the code: examples are judged by their outcome, not by the clock.
settings.register_profile("concord", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("concord")


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Give the address of a Ray cluster of two CPUs on loopback, shared by all tests of the session.

    Starting one takes ten seconds and more, joining one. It is stopped by its own process: ``ray stop`` would end every
    Ray on the machine.
    """
    # Ray's sockets lie below this folder and their paths must stay under 107 bytes; pytest's folders are too long.
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    try:
        # On a busy machine Ray gives up on its helpers after 15 seconds, so it gets a second try.
        process, address = _start_head(folder) or _start_head(folder) or pytest.fail("Ray does not start")
        try:
            yield address
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """Give the address of a server on loopback that speaks the protocol of S3, for all tests of the session."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def s3_url(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the URL of an empty bucket, with credentials for it in the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "some-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "some-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    name = f"bucket-{uuid.uuid4().hex}"
    s3.client(os.getpid()).create_bucket(Bucket=name)
    return f"s3://{name}"


def _start_head(folder: Path) -> tuple[subprocess.Popen[bytes], str] | None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(Path(sys.executable).with_name("ray")),
        *("start", "--head", "--block", "--include-dashboard=false", "--num-cpus=2"),
        *("--node-ip-address=127.0.0.1", f"--port={port}"),
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
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if b"Ray runtime started" in log.read_bytes():
            return process, f"127.0.0.1:{port}"
        time.sleep(0.2)
    _stop(process)
    return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
