"""Load a saved tagger, or hash its files; what cannot be read is a ModelError, which the command line reports."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from concord.models import checkpoint
from concord.models.tagger import Tagger
from concord.pipeline.errors import ModelError


def load_tagger(folder: Path, *, device: str) -> Tagger:
    """Load the tagger of a bundle, ready to predict.

    Raises:
        ModelError: when it does not load.
    """
    with _model_errors():
        return checkpoint.load_tagger(folder, device=device)


def read_saved(folder: Path) -> checkpoint.SavedTagger:
    """Return the configuration and vocabulary of a bundle.

    Raises:
        ModelError: when its file is missing or not of this format.
    """
    with _model_errors():
        return checkpoint.read_saved(folder)


def tagger_digest(folder: Path) -> str:
    """Return the digest of a bundle (concord.models.checkpoint.tagger_digest).

    Raises:
        ModelError: when a file is missing.
    """
    with _model_errors():
        return checkpoint.tagger_digest(folder)


@contextmanager
def _model_errors() -> Iterator[None]:
    try:
        yield
    except checkpoint.ModelLoadError as error:
        raise ModelError(str(error)) from error
