"""A tagger as an MLflow model, which holds data only and is loaded by this module.

``mlflow.pyfunc.load_model("models:/NAME@champion").predict(texts)`` and ``mlflow models serve`` use the stages of a
run, so they return the entities that ``concord annotate`` writes.
"""

import importlib.metadata
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from concord.pipeline.threads import wait_passively

# MLflow imports this module first, and torch reads the setting when it is imported below.
wait_passively()

import numpy as np

from concord.models.checkpoint import CONFIG_NAME
from concord.models.config import Config, ConfigError
from concord.pipeline.config import ParserConfig, TaggerRunConfig
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import ModelError
from concord.pipeline.identity import ResolvedTagger, component_signature
from concord.pipeline.parsing.stanza_parser import parser_identity
from concord.pipeline.texts import TextAnnotator
from concord.workflows.bundles import check_bundle, pack_bundle

TEXT = "text"
ENTITY_FIELDS = ("start_char", "end_char", "text", "label", "confidence", "uncertainty")
EXAMPLE = ["Ada Lovelace wrote to Charles Babbage from Surrey.", "She never saw Turin."]
BUNDLE = "bundle"
# What this code imports when it serves; the code itself is not installed from a package index.
_REQUIREMENTS = (
    *("mlflow", "torch", "stanza", "pyarrow", "safetensors", "numpy", "pydantic", "orjson", "PyYAML"),
    *("charset-normalizer", "fsspec", "Jinja2"),
)


class ServingConfig(Config):
    """Configuration of a served tagger: the ``model_config`` of MLflow."""

    parser: ParserConfig = ParserConfig()
    tagger: TaggerRunConfig = TaggerRunConfig()
    """Without the key ``model``."""


def write_model(bundle: Path, folder: Path) -> None:
    """Write a bundle as an MLflow model into a new folder.

    Raises:
        ModelError: when the bundle is incomplete, or its parser is not installed.
    """
    # Otherwise MLflow adds the project files of the current folder.
    os.environ.setdefault("MLFLOW_UV_AUTO_DETECT", "false")
    from mlflow import pyfunc

    with tempfile.TemporaryDirectory() as staging:
        packed = Path(staging) / BUNDLE
        pack_bundle(bundle, packed)
        pyfunc.save_model(
            path=str(folder),
            loader_module="concord.workflows.serving",
            data_path=str(packed),
            signature=_signature(),
            input_example=EXAMPLE,
            pip_requirements=_requirements(packed),
            # MLflow accepts only these keys in a later model_config.
            model_config={"parser": {}, "tagger": {}},
        )


class ServedTagger:
    """A parser and a tagger behind MLflow's ``predict``; thread-safe."""

    def __init__(self, annotator: TextAnnotator) -> None:
        self._annotator = annotator

    def predict(self, model_input: Any) -> list[list[dict[str, Any]]]:
        """Return the entities of each text, in order.

        Args:
            model_input: a data frame with the column ``text``, or texts.

        Returns:
            for each text its entities by ``ENTITY_FIELDS``; offsets are code points of the text, half-open.

        Raises:
            MlflowException: with the code of a bad request, naming the text that cannot be annotated.
        """
        texts = _texts(model_input)
        outcomes = self._annotator.annotate(texts)
        for outcome in outcomes:
            if isinstance(outcome, DeadLetter):
                raise _bad_request(f"text {outcome.position}: {outcome.stage}: {outcome.message}")
        entities: list[list[dict[str, Any]]] = [[] for _ in texts]
        for row in self._annotator.tables(outcomes)["entities"].to_pylist():
            entities[int(row["doc_id"])].append({name: row[name] for name in ENTITY_FIELDS})
        return entities


def _load_pyfunc(data_path: str, model_config: Mapping[str, Any] | None = None) -> ServedTagger:
    """Load a model; called by MLflow under this name, with the keys of ServingConfig.

    Raises:
        ConfigError: naming the key.
        ModelError: when a file is not what was registered, or the parser is not that of the manifest.
    """
    config = ServingConfig.from_mapping(model_config or {}, where="model_config")
    if "model" in config.tagger.model_fields_set:
        raise ConfigError("model_config: tagger.model: expected no such key, since the model is already loaded")
    folder = Path(data_path)
    manifest = check_bundle(folder)
    parser = component_signature(parser_identity(config.parser))
    if parser != manifest["parser"]:
        raise ModelError(
            f"{folder}: expected the parser {manifest['parser']}, got {parser}; choose its package by "
            "model_config={'parser': {'package': ...}}"
        )
    tagger = ResolvedTagger(name=folder.name, version=None, digest=manifest["digest"], folder=folder)
    return ServedTagger(TextAnnotator.load(tagger, parser=config.parser, run=config.tagger))


def _texts(model_input: Any) -> list[str]:
    """Return the texts in the input from MLflow: a data frame, a column of one, an array or a list."""
    import pandas as pd

    if isinstance(model_input, pd.DataFrame):
        columns = list(model_input.columns)
        # MLflow converts a list to a frame with a single column named 0.
        if TEXT not in columns and columns != [0]:
            raise _bad_request(
                f"expected texts or a column {TEXT!r}, got {', '.join(map(str, columns)) or 'no column'}"
            )
        model_input = model_input[TEXT if TEXT in columns else 0]
    if isinstance(model_input, str) or not isinstance(model_input, Sequence | pd.Series | np.ndarray):
        raise _bad_request(f"expected texts or a data frame with a column {TEXT!r}, got {type(model_input).__name__}")
    return [_text(number, value) for number, value in enumerate(model_input)]


def _text(number: int, value: object) -> str:
    if isinstance(value, np.ndarray):
        # The server converts each value of a record to a zero-dimensional array.
        value = value.tolist()
    if not isinstance(value, str):
        raise _bad_request(f"text {number}: expected a string, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _bad_request(f"text {number}: expected whole characters, got half a surrogate pair: {error}") from error
    return str(value)


def _bad_request(message: str) -> Exception:
    """Return an error that the server answers with status 400; any other would be an internal server error."""
    from mlflow.exceptions import MlflowException

    error: Exception = MlflowException.invalid_parameter_value(message)
    return error


def _requirements(bundle: Path) -> list[str]:
    """Return the requirements for serving, in the versions installed here; MLflow would take seconds to infer them."""
    uses_encoder = json.loads((bundle / CONFIG_NAME).read_bytes())["config"].get("encoder") is not None
    names = [*_REQUIREMENTS, *(["transformers"] if uses_encoder else [])]
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in names]


def _signature() -> Any:
    """Return the signature of a served tagger.

    Its input is an unnamed value of any type, and ``_texts`` checks that it is text. With the type string, MLflow would
    accept nulls, and the server would convert nulls and numbers to text; with a name, it would refuse lists.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import AnyType, Array, Object, Property

    kinds = {"start_char": DataType.long, "end_char": DataType.long, "text": DataType.string, "label": DataType.string}
    entity = Object([Property(name, kinds.get(name, DataType.double)) for name in ENTITY_FIELDS])
    return ModelSignature(inputs=Schema([ColSpec(AnyType())]), outputs=Schema([ColSpec(Array(entity), "entities")]))
