"""Which pretrained encoder a tagger uses, and where it is on disk; torch is not imported."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from concord.models.config import Config
from concord.models.errors import EncoderMissingError

WEIGHTS_NAME = "model.safetensors"
ENCODER_NAME = "encoder"
"""Folder of a saved tagger for its own encoder: a whole one, with ``model.safetensors``, or what differs from one."""
DIFFERENCE_NAME = "difference.safetensors"

Precision = Literal["int8", "float32"]

BUNDLED_NAME = "multilingual-e5-small"
BUNDLED_ENCODER = Path(__file__).resolve().parents[1] / "pretrained" / "encoder"
BUNDLED_SHA256 = "7ec7c300c8239bff0d6b0d94311cad03d58eada41dfcf9c0f52eddf3942e2606"
CONFIG_NAME = "config.json"


class EncoderConfig(Config):
    """Which encoder to use, and how."""

    source: str = BUNDLED_NAME
    """The bundled encoder, a folder, or an installed package that contains one as `model/`."""
    sha256: str | None = None
    """Digest of model.safetensors; None for no check. Of the bundled encoder it is that of config.json, which holds
    those of the other files, and is filled in."""
    last_layers: int = Field(default=4, ge=1)
    """A word's vector is the mean over its subwords and over this many last layers."""
    precision: Precision = "int8"
    """Of the products of a frozen encoder; a GPU rounds alike, and multiplies in float32."""
    overlap_words: int = Field(default=32, ge=0)
    """Words shared by neighbouring windows of a sentence that has more subwords than the encoder takes; fewer where
    they have more than a quarter of a window's subwords, as web addresses do."""
    passage_words: int = Field(default=0, ge=0)
    """A frozen encoder reads the sentences of a document in passages of about this many words; 0 for each sentence
    alone. A passage depends on its document alone."""
    tuned: bool = False
    """Fine-tune the encoder with the tagger, as its parameter group `encoder`, and save it with the tagger."""
    tuned_layers: int | None = Field(default=None, ge=1)
    """Fine-tune this many of its last layers; None fine-tunes all of them and the embeddings."""
    weights: str | None = None
    """Folder of a saved tagger whose tuned encoder replaces the weights of the source, frozen again. Weights that
    differ from the source's are rounded to fp16, and saved with the tagger."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_digest(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        digest = values.get("sha256")
        if values.get("source", BUNDLED_NAME) == BUNDLED_NAME:
            return {**values, "sha256": digest or BUNDLED_SHA256}
        # A source that replaces the bundled one in a configuration has another digest.
        return {**values, "sha256": None if digest == BUNDLED_SHA256 else digest}

    @model_validator(mode="after")
    def _is_tuned_or_replaced(self) -> Self:
        if self.tuned and self.weights is not None:
            raise ValueError("expected tuned or weights, got both")
        if self.tuned and self.passage_words:
            raise ValueError(
                "passage_words: expected a frozen encoder, got a tuned one, which reads each sentence alone"
            )
        if self.source == BUNDLED_NAME and (self.tuned or self.weights is not None):
            raise ValueError(
                "expected the folder of a Hugging Face model as source, which the extra 'hf' tunes; "
                "the bundled encoder is always frozen"
            )
        return self


class FormVectorConfig(Config):
    """Vectors of word forms that an encoder reads alone."""

    encoder: EncoderConfig = EncoderConfig()
    """The encoder that reads the forms."""
    cased: bool = True
    """Whether forms keep their case; those without are read in lower case."""
    dimension: int = Field(default=128, ge=1)
    """Dimensions to which PCA reduces the encoder's states."""
    table_forms: int = Field(default=20_000, ge=0)
    """So many forms, the most frequent ones of the training corpora, have their vectors saved with the tagger, which
    saves the time to compute them."""
    hidden: float = Field(default=0.1, ge=0, lt=1)
    """Probability that training hides the vector of a form."""

    @model_validator(mode="after")
    def _reads_a_frozen_encoder(self) -> Self:
        if self.encoder.tuned or self.encoder.weights is not None:
            raise ValueError("expected an encoder that is neither tuned nor has weights of its own")
        return self


def find_encoder(source: str) -> Path:
    """Find the folder of an encoder of one's own, or raise EncoderMissingError."""
    folder = Path(source)
    if not folder.is_dir():
        spec = importlib.util.find_spec(source) if source.isidentifier() else None
        if spec is None or spec.origin is None:
            raise EncoderMissingError(
                f"encoder.source: expected {BUNDLED_NAME}, a folder or an installed package, got {source!r}"
            )
        folder = Path(spec.origin).parent / "model"
    if not (folder / WEIGHTS_NAME).is_file():
        raise EncoderMissingError(f"encoder: expected {folder / WEIGHTS_NAME}, got no such file")
    return folder
