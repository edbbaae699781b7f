"""The executor interface, and the executor that runs shards one after the other in this process.

An executor moves shards to workers and returns their reports, and never looks inside.
"""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from concord.models.errors import ConcordError
from concord.pipeline.errors import DeviceError, ShardError, StoppedError
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.resources import existing_objects_frozen, torch_threads
from concord.pipeline.worker.attempts import ShardRunner
from concord.pipeline.worker.shard_progress import OnShardProgress, ShardProgress, Timings
from concord.pipeline.worker.shard_worker import BuildWorker, build_worker

logger = logging.getLogger(__name__)

OnReport = Callable[[CommitRecord, Timings], None]


Executor = Callable[[Plan, Sequence[Shard], OnReport, OnShardProgress], None]
"""Annotates and commits shards on workers, and calls back in the driver after each; they may finish in any order.

It raises what a worker raised, ShardError for a shard on which one worker after the other died, and StoppedError after
SIGTERM or SIGINT, once the shards in flight are done or their time is up.
"""


class StopRequest:
    """Whether a signal has asked the run to stop, and how long shards in flight may still take."""

    def __init__(self, drain_seconds: float = 0.0) -> None:
        self.received: signal.Signals | None = None
        self._drain_seconds = drain_seconds
        self._deadline = math.inf

    def receive(self, number: signal.Signals) -> None:
        """Take the first signal, and say what it does."""
        self.received = number
        self._deadline = time.monotonic() + self._drain_seconds
        logger.warning(
            "%s: no further shard is started; those in flight have %g s to finish, and one that does not is done "
            "again by the next run. A second signal stops at once",
            number.name,
            self._drain_seconds,
        )

    @property
    def is_overdue(self) -> bool:
        """Whether a signal has arrived and the time for shards in flight is up."""
        return time.monotonic() >= self._deadline

    def raise_if_received(self) -> None:
        """Raise StoppedError if a signal has arrived."""
        if self.received is not None:
            raise StoppedError(self.received)


@contextmanager
def stop_request(drain_seconds: float = 0.0) -> Iterator[StopRequest]:
    """Only remember the first SIGTERM or SIGINT while the block runs; a second one interrupts at once.

    Outside the main thread, where Python accepts no signal handlers, no signal is ever remembered.
    """
    request = StopRequest(drain_seconds)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if request.received is None:
            request.receive(signal.Signals(number))
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            # None is a handler that was not set from Python.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def run_locally(
    plan: Plan,
    shards: Sequence[Shard],
    on_report: OnReport,
    on_progress: OnShardProgress,
    *,
    drain_seconds: float,
    build: BuildWorker = build_worker,
) -> None:
    """Run shards in this process, without worker processes; otherwise as ``Executor`` describes.

    A shard that kills this process is tried again by the next run of the same command.
    """
    # The worker sets the threads of this process, which may be a user's own.
    with torch_threads(plan.threads), stop_request(drain_seconds) as stop:

        def between_batches(progress: ShardProgress) -> None:
            if stop.is_overdue:
                stop.raise_if_received()
            on_progress(progress)

        runner = ShardRunner(plan, build)
        with existing_objects_frozen():
            for shard in shards:
                stop.raise_if_received()
                try:
                    report, timings = runner.run(shard, on_progress=between_batches)
                except DeviceError as error:
                    raise DeviceError(
                        f"shard {shard.name}: {error}\nCommitted shards are kept: run the same command again to "
                        "continue in a new process, or with tagger.device=cpu and parser.device=cpu"
                    ) from error
                except ConcordError:
                    raise
                except Exception as error:
                    raise ShardError(f"shard {shard.name}: {type(error).__name__}: {error}") from error
                on_report(report, timings)
