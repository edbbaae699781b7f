"""The executor interface: it moves shards to workers and returns their reports, and never looks inside."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from concord.pipeline.errors import StoppedError
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.worker.shard_worker import ParseWorker, ShardWorker, Timings

BuildWorker = Callable[[Plan], ShardWorker]
BuildParseWorker = Callable[[Plan], ParseWorker]
OnReport = Callable[[ShardReport, Timings], None]


class Executor(Protocol):
    """Runs shards on workers."""

    def run(self, plan: Plan, shards: Sequence[Shard], on_report: OnReport) -> Mapping[str, int]:
        """Annotate and commit every shard.

        Args:
            on_report: called in the driver after each shard; shards may finish in any order.

        Returns:
            how many workers were replaced, by cause: worker_died, time_limit, memory.

        Raises:
            StoppedError: after SIGTERM or SIGINT, once the shards in flight are done.
            ModelError: when parser or tagger cannot be loaded.
            ShardError: when a shard failed on every attempt.
            ConcordError: what a worker raised.
        """


class StopRequest:
    """Whether a signal has asked the run to stop."""

    def __init__(self) -> None:
        """Start without a signal."""
        self.received: signal.Signals | None = None

    def raise_if_received(self) -> None:
        """Raise StoppedError if a signal has arrived."""
        if self.received is not None:
            raise StoppedError(self.received)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Only remember SIGTERM and SIGINT while the block runs; a second SIGINT interrupts at once.

    Outside the main thread, where Python accepts no signal handlers, no signal is ever remembered.
    """
    request = StopRequest()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and request.received is not None:
            raise KeyboardInterrupt
        request.received = signal.Signals(number)

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
