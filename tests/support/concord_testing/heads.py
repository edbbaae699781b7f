"""Ray clusters of a single node, each stopped through its own process: ``ray stop`` would end all on the machine."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 120.0


class NotStartedError(RuntimeError):
    """Ray did not start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """Addresses of a cluster for drivers, jobs and metrics, and the id of its process."""

    address: str
    job_server: str
    metrics: str
    pid: int


@contextmanager
def ray_head(
    *,
    dashboard: bool = False,
    options: tuple[str, ...] = ("--num-cpus=2",),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Head]:
    """Run a cluster on loopback while the block runs; authentication is off unless ``environment`` sets it.

    Raises:
        NotStartedError: when it does not start.
    """
    # Ray's sockets lie below this folder and their paths must stay under 107 bytes; pytest's folders are too long.
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    variables = {
        **os.environ,
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        **(environment or {}),
    }
    variables.pop("RAY_ADDRESS", None)
    process = None
    try:
        # On a busy machine Ray gives up on its helpers after 15 seconds, so it is started up to twice.
        for _ in range(2):
            process, head = _start(folder, dashboard=dashboard, options=options, environment=variables)
            if head is not None:
                yield head
                return
        raise NotStartedError((folder / "start.log").read_text()[-2000:])
    finally:
        if process is not None:
            _stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    folder: Path, *, dashboard: bool, options: tuple[str, ...], environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], Head | None]:
    # Another cluster on this machine may use the default ports.
    port, dashboard_port, agent_port, client_port, metrics_port = _free_ports(5)
    command = [
        str(Path(sys.executable).with_name("ray")),
        *("start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}", *options),
        f"--metrics-export-port={metrics_port}",
        f"--include-dashboard={str(dashboard).lower()}",
    ]
    if dashboard:
        command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}"]
        command += [f"--dashboard-agent-listen-port={agent_port}", f"--ray-client-server-port={client_port}"]
    log = folder / "start.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=dict(environment), stdout=output, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        # The job server and the agent that starts jobs come later.
        if b"Ray runtime started" in log.read_bytes() and (
            not dashboard or (_answers(dashboard_port) and _answers(agent_port))
        ):
            head = Head(
                address=f"127.0.0.1:{port}",
                job_server=f"http://127.0.0.1:{dashboard_port}",
                metrics=f"http://127.0.0.1:{metrics_port}/metrics",
                pid=process.pid,
            )
            return process, head
        time.sleep(0.2)
    _stop(process)
    return process, None


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
