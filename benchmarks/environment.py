"""What all benchmarks report: where they ran, and how measured values spread."""

import ast
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

BUNDLES = Path("models/pretrained")


def environment(script: str) -> dict[str, object]:
    """Return what is measured, by the first sentence of the script, the bundled weights, and command, commit and place.

    ``weights`` has the sha256, in hex, of each bundled tagger's weights; a test holds the pages to those that ship.
    """
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    described = ast.get_docstring(ast.parse((Path(__file__).parent / script).read_text(encoding="utf-8"))) or ""
    bundles = BUNDLES.glob("*/weights.safetensors")
    return {
        "measured": " ".join(described.split("\n\n")[0].split()),
        "weights": {path.parent.name: sha256(path.read_bytes()).hexdigest() for path in bundles},
        "command": shlex.join(["python", f"benchmarks/{script}", *sys.argv[1:]]),
        "commit": commit.stdout.strip(),
        "hardware": {"cpu": _cpu_name(), "cores": os.cpu_count(), "gpu": None},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "stanza", "ray", "pyarrow")},
        },
    }


def spread(values: Sequence[float], *, digits: int) -> dict[str, float]:
    """Return mean, standard deviation, minimum and maximum."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    measures = {"mean": statistics.mean(values), "std": deviation, "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in measures.items()}


def quartiles(values: Sequence[float], *, digits: int) -> dict[str, float | list[float]]:
    """Return the median and the quartiles of one value or more."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": round(middle, digits), "quartiles": [round(low, digits), round(high, digits)]}


def _cpu_name() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
