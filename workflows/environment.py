"""Where a run was made: the commit of the code, the machine, and the versions of what it builds on."""

import os
import platform
import socket
import subprocess
from importlib.metadata import version
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = ("torch", "stanza", "pyarrow", "ray", "mlflow", "safetensors", "numpy")
COMMIT_TAG = "mlflow.source.git.commit"
DIRTY_TAG = "concord.git.dirty"


def code_tags() -> dict[str, str]:
    """Give the commit that the code is of, and whether files differ from it; nothing where there is no git."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {COMMIT_TAG: commit, DIRTY_TAG: str(bool(changes)).lower()}


def describe_environment() -> dict[str, object]:
    """Give machine and versions as plain values."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: version(name) for name in DISTRIBUTIONS},
    }


def process_name(pid: int | None = None) -> str:
    """Name a process of this host (this one, if None) so that no later one bears its name: host, number, start."""
    pid = pid or os.getpid()
    return f"{socket.gethostname()}:{pid}:{_start(pid)}"


def has_ended(process: str) -> bool:
    """Say whether a process is known to be gone; of another host's processes nothing is known."""
    host, _, place = process.partition(":")
    pid, _, _ = place.partition(":")
    return host == socket.gethostname() and pid.isdigit() and process != process_name(int(pid))


def _start(pid: int) -> str | None:
    """Give the clock ticks from boot to the start of a process; None when there is none of this number."""
    try:
        # The name of the program stands second, in brackets, and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return None


def _git(*arguments: str) -> str | None:
    # Code that was installed into somebody else's checkout has not its commit.
    if not (CHECKOUT / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
