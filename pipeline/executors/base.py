"""What every executor does: it moves shards to workers and reports back, and knows no language."""

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
    """Runs shards."""

    def run(self, plan: Plan, shards: Sequence[Shard], on_report: OnReport) -> Mapping[str, int]:
        """Have every shard done and committed.

        Args:
            on_report: called here, in the driver, after each shard; shards may come in any order.

        Returns:
            how many workers others took the place of, by cause: worker_died, time_limit, memory.

        Raises:
            StoppedError: after SIGTERM or SIGINT, when the shards in flight are done.
            ModelError: when parser or tagger cannot be loaded.
            ShardError: when a shard failed on every try.
            ConcordError: what a worker raised.
        """


class StopRequest:
    """Whether a signal has asked the run to stop."""

    def __init__(self) -> None:
        """Begin with no signal."""
        self.received: signal.Signals | None = None

    def raise_if_received(self) -> None:
        """Raise StoppedError once a signal came."""
        if self.received is not None:
            raise StoppedError(self.received)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Have SIGTERM and SIGINT only noted while the block runs; a second SIGINT interrupts at once.

    Outside the main thread, where Python takes no signal handlers, nothing is ever noted.
    """
    request = StopRequest()

    def note(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and request.received is not None:
            raise KeyboardInterrupt
        request.received = signal.Signals(number)

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            # None stands for a handler that was not set from Python.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
