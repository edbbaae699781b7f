"""Processor time of every test: recorded in tests/durations.json, by which long files start first.

It is that of the process of the test and of its descendants: other load does not change it, and waiting does not
count. The minutes of each session, by the clock, are recorded beside it: the tests of Ray are one, all others another.
"""

import fcntl
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from concord_testing.checkout import CHECKOUT
from concord_testing.processes import descendants

RECORDED = CHECKOUT / "tests" / "durations.json"
LONG_SECONDS = 5.0
_UNKNOWN_SECONDS = 10.0
_KEYWORD = "processor_seconds"


def order_by_duration(items: list[pytest.Item]) -> None:
    """Put the files with the longest tests first, as recorded; the order within a file stays."""
    seconds: dict[str, float] = json.loads(RECORDED.read_bytes())["files"] if RECORDED.exists() else {}
    items.sort(key=lambda item: -seconds.get(_file(item.nodeid), _UNKNOWN_SECONDS))


class DurationRecorder:
    """Measures each phase of a test, and writes what it and the workers of xdist have measured at the end."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._meter = _Meter()
        self._last = 0.0
        self._tests: defaultdict[str, float] = defaultdict(float)
        self._reasons: dict[str, str] = {}

    def pytest_runtest_logstart(self) -> None:
        """Begin to measure."""
        self._last = self._meter.seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[Any]:
        """Add to a report what its phase took, and the reason why the test is slow."""
        report = yield
        now = self._meter.seconds()
        mark = item.get_closest_marker("slow")
        setattr(report, _KEYWORD, [round(now - self._last, 3), mark.kwargs.get("reason", "") if mark else ""])
        self._last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take over a report of this process or of a worker."""
        seconds, reason = getattr(report, _KEYWORD)
        self._tests[report.nodeid] += seconds
        self._reasons[report.nodeid] = reason

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the durations; those of files that were not run now are kept."""
        if hasattr(session.config, "workerinput"):
            return
        with RECORDED.open("r+", encoding="utf-8") as file:
            # The other session may end now, too.
            fcntl.flock(file, fcntl.LOCK_EX)
            values = self._merged(json.load(file), session)
            file.seek(0)
            file.truncate()
            file.write(json.dumps(values, indent=1, ensure_ascii=False) + "\n")

    def _merged(self, recorded: dict[str, Any], session: pytest.Session) -> dict[str, Any]:
        files: defaultdict[str, float] = defaultdict(float)
        for test, seconds in self._tests.items():
            files[_file(test)] += seconds
        kept = {name: seconds for name, seconds in recorded["files"].items() if (CHECKOUT / name).exists()}
        long = [row for row in recorded["long"] if _file(row["test"]) in kept.keys() - files.keys()]
        long += [
            {"test": test, "seconds": round(seconds, 1), "reason": self._reasons[test]}
            for test, seconds in self._tests.items()
            if seconds > LONG_SECONDS
        ]
        rounded = {name: round(seconds, 1) for name, seconds in files.items()}
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            recorded["minutes"][session.config.option.markexpr] = round((time.monotonic() - self._started) / 60, 1)
        return {
            "minutes": recorded["minutes"],
            "files": dict(sorted({**kept, **rounded}.items())),
            "long": sorted(long, key=lambda row: str(row["test"])),
        }


class _Meter:
    """The processor time of this process and of all that descend from it, also of those that nobody waits for.

    They are looked at twice a second: what a process takes between the last look and its end does not count.
    """

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def seconds(self) -> float:
        """Return the time until now."""
        with self._lock:
            for pid in descendants(os.getpid()):
                with suppress(OSError):
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    self._ticks[pid, fields[19]] = int(fields[11]) + int(fields[12])
            return time.process_time() + sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while True:
            time.sleep(0.5)
            self.seconds()


def _file(test: str) -> str:
    return test.partition("::")[0]
