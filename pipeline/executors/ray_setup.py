"""Ray's authentication mode, and the end of what a Ray that was started on this machine leaves behind.

Ray ends the driver when its GCS is gone, and then nobody ends the agents of the node. A process of its own, which
imports nothing of this package, waits for the end of the driver.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_POLL_SECONDS = 2.0
_PATIENCE_SECONDS = 5.0


@contextmanager
def leftovers_ended(folder: str) -> Iterator[None]:
    """Have the processes of a Ray ended, and its folder removed, after the block or the death of this process.

    Args:
        folder: in the command line of Ray's processes; no other process may name it.
    """
    # Interrupts from a terminal go to the whole session; this process has to outlive them.
    watcher = subprocess.Popen(
        [sys.executable, "-I", __file__, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watcher.communicate()


def _watch(folder: str) -> None:
    """Remember the processes of a folder until the standard input ends; then end those that do not end themselves."""
    processes: dict[int, str] = {}
    while True:
        processes |= _family(folder)
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            break
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while _alive(processes) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in _alive(processes):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _family(folder: str) -> dict[int, str]:
    """Return the processes that name a folder and their descendants, each with the time of its start."""
    parents: dict[int, int] = {}
    started: dict[int, str] = {}
    members = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = _fields(process)
            parents[int(process.name)], started[int(process.name)] = int(fields[1]), fields[19]
            if folder.encode() in process.joinpath("cmdline").read_bytes():
                members.add(int(process.name))
    members.discard(os.getpid())
    while new := {pid for pid, parent in parents.items() if parent in members and pid not in members}:
        members |= new
    return {pid: started[pid] for pid in members}


def _alive(processes: dict[int, str]) -> list[int]:
    """Return the processes that still run; one of the same id that started later is another."""
    alive = []
    for pid, started in processes.items():
        with suppress(OSError):
            fields = _fields(Path(f"/proc/{pid}"))
            if fields[19] == started and fields[0] != "Z":
                alive.append(pid)
    return alive


def _fields(process: Path) -> list[str]:
    """Return the fields of a process's state, from the third on: state, parent; the twentieth is the time of start."""
    return process.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()


if __name__ == "__main__":
    _watch(sys.argv[1])


def resolve_auth_mode(address: str | None) -> None:
    """Set ``RAY_AUTH_MODE`` unless the user has; to be called before anything imports Ray.

    Args:
        address: of the cluster to join; None if one is started here.
    """
    os.environ.setdefault("RAY_AUTH_MODE", auth_mode(address))


def auth_mode(address: str | None) -> str:
    """Return the authentication mode to use unless the user set one.

    Ray's own default differs between starting and joining a cluster. One started here only listens on this machine, and
    only during the run; a cluster gets the token if there is one.
    """
    token = (
        "RAY_AUTH_TOKEN" in os.environ
        or "RAY_AUTH_TOKEN_PATH" in os.environ
        or (Path.home() / ".ray" / "auth_token").exists()
    )
    return "token" if address and token else "disabled"
