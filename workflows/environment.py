"""Describe where a run takes place: the commit of the code, the machine and the versions."""

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
    """Return the commit of the code and whether files differ from it; empty without a git checkout."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {COMMIT_TAG: commit, DIRTY_TAG: str(bool(changes)).lower()}


def describe_environment() -> dict[str, object]:
    """Return machine and versions as plain values."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: version(name) for name in DISTRIBUTIONS},
    }


def cache_folder() -> Path:
    """Return the folder of what can be made or downloaded again: bundles from the registry, indexes of collections."""
    if chosen := os.environ.get("CONCORD_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "concord"


def _git(*arguments: str) -> str | None:
    # Code that is installed inside another checkout does not have its commit.
    if not (CHECKOUT / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
