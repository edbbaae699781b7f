"""What every benchmark's JSON says of where it ran."""

import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path


def environment(script: str) -> dict[str, object]:
    """Give command, commit, hardware and versions."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "command": shlex.join(["python", f"tests/benchmarks/{script}", *sys.argv[1:]]),
        "commit": commit.stdout.strip(),
        "hardware": {"cpu": _cpu_name(), "cores": os.cpu_count(), "gpu": None},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "stanza", "ray", "pyarrow")},
        },
    }


def _cpu_name() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
