"""A tagger as an MLflow model, which holds data only and is loaded by this module.

``mlflow.pyfunc.load_model("models:/NAME@champion").predict(texts)`` and ``mlflow models serve`` use the stages of a
run, so they return the entities that ``concord annotate`` writes. Requests take turns.
"""

import importlib.metadata
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from concord.pipeline.resources import wait_passively

# MLflow imports this module first, and torch reads the setting when it is imported below.
wait_passively()

from concord.models.adapters.base import AdaptedTagger
from concord.models.bundles.manifest import needed_encoders, read_saved, tagger_digest
from concord.models.bundles.registry import tagger_class
from concord.models.config import Config
from concord.models.errors import ConfigError, ModelError
from concord.pipeline.config import ParserConfig, TaggerRunConfig
from concord.pipeline.documents import DeadLetter
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.texts import TextAnnotator
from concord.workflows.bundles import copy_bundle

BUNDLE = "bundle"
"""Folder of the bundle in an MLflow model."""
TEXT = "text"
ENTITY_FIELDS = ("start_char", "end_char", "text", "label", "confidence", "uncertainty")
EXAMPLE = ["Ada Lovelace wrote to Charles Babbage from Surrey.", "She never saw Turin."]
TextEntities: TypeAlias = list[list[dict[str, Any]]]
"""For each text its entities by ``ENTITY_FIELDS``; offsets are code points of the text, half-open."""
# What this code imports when it serves; the code itself is not installed from a package index.
_REQUIREMENTS = (
    *("mlflow", "torch", "stanza", "pyarrow", "safetensors", "numpy", "pydantic", "orjson", "PyYAML"),
    *("chardet", "fsspec", "Jinja2", "webencodings"),
)


class ServingConfig(Config):
    """Configuration of a served tagger: the ``model_config`` of MLflow."""

    parser: ParserConfig = ParserConfig()
    tagger: TaggerRunConfig = TaggerRunConfig()
    """Without the key ``model``."""
    digest: str
    """That of the registered tagger."""


def write_model(bundle: Path, folder: Path) -> None:
    """Write a bundle as an MLflow model into a new folder.

    Raises:
        ModelError: when the bundle is incomplete.
    """
    # Otherwise MLflow adds the project files of the current folder.
    os.environ.setdefault("MLFLOW_UV_AUTO_DETECT", "false")
    from mlflow import pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import AnyType

    with tempfile.TemporaryDirectory() as staging:
        packed = Path(staging) / BUNDLE
        copy_bundle(bundle, packed)
        pyfunc.save_model(
            path=str(folder),
            loader_module="concord.workflows.serving",
            data_path=str(packed),
            # With the type string, MLflow would accept nulls, and its server would convert nulls and numbers to text;
            # with a name, it would refuse lists.
            signature=ModelSignature(inputs=Schema([ColSpec(AnyType())])),
            input_example=EXAMPLE,
            pip_requirements=_requirements(packed),
            # MLflow accepts only these keys in a later model_config.
            model_config={"parser": {}, "tagger": {}, "digest": tagger_digest(packed)},
        )


class ServedTagger:
    """A parser and a tagger behind MLflow's ``predict``; thread-safe."""

    def __init__(self, annotator: TextAnnotator) -> None:
        self._annotator = annotator

    def predict(self, model_input: Any) -> TextEntities:
        """Return the entities of each text, in order.

        Args:
            model_input: a data frame with the column ``text``, or texts.

        Raises:
            MlflowException: with the code of a bad request, naming the text that cannot be annotated.
        """
        outcomes = self._annotator.annotate(_texts(model_input))
        for outcome in outcomes:
            if isinstance(outcome, DeadLetter):
                raise _bad_request(f"{outcome.stage}: {outcome.message}")
        entities: TextEntities = [[] for _ in outcomes]
        for row in self._annotator.tables(outcomes)["entities"].to_pylist():
            entities[int(row["doc_id"])].append({name: row[name] for name in ENTITY_FIELDS})
        return entities


def _load_pyfunc(data_path: str, model_config: Mapping[str, Any] | None = None) -> ServedTagger:
    """Load a model; called by MLflow under this name, with the keys of ServingConfig.

    Raises:
        ConfigError: naming the key.
        ModelError: when a file is not what was registered, or the tagger reads trees of another parser.
    """
    config = ServingConfig.from_mapping(model_config or {}, where="model_config")
    if "model" in config.tagger.model_fields_set:
        raise ConfigError("model_config: tagger.model: expected no such key, since the model is already loaded")
    folder = Path(data_path)
    if (digest := tagger_digest(folder)) != config.digest:
        raise ModelError(f"{folder}: expected the digest {config.digest}, got {digest}: not what was registered")
    tagger = ResolvedTagger(
        name=folder.name, version=None, digest=digest, folder=folder, parser=read_saved(folder).parser
    )
    return ServedTagger(TextAnnotator.load(tagger, parser=config.parser, settings=config.tagger))


def _texts(model_input: Any) -> list[object]:
    """Return the values in the input from MLflow: a data frame, a column of one, an array or a list."""
    import pandas as pd

    if isinstance(model_input, pd.DataFrame):
        columns = list(model_input.columns)
        # MLflow converts a list to a frame with a single column named 0.
        if TEXT not in columns and columns != [0]:
            got = ", ".join(map(str, columns)) or "no column"
            raise _bad_request(f"expected texts or a column {TEXT!r}, got {got}")
        model_input = model_input[TEXT if TEXT in columns else 0]
    if isinstance(model_input, str) or not hasattr(model_input, "__len__") or isinstance(model_input, Mapping):
        raise _bad_request(f"expected texts or a data frame with a column {TEXT!r}, got {type(model_input).__name__}")
    # The server converts each value of a record to a zero-dimensional array.
    return [value.tolist() if hasattr(value, "tolist") else value for value in model_input]


def _bad_request(message: str) -> Exception:
    """Return an error that the server answers with status 400; others are answered by 500."""
    from mlflow.exceptions import MlflowException

    error: Exception = MlflowException.invalid_parameter_value(message)
    return error


def _requirements(bundle: Path) -> list[str]:
    """Return the requirements for serving, in the versions installed here; MLflow would take seconds to infer them."""
    tagger_type = tagger_class(read_saved(bundle).tagger)
    libraries = ["transformers"] if any(needed_encoders(bundle)) else []
    if issubclass(tagger_type, AdaptedTagger):
        libraries.append(tagger_type.library)
    names = [*_REQUIREMENTS, *libraries]
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in names]
