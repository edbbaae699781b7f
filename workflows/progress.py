"""Progress on stderr: a bar on a terminal, a line every few seconds in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from concord.pipeline.run_report import Progress
from concord.workflows.console import info

if TYPE_CHECKING:
    from concord.models.training.fit import EpochProgress

LINE_SECONDS = 10.0


class _Display:
    """Shows one line about work at a time, with a bar if it is a terminal."""

    def __init__(self, *, terminal: bool | None = None) -> None:
        """Draw a bar if ``terminal``, or if it is None and stderr is a terminal; else write lines."""
        self._is_terminal = sys.stderr.isatty() if terminal is None else terminal
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._last_line = time.monotonic()

    def close(self) -> None:
        """Stop drawing; the last line stays."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def show(self, line: str, *, share: float, now: float, always: bool = False) -> None:
        """Draw the line and how far the work is, or write it to a log if it is due, or ``always``."""
        if self._is_terminal:
            if self._bar is None:
                self._bar = _bar(TextColumn("{task.percentage:3.0f}%"), BarColumn(20), _text())
                self._task = self._bar.add_task("", total=1.0)
                self._bar.start()
            self._bar.update(self._task, completed=share, description=line)
        elif always or now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            info(line)


class RunProgress(_Display):
    """Shows the progress of one annotation run; call it with each Progress."""

    _start: tuple[float, Progress] | None = None

    def __call__(self, progress: Progress) -> None:
        """Show how far the run is, and first why documents are tagged again."""
        now = time.monotonic()
        if self._start is None:
            for reason in progress.reasons:
                info(f"Unchanged documents are tagged again, because {reason}")
        if self._start is None or (progress.in_flight and not self._start[1].in_flight):
            # Loading models takes time, but is no work: it must not count towards the speed.
            self._start = (now, progress)
        line = _run_line(progress) + _pace(progress, *self._start, now=now)
        self.show(line, share=progress.share, now=now, always=progress.shards_done == progress.shards)


class TrainingProgress(_Display):
    """Shows the progress of one training; call it after each batch."""

    _first: "tuple[float, EpochProgress] | None" = None

    def __call__(self, progress: "EpochProgress") -> None:
        """Show how far the epoch is; the bar ends with it, when its scores follow."""
        now = time.monotonic()
        if self._first is None or self._first[1].epoch != progress.epoch:
            # The speed is measured from the end of the first batch, since what came before was no training.
            self._first, self._last_line = (now, progress), now
        elif progress.words_done < progress.words:
            share, (started, first) = progress.words_done / progress.words, self._first
            rate = (progress.words_done - first.words_done) / max(now - started, 1e-9)
            left = timedelta(seconds=round((progress.words - progress.words_done) / rate))
            line = (
                f"epoch {progress.epoch}/{progress.epochs}: {progress.words_done:,} of {progress.words:,} words "
                f"({share:.0%}), loss {progress.loss():.3f}; {rate:,.0f} words/s, {left} left"
            )
            self.show(line, share=share, now=now)
        else:
            self.close()


@contextmanager
def counting(noun: str, *, total: int | None = None) -> Iterator[Callable[[int], object]]:
    """Count on a terminal how many of something are done; yields a function to call with how many more."""
    counts = TextColumn("{task.completed:,.0f} {task.fields[noun]}")
    with _bar(BarColumn(20), counts, disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("", total=total, noun=noun)
        yield lambda number: bar.advance(task, number)


def _bar(*columns: ProgressColumn, disable: bool = False, transient: bool = False) -> Bar:
    console = Console(stderr=True, force_terminal=True, markup=False, highlight=False)
    return Bar(*columns, console=console, disable=disable, transient=transient, refresh_per_second=4)


def _text() -> TextColumn:
    return TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=False))


def _run_line(progress: Progress) -> str:
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
