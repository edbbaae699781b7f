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
    """Shows how far some work is, with its mean speed and the time left at that speed."""

    def __init__(self, *, terminal: bool | None = None) -> None:
        """Draw a bar if ``terminal``, or if it is None and stderr is a terminal; else write lines."""
        self._is_terminal = sys.stderr.isatty() if terminal is None else terminal
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._last_line = time.monotonic()
        self._start: tuple[float, float, int] | None = None

    def close(self) -> None:
        """Stop drawing; the last line stays."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, line: str, *, share: float, words: int, restart: bool = False, always: bool = False) -> None:
        """Draw the line, or write it to a log if it is due, or ``always``; the speed counts from a ``restart``."""
        now = time.monotonic()
        if self._start is None or restart:
            self._start = (now, share, words)
        seconds, done = now - self._start[0], share - self._start[1]
        if seconds > 0 and done > 0:
            left = timedelta(seconds=round((1 - share) * seconds / done))
            line += f"; {(words - self._start[2]) / seconds:,.0f} words/s, {left} left"
        if self._is_terminal:
            self._draw(line, share)
        elif always or now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            info(line)

    def _draw(self, line: str, share: float) -> None:
        if self._bar is None:
            text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=False))
            self._bar = _bar(TextColumn("{task.percentage:3.0f}%"), BarColumn(20), text)
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()
        self._bar.update(self._task, completed=share, description=line)


class RunProgress(_Display):
    """Shows the progress of one annotation run; call it with each Progress."""

    _works = False

    def __call__(self, progress: Progress) -> None:
        """Show how far the run is, and first why documents are tagged again."""
        if self._start is None:
            for reason in progress.reasons:
                info(f"Unchanged documents are tagged again, because {reason}")
        # Loading models takes time, but is no work: it must not count towards the speed.
        is_first, self._works = bool(progress.in_flight) and not self._works, self._works or bool(progress.in_flight)
        is_last = progress.shards_done == progress.shards
        self._show(_line(progress), share=progress.share, words=progress.words, restart=is_first, always=is_last)


class TrainingProgress(_Display):
    """Shows the progress of one training; call it after each batch."""

    _epoch = 0

    def __call__(self, progress: "EpochProgress") -> None:
        """Show how far the epoch is; the bar ends with it, when its scores follow."""
        # The speed is measured from the end of the first batch, since what came before was no training.
        is_first, self._epoch = progress.epoch != self._epoch, progress.epoch
        if progress.words_done >= progress.words:
            self.close()
            return
        if is_first:
            self._last_line = time.monotonic()
        share = progress.words_done / progress.words
        line = (
            f"epoch {progress.epoch}/{progress.epochs}: {progress.words_done:,} of {progress.words:,} words "
            f"({share:.0%}), loss {progress.loss():.3f}"
        )
        self._show(line, share=share, words=progress.words_done, restart=is_first)


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
    shards = [
        f"{shard.shard:05d}" if shard.stage is None else f"{stages[shard.stage]} {shard.shard:05d} ({shard.share:.0%})"
        for shard in progress.in_flight[:2]
    ]
    if len(progress.in_flight) > len(shards):
        shards.append(f"{len(progress.in_flight) - len(shards)} more")
    return f" ({', '.join(shards)})" if shards else ""
