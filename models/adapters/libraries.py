"""Other libraries, installed by an extra, and the files that their models are read from; nothing here imports torch."""

import importlib.util
from pathlib import Path
from typing import Any

from concord.models.errors import ModelError

_CONFIG_NAME = "config.cfg"


def require_library(name: str, *, extra: str) -> None:
    """Raise a ModelError that says how to install a library, unless it is."""
    if importlib.util.find_spec(name) is None:
        raise ModelError(f"expected the library {name}; install it with the extra {extra!r}: pip install '.[{extra}]'")


def find_spacy_pipeline(source: str) -> Path:
    """Return the folder of a pipeline, given as a folder or as the package that contains it; none of its code is run.

    Raises:
        ModelError: if there is no such pipeline, or spaCy is not installed.
    """
    require_library("spacy", extra="spacy")
    folder = Path(source).expanduser().absolute()
    if not folder.is_dir():
        spec = importlib.util.find_spec(source) if source.isidentifier() else None
        if spec is None or spec.origin is None:
            raise ModelError(
                f"expected a folder or an installed pipeline, got {source!r}; install it with "
                f"'python -m spacy download {source}'"
            )
        folder = Path(spec.origin).parent
    for found in (folder, *sorted(folder.glob("*/"))):
        if (found / _CONFIG_NAME).is_file():
            return found
    raise ModelError(f"{folder}: expected the folder of a spaCy pipeline, with {_CONFIG_NAME}")


def load_spacy_pipeline(folder: Path) -> Any:
    """Load a pipeline with all its components; raise ModelError if spaCy cannot."""
    require_library("spacy", extra="spacy")
    import spacy

    try:
        return spacy.load(folder)
    # Each of its components reads its own files, and raises errors of its own.
    except Exception as error:
        raise ModelError(f"{folder}: expected a spaCy pipeline: {error}") from error
