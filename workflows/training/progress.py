"""The progress within an epoch on stderr: one line on a terminal, a line now and then in a log."""

import sys
import time
from datetime import timedelta

from tqdm import tqdm

from concord.models.training.fit import EpochProgress
from concord.workflows.console import info

LINE_SECONDS = 10.0


class TrainingProgress:
    """Shows the progress of one training; call it after each batch."""

    def __init__(self, *, terminal: bool | None = None) -> None:
        """Draw a bar if ``terminal``, or if it is None and stderr is a terminal; else write lines."""
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._bar: tqdm[None] | None = None
        self._epoch = 0
        self._started = self._last_line = time.monotonic()
        self._before = 0

    def __call__(self, progress: EpochProgress) -> None:
        """Show how far the epoch is; the bar is removed at its end, when the scores of the epoch follow."""
        if self._terminal:
            self._draw(progress)
            return
        now = time.monotonic()
        if progress.epoch != self._epoch:
            # The speed is measured from the end of the first batch, since what came before was no training.
            self._epoch, self._started, self._last_line, self._before = progress.epoch, now, now, progress.words_done
        elif now > self._last_line + LINE_SECONDS and progress.words_done < progress.words:
            self._last_line = now
            rate = (progress.words_done - self._before) / (now - self._started)
            info(_line(progress, rate))

    def _draw(self, progress: EpochProgress) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=progress.words,
                unit="word",
                unit_scale=True,
                desc=f"epoch {progress.epoch}/{progress.epochs}",
                file=sys.stderr,
                leave=False,
            )
        self._bar.set_postfix(loss=f"{progress.loss():.3f}", refresh=False)
        self._bar.update(progress.words_done - self._bar.n)
        if progress.words_done >= progress.words:
            self._bar.close()
            self._bar = None


def _line(progress: EpochProgress, rate: float) -> str:
    """Format progress and the time left of the epoch at a rate in words per second."""
    left = timedelta(seconds=round((progress.words - progress.words_done) / rate))
    return (
        f"epoch {progress.epoch}/{progress.epochs}: {progress.words_done:,} of {progress.words:,} words "
        f"({progress.words_done / progress.words:.0%}), loss {progress.loss():.3f}; {rate:,.0f} words/s, {left} left"
    )
