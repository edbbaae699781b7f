"""How far a run is, on stderr: a bar on a terminal, a line now and then in a log."""

import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm

from pipeline.annotate import Progress
from workflows.console import note

LINE_SECONDS = 30.0


class RunProgress:
    """Shows the progress of one annotation run; call it with each Progress."""

    def __init__(self, *, terminal: bool | None = None) -> None:
        """Begin.

        Args:
            terminal: whether to draw a bar; asks stderr if None.
        """
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._bar: tqdm[None] | None = None
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, progress: Progress) -> None:
        """Show how far the run is."""
        if self._terminal:
            self._draw(progress)
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            note(
                f"{progress.read_done:,} of {progress.read:,} records, "
                f"{progress.shards_done:,} of {progress.shards:,} shards"
            )

    def _draw(self, progress: Progress) -> None:
        if self._bar is None:
            # Records of an earlier call must not count into this call's speed.
            self._bar = tqdm(
                total=progress.read, initial=progress.read_done, unit="record", desc="annotate", file=sys.stderr
            )
        self._bar.update(progress.read_done - self._bar.n)
        self._bar.set_postfix_str(f"shard {progress.shards_done}/{progress.shards}")
