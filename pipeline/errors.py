"""The errors of a run that concord.models.errors lacks. A fault in one document is none: it becomes a dead letter."""

import signal

from concord.models.errors import ConcordError


class PlanError(ConcordError):
    """The output folder holds another run, or its plan does not allow this one."""

    exit_code = 2


class InputError(ConcordError):
    """An input that cannot be opened at all."""

    exit_code = 2


class ReconciliationError(ConcordError):
    """The equation read = annotated + unchanged + dead letters does not hold."""


class DeadLetterLimitError(ConcordError):
    """A run is finished, and more of its records became dead letters than ``max_dead_letters`` allows."""

    exit_code = 3


class ShardError(ConcordError):
    """A shard failed on every attempt."""


class ShortageError(ConcordError):
    """Out of memory: the shard is annotated in a process of its own, unless it is when it is read or written."""


class DeviceError(ConcordError):
    """A GPU that broke off its work: a process that has lost its device cannot use it again, but another may."""


class IntegrityError(ConcordError):
    """A file is missing, orphaned, or not what its commit record says."""


class StoreError(ConcordError):
    """The store has no space or cannot be reached; run the same command again later."""

    exit_code = 75


class BusyError(ConcordError):
    """Another run writes to the collection, which takes one writer at a time."""

    exit_code = 75


class StoppedError(ConcordError):
    """A signal asked the run to stop, which it did after its shards in flight, or when their time was up."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(
            f"stopped by {received.name}; committed shards are kept; the same command continues from there"
        )
        self.exit_code = 128 + received
