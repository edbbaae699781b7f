"""A tagger as an MLflow model, which holds data only and is loaded by this module.

``mlflow.pyfunc.load_model("models:/NAME@champion").predict(texts)`` and ``mlflow models serve`` use the stages of a
run, so they return the entities that ``concord annotate`` writes. Requests take turns, and the work of each is bounded,
so that a heavy one does not keep others from being answered.
"""

import importlib.metadata
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeAlias

from concord.pipeline.threads import wait_passively

# MLflow imports this module first, and torch reads the setting when it is imported below.
wait_passively()

import numpy as np
from pydantic import Field

from concord.models.adapters.base import AdaptedTagger
from concord.models.bundles.manifest import needed_encoders, read_saved
from concord.models.bundles.registry import tagger_class
from concord.models.config import Config
from concord.models.errors import ConfigError, ModelError
from concord.pipeline.config import ParserConfig, TaggerRunConfig
from concord.pipeline.documents import DeadLetter
from concord.pipeline.identity import ResolvedTagger, component_signature
from concord.pipeline.parsing.resolve_parser import parser_for, parser_identity
from concord.pipeline.texts import TextAnnotator
from concord.workflows.bundles import BUNDLE, check_bundle, pack_bundle

TEXT = "text"
ENTITY_FIELDS = ("start_char", "end_char", "text", "label", "confidence", "uncertainty")
EXAMPLE = ["Ada Lovelace wrote to Charles Babbage from Surrey.", "She never saw Turin."]
TextEntities: TypeAlias = list[list[dict[str, Any]]]
"""For each text its entities by ``ENTITY_FIELDS``; offsets are code points of the text, half-open."""
_TURN_CHARACTERS = 50_000
_LEAST_COST = 50
# Of a turn that is long enough to measure the pace of the server by.
_MEASURED_CHARACTERS = 2_000
_PACES = 8
# What this code imports when it serves; the code itself is not installed from a package index.
_REQUIREMENTS = (
    *("mlflow", "torch", "stanza", "pyarrow", "safetensors", "numpy", "pydantic", "orjson", "PyYAML"),
    *("chardet", "fsspec", "Jinja2", "webencodings"),
)


class RequestLimits(Config):
    """The work that one request may ask for."""

    characters: int = Field(default=100_000, ge=1)
    """Most characters of all its texts; a text counts as 50 or more."""
    seconds: float = Field(default=30.0, gt=0)
    """A request that would take longer, or waits for others for so long, is refused. MLflow's server itself gives up
    after MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT, 60 s by default."""


class ServingConfig(Config):
    """Configuration of a served tagger: the ``model_config`` of MLflow."""

    parser: ParserConfig = ParserConfig()
    tagger: TaggerRunConfig = TaggerRunConfig()
    """Without the key ``model``."""
    limits: RequestLimits = RequestLimits()


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
            model_config={"parser": {}, "tagger": {}, "limits": {}},
        )


class ServedTagger:
    """A parser and a tagger behind MLflow's ``predict``; thread-safe.

    Requests are cut into turns of some texts each, which wait in one line: a small request waits for the turns before
    it, not for all of a large one.
    """

    def __init__(self, annotator: TextAnnotator, limits: RequestLimits | None = None) -> None:
        self._annotator = annotator
        self._limits = limits or RequestLimits()
        # One thread, which takes what is submitted in order.
        self._line = ThreadPoolExecutor(max_workers=1, thread_name_prefix="concord-serving")
        self._paces: deque[float] = deque(maxlen=_PACES)

    def predict(self, model_input: Any) -> TextEntities:
        """Return the entities of each text, in order.

        Args:
            model_input: a data frame with the column ``text``, or texts.

        Raises:
            MlflowException: with the code of a bad request, naming the text that cannot be annotated, or the limit
                that the request exceeds; with that of a server that is busy, if its time is up.
        """
        deadline = time.monotonic() + self._limits.seconds
        texts = _texts(model_input)
        self._check_size(sum(map(_cost, texts)))
        entities: TextEntities = []
        for turn in _turns(texts):
            work = self._line.submit(self._annotate, turn, len(entities))
            entities += self._result(work, deadline)
        return entities

    def _check_size(self, characters: int) -> None:
        """Refuse a request of too many characters, or of more than this server annotates in time."""
        advice = "send fewer texts per request, or annotate a collection with 'concord annotate'"
        limits = self._limits
        if characters > limits.characters:
            raise _refusal(
                f"expected {limits.characters:,} characters or less in all texts (limits.characters), got "
                f"{characters:,}; {advice}"
            )
        # The best of the last: one that was slowed down by its texts or by other work must not refuse what follows.
        seconds = characters / max(self._paces) if self._paces and characters >= _MEASURED_CHARACTERS else 0.0
        if seconds > limits.seconds:
            raise _refusal(
                f"expected {limits.seconds:g} s of work or less (limits.seconds), got {characters:,} characters, for "
                f"which this server needs about {seconds:.0f} s; {advice}"
            )

    def _result(self, work: Future[TextEntities], deadline: float) -> TextEntities:
        """Wait for a turn, and give it up when the time of the request ends; one that has begun ends unheard."""
        if wait([work], timeout=max(0.0, deadline - time.monotonic())).not_done:
            work.cancel()
            raise _refusal(
                f"the server is busy: the request was not finished within {self._limits.seconds:g} s (limits.seconds); "
                "send it again later, or send fewer texts per request",
                code="TEMPORARILY_UNAVAILABLE",
            )
        return work.result()

    def _annotate(self, texts: Sequence[str], first: int) -> TextEntities:
        """Return the entities of some texts of a request, the first of which is its text number ``first``."""
        started = time.monotonic()
        outcomes = self._annotator.annotate(texts, ids=[str(first + number) for number in range(len(texts))])
        for outcome in outcomes:
            if isinstance(outcome, DeadLetter):
                raise _refusal(f"text {outcome.doc_id}: {outcome.stage}: {outcome.message}")
        entities: TextEntities = [[] for _ in texts]
        for row in self._annotator.tables(outcomes)["entities"].to_pylist():
            entities[int(row["doc_id"]) - first].append({name: row[name] for name in ENTITY_FIELDS})
        if (characters := sum(map(_cost, texts))) >= _MEASURED_CHARACTERS:
            self._paces.append(characters / max(time.monotonic() - started, 1e-9))
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
    saved = read_saved(folder)
    # Words are the same if trees or tags are left out.
    whole = parser_for(
        saved.parser, ParserConfig(**config.parser.model_dump(exclude={"trees", "tags"}, exclude_unset=True))
    )
    parser = component_signature(parser_identity(whole))
    # With a tagger that reads no trees, a parser of another language may be chosen.
    is_chosen = "package" in config.parser.model_fields_set and saved.trees is None
    if parser != manifest.parser and not is_chosen:
        raise ModelError(
            f"{folder}: expected the parser {manifest.parser}, got {parser}; choose its package by "
            "model_config={'parser': {'package': ...}}"
        )
    tagger = ResolvedTagger(name=folder.name, version=None, digest=manifest.digest, folder=folder, parser=saved.parser)
    return ServedTagger(TextAnnotator.load(tagger, parser=config.parser, settings=config.tagger), config.limits)


def _cost(text: str) -> int:
    """Return the work that a text stands for, in characters: an empty one is not free."""
    return max(len(text), _LEAST_COST)


def _turns(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut a request into turns of about ``_TURN_CHARACTERS``; a text is not divided."""
    start = cost = 0
    for number, text in enumerate(texts):
        if cost and cost + _cost(text) > _TURN_CHARACTERS:
            yield texts[start:number]
            start, cost = number, 0
        cost += _cost(text)
    if start < len(texts):
        yield texts[start:]


def _texts(model_input: Any) -> list[str]:
    """Return the texts in the input from MLflow: a data frame, a column of one, an array or a list."""
    import pandas as pd

    if isinstance(model_input, pd.DataFrame):
        columns = list(model_input.columns)
        # MLflow converts a list to a frame with a single column named 0.
        if TEXT not in columns and columns != [0]:
            raise _refusal(f"expected texts or a column {TEXT!r}, got {', '.join(map(str, columns)) or 'no column'}")
        model_input = model_input[TEXT if TEXT in columns else 0]
    if isinstance(model_input, str) or not isinstance(model_input, Sequence | pd.Series | np.ndarray):
        raise _refusal(f"expected texts or a data frame with a column {TEXT!r}, got {type(model_input).__name__}")
    return [_text(number, value) for number, value in enumerate(model_input)]


def _text(number: int, value: object) -> str:
    if isinstance(value, np.ndarray):
        # The server converts each value of a record to a zero-dimensional array.
        value = value.tolist()
    if not isinstance(value, str):
        raise _refusal(f"text {number}: expected a string, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _refusal(f"text {number}: expected whole characters, got half a surrogate pair: {error}") from error
    return str(value)


def _refusal(message: str, code: str = "INVALID_PARAMETER_VALUE") -> Exception:
    """Return an error that the server answers with the status of a code, by default 400; others are answered by 500."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import ErrorCode

    error: Exception = MlflowException(message, error_code=ErrorCode.Value(code))
    return error


def _requirements(bundle: Path) -> list[str]:
    """Return the requirements for serving, in the versions installed here; MLflow would take seconds to infer them."""
    saved = read_saved(bundle)
    tagger_type = tagger_class(saved.tagger)
    libraries = ["transformers"] if any(needed_encoders(bundle)) else []
    if issubclass(tagger_type, AdaptedTagger):
        libraries.append(tagger_type.library)
    names = [*_REQUIREMENTS, *libraries]
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
    entity = Object(
        [Property(name, kinds.get(name, DataType.double), required=name in kinds) for name in ENTITY_FIELDS]
    )
    return ModelSignature(inputs=Schema([ColSpec(AnyType())]), outputs=Schema([ColSpec(Array(entity), "entities")]))
