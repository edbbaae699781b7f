"""Run the whole test suite with coverage: how long it takes, what it covers.

Command: python benchmarks/bench_tests.py > benchmarks/results/tests_cpu_202611.json
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from environment import environment


def main() -> None:
    """Run, count, print."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        rooms = ("models", "pipeline", "workflows")
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-m", "not gpu"),
            "--cov=concord",
            f"--cov-report=json:{report}",
        ]
        started = time.monotonic()
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - started
        files = json.loads(report.read_text())["files"]
    covered: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for name, found in files.items():
        summary, room = found["summary"], name.removeprefix("concord/").split("/")[0]
        covered[room] += summary["covered_lines"] + summary["covered_branches"]
        total[room] += summary["num_statements"] + summary["num_branches"]
    last = run.stdout.strip().splitlines()[-1]
    figures = {
        **environment("bench_tests.py"),
        "exit_code": run.returncode,
        "seconds_with_coverage": round(seconds),
        "tests": {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)},
        "coverage_percent_of_lines_and_branches": {
            room: round(100 * covered[room] / total[room], 1) for room in rooms if total[room]
        },
        "note": "code that runs only in child processes (killed drivers, Ray workers, a submitted job) is not counted",
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
