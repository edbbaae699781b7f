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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from concord_testing.processes import descendants

START_SECONDS = 120.0
_RAY = str(Path(sys.executable).with_name("ray"))


class NotStartedError(RuntimeError):
    """Ray did not start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """Addresses of a cluster for drivers and jobs, and the id of its process."""

    address: str
    job_server: str
    pid: int


@contextmanager
def ray_head(
    *,
    dashboard: bool = False,
    options: tuple[str, ...] = ("--num-cpus=2",),
) -> Iterator[Head]:
    """Run a cluster on loopback without authentication while the block runs.

    Raises:
        NotStartedError: when it does not start.
    """
    # Ray's sockets lie below this folder and their paths must stay under 107 bytes; pytest's folders are too long.
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    process = None
    try:
        # On a busy machine Ray gives up on its helpers after 15 seconds, so it is started up to twice.
        for _ in range(2):
            process, head = _start(folder, dashboard=dashboard, options=options, environment=_variables(folder))
            if head is not None:
                yield head
                return
        raise NotStartedError((folder / "start.log").read_text()[-2000:])
    finally:
        if process is not None:
            _stop(process)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def ray_node(head: Head, *, options: tuple[str, ...]) -> Iterator[int]:
    """Have another node in a cluster while the block runs, and lose it then; yield the id of its process.

    Raises:
        NotStartedError: when it does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    agent_port, metrics_port = _free_ports(2)
    command = [_RAY, "start", "--block", "--node-ip-address=127.0.0.1", f"--address={head.address}", *options]
    command += [f"--metrics-export-port={metrics_port}", f"--dashboard-agent-listen-port={agent_port}"]
    process = _popen(command, folder, _variables(folder))
    try:
        if not _wait_for_start(process, folder):
            raise NotStartedError((folder / "start.log").read_text()[-2000:])
        yield process.pid
    finally:
        _stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def _variables(folder: Path) -> dict[str, str]:
    """Return the environment of a node that keeps its files in a folder."""
    variables = {
        **os.environ,
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray would start a process for each CPU before it knows which environment a worker needs, and use none.
        "RAY_enable_worker_prestart": "false",
        "RAY_prestart_worker_first_driver": "false",
        # By default a lost node is noticed after 15 seconds.
        "RAY_health_check_period_ms": "1000",
    }
    variables.pop("RAY_ADDRESS", None)
    return variables


def _start(
    folder: Path, *, dashboard: bool, options: tuple[str, ...], environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], Head | None]:
    # Another cluster on this machine may use the default ports.
    port, dashboard_port, agent_port, client_port, metrics_port = _free_ports(5)
    command = [
        *(_RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}", *options),
        f"--metrics-export-port={metrics_port}",
        f"--include-dashboard={str(dashboard).lower()}",
    ]
    ports: tuple[int, ...] = ()
    if dashboard:
        command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}"]
        command += [f"--dashboard-agent-listen-port={agent_port}", f"--ray-client-server-port={client_port}"]
        # The job server and the agent that starts jobs come later.
        ports = (dashboard_port, agent_port)
    process = _popen(command, folder, environment)
    if not _wait_for_start(process, folder, ports=ports):
        _stop(process)
        return process, None
    head = Head(
        address=f"127.0.0.1:{port}",
        job_server=f"http://127.0.0.1:{dashboard_port}",
        pid=process.pid,
    )
    return process, head


def _popen(command: list[str], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with (folder / "start.log").open("wb") as log:
        return subprocess.Popen(command, env=dict(environment), stdout=log, stderr=subprocess.STDOUT)


def _wait_for_start(process: subprocess.Popen[bytes], folder: Path, *, ports: tuple[int, ...] = ()) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if b"Ray runtime started" in (folder / "start.log").read_bytes() and all(map(_answers, ports)):
            return True
        time.sleep(0.2)
    return False


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
    """Kill all processes of a node: they keep nothing, and Ray's own way to end them takes up to half a minute."""
    for pid in (process.pid, *descendants(process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
