"""Load a saved tagger, or hash its files; what cannot be read is a ModelError, which the command line reports."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from concord.models import saved_tagger
from concord.pipeline.errors import ModelError

if TYPE_CHECKING:
    from concord.models.tagger import Tagger


def load_tagger(folder: Path, *, device: str) -> "Tagger":
    """Load the tagger of a bundle, ready to predict.

    Raises:
        ModelError: when it does not load.
    """
    from concord.models import checkpoint

    with _model_errors():
        return checkpoint.load_tagger(folder, device=device)


def read_saved(folder: Path) -> saved_tagger.SavedTagger:
    """Return the configuration and vocabulary of a bundle.

    Raises:
        ModelError: when its file is missing or not of this format.
    """
    with _model_errors():
        return saved_tagger.read_saved(folder)


def tagger_digest(folder: Path) -> str:
    """Return the digest of a bundle (concord.models.saved_tagger.tagger_digest).

    Raises:
        ModelError: when a file is missing.
    """
    with _model_errors():
        return saved_tagger.tagger_digest(folder)


@contextmanager
def _model_errors() -> Iterator[None]:
    try:
        yield
    except saved_tagger.ModelLoadError as error:
        raise ModelError(str(error)) from error
