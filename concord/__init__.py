"""Annotate document collections: sentences, tokens, dependency trees and entities with a document memory.

>>> nlp = concord.load()
>>> [entity.text for entity in nlp("Ada met Charles in London.").entities]
['Ada', 'Charles', 'London']

The heavy imports wait until something is loaded.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from concord.doc import Doc, Entity, Sentence, Token
    from concord.models.errors import ConcordError, ConfigError
    from concord.nlp import Nlp
    from concord.ray_data import Annotator
    from concord.runs import Run

__all__ = [
    "Annotator",
    "ConcordError",
    "ConfigError",
    "Doc",
    "Entity",
    "Nlp",
    "Run",
    "Sentence",
    "Token",
    "annotate",
    "load",
    "open",
    "read_text",
]

_LAZY = {
    "Annotator": "concord.ray_data",
    "ConcordError": "concord.pipeline.errors",
    "ConfigError": "concord.models.config",
    "Doc": "concord.doc",
    "Entity": "concord.doc",
    "Nlp": "concord.nlp",
    "Run": "concord.runs",
    "Sentence": "concord.doc",
    "Token": "concord.doc",
}


def load(
    model: str | Path | None = None,
    *,
    terms: str | Path | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> "Nlp":
    """Load a tagger and its parser, to be called with texts.

    Args:
        model: a bundle's folder, the name of a bundled tagger, or ``models:/NAME@ALIAS`` of the MLflow registry;
            ``entities_en`` if None, or ``entities_en_small`` where the encoder is not installed.
        terms: a list of terms and patterns, one JSON object a line, as ``tagger.terms`` of an annotation job.
        device: cpu, cuda or auto; cpu if None.
        settings: further keys of ``parser`` and ``tagger`` in an annotation job, as ``--set`` takes them:
            ``{"parser.package": "default"}``.

    Raises:
        ConfigError: for a key or value that does not exist.
        ModelError: when the tagger or the parser cannot be loaded.
        InputError: when the list of terms cannot be read, or has labels that the tagger does not know.
    """
    _prepare_process()
    from concord import nlp

    return nlp.load(model, terms=terms, device=device, settings=settings)


def annotate(
    input: str | Path,
    output: str | Path | None = None,
    *,
    model: str | None = None,
    executor: Literal["local", "ray"] | None = None,
    actors: int | None = None,
    limit: int | None = None,
    rehash: bool | None = None,
    settings: Mapping[str, Any] | None = None,
) -> "Run":
    """Annotate a collection as ``concord annotate`` does: exactly once, and only what is new or changed.

    Args:
        input: a file, a folder, a pattern or a URL; or a job file (.yaml), whose keys the other arguments override.
        output: folder or URL (``s3://``, ``gs://``, ``az://``) of the collection; may be None where a job file names
            it.
        model, executor, actors, limit, rehash: as the options of the command line.
        settings: further keys of the job, as ``--set`` takes them: ``{"reader.text_field": "body"}``.

    Raises:
        ConfigError: for a key or value that does not exist.
        DeadLetterLimitError: when more records became dead letters than ``max_dead_letters`` allows; the collection is
            finished all the same.
        ConcordError: as the command line explains it (concord.pipeline.errors).
    """
    _prepare_process()
    from concord import runs

    return runs.annotate(
        input,
        output,
        model=model,
        executor=executor,
        actors=actors,
        limit=limit,
        rehash=rehash,
        settings=settings,
    )


def open(output: str | Path, *, generation: int | None = None, version: str | None = None) -> "Run":
    """Open a finished collection.

    Args:
        output: its folder or URL (``s3://``, ``gs://``, ``az://``).
        generation: the number of an earlier generation that is still kept (``concord history``).
        version: the name of one (``concord history --tag``).

    Raises:
        PlanError: when there is no finished run, or not this generation.
        IntegrityError: when its manifest cannot be read.
    """
    _prepare_process()
    from concord import runs

    return runs.open_run(output, generation=generation, version=version)


def read_text(row: Any, *, settings: Mapping[str, Any] | None = None) -> str:
    """Return the raw text of an annotated document: the one in which its offsets count code points.

    Raw means decoded and nothing else. A byte order mark is no part of the text, and line ends stay as they are in the
    file (``open().read()`` keeps the mark and replaces ``\\r\\n``). Of HTML, the raw text is the extracted one.

    Args:
        row: of the table ``documents``, as a mapping, a pandas Series or anything with its columns as attributes. Where
            it has no ``raw_text`` (``output.keep_text``), the text is read again from its ``source_uri``.
        settings: the keys of the section ``reader`` that the job set, as ``{"reader.text_field": "body"}``;
            ``Run.read_text`` knows them.

    Raises:
        InputError: when the source is gone, or no longer holds a text with the ``text_sha256`` of the row.
        ValueError: when the row is none of ``documents``.
    """
    _prepare_process()
    from concord import runs

    return runs.read_text(row, settings=settings)


if not TYPE_CHECKING:  # a type checker shall find unknown names

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'concord' has no attribute {name!r}")
        _prepare_process()
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


def _prepare_process() -> None:
    """Set the environment variables that torch and Ray read once, when they are imported."""
    from concord.workflows.console import set_environment

    set_environment()
