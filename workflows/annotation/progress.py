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
        self._is_announced = False
        self._start: tuple[float, Progress] | None = None

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()

    def __call__(self, progress: Progress) -> None:
        """Show how far the run is, and first why documents are tagged again."""
        if not self._is_announced:
            self._is_announced = True
            for reason in progress.reasons:
                info(f"Unchanged documents are tagged again, because {reason}")
        now = time.monotonic()
        if self._start is None or (progress.in_flight and not self._start[1].in_flight):
            # Loading models takes time, but is no work: it must not count towards the speed.
            self._start = (now, progress)
        line = _line(progress) + _pace(progress, *self._start, now=now)
        if self._terminal:
            self._draw(progress, line)
        elif now - self._last_line >= LINE_SECONDS or progress.shards_done == progress.shards:
            self._last_line = now
            info(line)

    def _draw(self, progress: Progress, line: str) -> None:
        if self._bar is None:
            self._bar = tqdm(total=1.0, bar_format="{percentage:3.0f}%|{bar:20}|{postfix}", file=sys.stderr)
        self._bar.set_postfix_str(line, refresh=False)
        self._bar.update(progress.share - self._bar.n)


def _line(progress: Progress) -> str:
    done = int(progress.read_done + progress.read_in_flight)
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


def _pace(progress: Progress, started: float, first: Progress, *, now: float) -> str:
    """Format the mean speed since the work started, and the time left at that speed; empty until there is one."""
    seconds, share = now - started, progress.share - first.share
    if share <= 0 or seconds <= 0:
        return ""
    left = timedelta(seconds=round((1 - progress.share) * seconds / share))
    return f"; {(progress.words - first.words) / seconds:,.0f} words/s, {left} left"
