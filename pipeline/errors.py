"""The tree of errors.

ConcordError
    ConfigError (models.config)  a configuration that cannot be used           exit 2
    PlanError                    the output holds another run's plan           exit 2
    InputError                   an input that cannot be opened at all         exit 2
    ModelError                   a parser or tagger that cannot load           exit 2
    ReconciliationError          documents went missing or came twice          exit 1
    ShardError                   a shard failed on every try                   exit 1
    IntegrityError               files are not what the manifest says          exit 1
    StoreError                   no space or no store, try again               exit 75

A fault of one document is not an exception that ends a run: it becomes a dead letter.
"""


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


class ShardError(ConcordError):
    """A shard failed on every try."""


class IntegrityError(ConcordError):
    """A file is missing, strayed, or is not what its commit record says."""


class StoreError(ConcordError):
    """The store has no space or cannot be reached; the same command may be tried again."""

    exit_code = 75
