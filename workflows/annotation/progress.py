"""The progress of a run on stderr: a bar on a terminal, a line every few seconds in a log."""

import sys
import time
from datetime import timedelta

from tqdm import tqdm

from concord.pipeline.run_report import Progress
from concord.workflows.console import info

LINE_SECONDS = 10.0


class RunProgress:
    """Shows the progress of one annotation run; call it with each Progress."""

    def __init__(self, *, terminal: bool | None = None) -> None:
        """Draw a bar if ``terminal``, or if it is None and stderr is a terminal; else write lines."""
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._bar: tqdm[None] | None = None
        self._last_line = time.monotonic()
        self._start: tuple[float, int] | None = None

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()

    def __call__(self, progress: Progress) -> None:
        """Show how far the run is."""
        if self._terminal:
            self._draw(progress)
            return
        now = time.monotonic()
        if self._start is None:
            # Records of earlier runs must not count towards the speed of this one.
            self._start = (now, progress.read_done)
        if now - self._last_line >= LINE_SECONDS or progress.shards_done == progress.shards:
            self._last_line = now
            info(_line(progress) + _pace(progress, start=self._start, now=now))

    def _draw(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=progress.read, initial=progress.read_done, unit="record", desc="annotate", file=sys.stderr
            )
        self._bar.set_postfix_str(
            f"shard {progress.shards_done}/{progress.shards}{_in_flight(progress)}, {progress.words:,} words",
            refresh=False,
        )
        self._bar.update(_records_done(progress) - self._bar.n)


def _records_done(progress: Progress) -> int:
    """Return the records of the shards that are done, and of those in flight by their share."""
    return int(progress.read_done + progress.read_in_flight)


def _line(progress: Progress) -> str:
    done = _records_done(progress)
    share = f" ({done / progress.read:.0%})" if progress.read else ""
    words = f", {progress.words:,} words" if progress.words else ""
    return (
        f"{done:,} of {progress.read:,} records{share}, "
        f"{progress.shards_done:,} of {progress.shards:,} shards{_in_flight(progress)}{words}"
    )


def _in_flight(progress: Progress) -> str:
    """Say how far the shards in flight are; up to two of them."""
    stages = {"parse": "parsing", "tag": "tagging"}
    shards = [f"{stages[shard.stage]} {shard.shard:05d} ({shard.share:.0%})" for shard in progress.in_flight[:2]]
    if len(progress.in_flight) > len(shards):
        shards.append(f"{len(progress.in_flight) - len(shards)} more")
    return f" ({', '.join(shards)})" if shards else ""


def _pace(progress: Progress, *, start: tuple[float, int], now: float) -> str:
    """Format the mean speed of this run and the time left at that speed; empty until there is one."""
    started, before = start
    done = progress.read_done + progress.read_in_flight - before
    if not done or now <= started:
        return ""
    rate = done / (now - started)
    left = timedelta(seconds=round((progress.read - progress.read_done - progress.read_in_flight) / rate))
    return f"; {rate:,.1f} records/s, {left} left"
