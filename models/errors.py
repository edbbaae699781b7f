"""The errors that a caller may catch, each with the exit code of the command line; concord.pipeline.errors has more."""


class ConcordError(Exception):
    """Base class of the errors for which the command line prints a message instead of a traceback."""

    exit_code = 1


class ConfigError(ConcordError, ValueError):
    """An invalid configuration; the message names the key, what was expected and what was found."""

    exit_code = 2


class ModelError(ConcordError):
    """A parser or tagger that cannot be loaded; the message names the file and the fault."""

    exit_code = 2


class EncoderMissingError(ModelError):
    """A tagger's encoder is not installed, or its weights are not the expected ones."""
