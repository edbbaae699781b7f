"""Run the tests as make does: how long they take, the slowest, and what they cover (``make coverage``).

Command: python benchmarks/bench_tests.py > benchmarks/results/tests_cpu_202611.json
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from environment import environment

CHECKOUT = Path(__file__).resolve().parents[1]
ROOMS = ("models", "pipeline", "workflows")
SLOWEST = 30
TARGETS = ("quick", "test", "coverage")


def timed(target: str) -> dict[str, Any]:
    """Run a target of make; return its exit code, seconds, and the tests that it counted and found slow."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    run = subprocess.run(["make", target], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    sys.stderr.write(run.stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    counts: Counter[str] = Counter()
    for line in re.findall(r"^=* ?(\d+ .* in [\d.]+s.*?)=*$", run.stdout, flags=re.MULTILINE):
        counts.update({word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", line)})
    slowest = re.findall(r"^([\d.]+)s (setup|call|teardown) +(\S.*)$", run.stdout, flags=re.MULTILINE)
    return {
        "exit_code": run.returncode,
        "seconds": round(seconds),
        "processor_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime),
        "tests": dict(counts),
        "slowest": [
            f"{took} s {phase} {name}"
            for took, phase, name in sorted(slowest, key=lambda row: -float(row[0]))[:SLOWEST]
        ],
    }


def coverage() -> dict[str, float]:
    """Return the share of lines and branches that the last ``make coverage`` saw, in percent by room."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", report], cwd=CHECKOUT, check=True)
        files = json.loads(report.read_text())["files"]
    covered: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for name, file in files.items():
        summary, room = file["summary"], name.removeprefix("concord/").split("/")[0]
        covered[room] += summary["covered_lines"] + summary["covered_branches"]
        total[room] += summary["num_statements"] + summary["num_branches"]
    return {room: round(100 * covered[room] / total[room], 1) for room in ROOMS if total[room]}


def main() -> None:
    """Run, count, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", default=TARGETS, help="targets of make (default: %(default)s)")
    targets = parser.parse_args().targets
    figures: dict[str, Any] = {
        **environment("bench_tests.py"),
        **{f"make {target}": timed(target) for target in targets},
        "note": "processor seconds are those of processes that ended before their parents, which waited for them; code "
        "that runs only in child processes (killed drivers, Ray workers, a submitted job) is not covered",
    }
    if "coverage" in targets:
        figures["coverage_percent_of_lines_and_branches"] = coverage()
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
