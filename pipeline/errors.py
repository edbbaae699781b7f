"""The tree of errors.

ConcordError
    ConfigError (concord.models.config)  a configuration that cannot be used           exit 2
    PlanError                    the output holds another run's plan           exit 2
    InputError                   an input that cannot be opened at all         exit 2
    ModelError                   a parser or tagger that cannot load           exit 2
    ReconciliationError          documents went missing or came twice          exit 1
    DeadLetterLimitError         finished, with more dead letters than allowed  exit 3
    ShardError                   a shard failed on every try                   exit 1
    ShortageError                no memory, even for smaller batches           exit 1
    IntegrityError               files are not what the manifest says          exit 1
    StoreError                   no space or no store, try again               exit 75
    StoppedError                 a signal, after shards in flight were done    exit 130, 143

A fault of one document is not an exception that ends a run: it becomes a dead letter.
"""

import signal


class ConcordError(Exception):
    """The base of every error that the command line explains instead of tracing."""

    exit_code = 1


class PlanError(ConcordError):
    """The output folder holds another run's plan."""

    exit_code = 2


class InputError(ConcordError):
    """An input that cannot be opened at all."""

    exit_code = 2


class ModelError(ConcordError):
    """A parser or tagger that cannot load."""

    exit_code = 2


class ReconciliationError(ConcordError):
    """read = annotated + unchanged + dead letters does not hold."""


class DeadLetterLimitError(ConcordError):
    """A run is finished, and more of its records became dead letters than ``max_dead_letters`` allows."""

    exit_code = 3


class ShardError(ConcordError):
    """A shard failed on every try."""


class ShortageError(ConcordError):
    """Memory has run out: the worker tries smaller batches, and gives up where single documents find none."""


class IntegrityError(ConcordError):
    """A file is missing, strayed, or is not what its commit record says."""


class StoreError(ConcordError):
    """The store has no space or cannot be reached; the same command may be tried again."""

    exit_code = 75


class StoppedError(ConcordError):
    """The run was asked to stop by a signal, and did so after the shards in flight were committed."""

    def __init__(self, received: signal.Signals) -> None:
        """Take the signal; the exit code is 128 and its number."""
        super().__init__(f"stopped by {received.name}; what is committed stays, the same command goes on from there")
        self.exit_code = 128 + received
