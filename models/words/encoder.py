"""Load a pretrained encoder, which ``encoder_config`` finds on disk.

It is the bundled one or a Hugging Face folder: safetensors, JSON and a vocabulary. It is found without running the code
of the package that contains it, and its weights are checked against the digest that the tagger was trained with.
"""

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from concord.models.errors import ConfigError, EncoderMissingError, ModelError
from concord.models.words.bert import Bert, read_bert
from concord.models.words.bundled_encoder import read_bundled_encoder
from concord.models.words.encoder_config import (
    BUNDLED_ENCODER,
    BUNDLED_NAME,
    DIFFERENCE_NAME,
    ENCODER_NAME,
    WEIGHTS_NAME,
    EncoderConfig,
    find_encoder,
)
from concord.models.words.subwords import SPECIAL_TOKENS, SubwordReader, SubwordTokenizer

NetworkStates = Callable[[Sequence[list[int]]], Sequence[Tensor]]
"""Returns the states of every layer, each of shape ``(N, width)``, for rows of N subword numbers in all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedEncoder:
    """An encoder's network of transformers in evaluation mode, and the reader that splits words for it."""

    folder: Path
    network: Any
    reader: SubwordReader
    width: int
    """Dimensions of the network's states."""


def read_encoder(config: EncoderConfig, **options: Any) -> LoadedEncoder:
    """Read an encoder's folder by transformers; the options are passed to ``AutoModel.from_pretrained``.

    Raises:
        EncoderMissingError: when it or transformers is missing, its digest differs, or it cannot be loaded.
    """
    folder = _checked_folder(config)
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        network: Any = AutoModel.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, **options
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise _unreadable(folder, error) from error
    width = int(network.config.hidden_size)
    capacity = int(network.config.max_position_embeddings) - SPECIAL_TOKENS
    reader = SubwordReader(_adapted(tokenizer), capacity=capacity, overlap_words=config.overlap_words)
    return LoadedEncoder(folder=folder, network=network.eval(), reader=reader, width=width)


class FrozenNetwork(NamedTuple):
    """An encoder for inference, and the reader that splits words for it."""

    states: NetworkStates
    reader: SubwordReader
    width: int
    """Dimensions of the states."""
    scale: Tensor | None = None
    """What features are multiplied by, shape ``(width,)``."""
    is_exact: bool = False
    """Whether a window's states are the same bits whatever is read with it, even where autocast is on."""


def read_frozen_encoder(config: EncoderConfig, *, device: str) -> FrozenNetwork:
    """Read an encoder's folder for inference.

    The bundled encoder, and any other BERT, is read without transformers, and computes several times as fast. Errors
    are as those of ``read_encoder``.
    """
    if config.source == BUNDLED_NAME:
        try:
            return _frozen_bert(config, *read_bundled_encoder(config, device=device), device=device)
        except (ModelError, OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise EncoderMissingError(f"{BUNDLED_ENCODER}: the bundled encoder cannot be read: {error}") from error
    folder = _checked_folder(config)
    try:
        replaced = read_difference(config)
        bert = read_bert(
            folder, weights_name=WEIGHTS_NAME, precision=config.precision, device=device, replaced=replaced
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise _unreadable(folder, error) from error
    if bert is not None:
        return _frozen_bert(config, *bert, None, device=device)
    loaded = read_encoder(config)
    loaded.network.load_state_dict(replaced, strict=False)
    frozen = loaded.network.requires_grad_(False).to(device)

    def states(rows: Sequence[list[int]]) -> Sequence[Tensor]:
        numbers, attention = (tensor.to(device) for tensor in loaded.reader.pad(rows))
        return [states[attention.bool()] for states in layer_states(frozen, numbers, attention)]

    return FrozenNetwork(states, loaded.reader, loaded.width)


def _frozen_bert(
    config: EncoderConfig, network: Bert, tokenizer: SubwordTokenizer, scale: Tensor | None, *, device: str
) -> FrozenNetwork:
    reader = SubwordReader(tokenizer, capacity=network.positions - SPECIAL_TOKENS, overlap_words=config.overlap_words)
    is_exact = config.precision == "int8" and device == "cpu"
    return FrozenNetwork(network.states, reader, network.width, scale, is_exact)


def read_difference(config: EncoderConfig) -> dict[str, Tensor]:
    """Return the weights that replace the source's, by their names there, float32 with the values of fp16.

    Raises:
        EncoderMissingError: when they cannot be read, or are not those of the source's network.
    """
    if config.weights is None:
        return {}
    folder = Path(config.weights) / ENCODER_NAME
    try:
        if (folder / DIFFERENCE_NAME).exists():
            return {name: value.float() for name, value in load_file(folder / DIFFERENCE_NAME).items()}
        tuned, source = load_file(folder / WEIGHTS_NAME), load_file(_checked_folder(config) / WEIGHTS_NAME)
    except (OSError, SafetensorError) as error:
        raise EncoderMissingError(
            f"encoder.weights: expected a saved tagger with an encoder of its own in {config.weights}: {error}"
        ) from error
    if unknown := [name for name, value in tuned.items() if name not in source or source[name].shape != value.shape]:
        raise EncoderMissingError(
            f"encoder.weights: expected weights of {config.source}, got {unknown[0]} in {folder / WEIGHTS_NAME}"
        )
    rounded = {name: value.half().float() for name, value in tuned.items()}
    return {name: value for name, value in rounded.items() if not torch.equal(value, source[name].half().float())}


def layer_states(network: Any, numbers: Tensor, attention: Tensor) -> Sequence[Tensor]:
    """Return the states of every layer of a network of transformers, shape ``(windows, subwords, width)``.

    Subword numbers and attention mask have shape ``(windows, subwords)``, int64.
    """
    states: Sequence[Tensor] = network(
        input_ids=numbers, attention_mask=attention, output_hidden_states=True
    ).hidden_states
    return states


def mean_states(states: Sequence[Tensor], *, last: int) -> Tensor:
    """Return the mean of the states of an encoder's last layers, float32, in the shape of one layer's states.

    The embeddings count as the first layer.

    Raises:
        ConfigError: when the encoder has fewer layers.
    """
    if last > len(states):
        raise ConfigError(f"encoder.last_layers: expected {len(states)} or less, got {last}")
    first, *others = states[-last:]
    # Added one by one: a sum over a dimension may add in an order that depends on the number of words.
    total = first.clone()
    for layer in others:
        total += layer
    return total.div_(last).float()


def _checked_folder(config: EncoderConfig) -> Path:
    folder = find_encoder(config.source)
    if config.sha256 is not None and (found := _weights_digest(folder)) != config.sha256:
        raise EncoderMissingError(f"encoder: expected {folder / WEIGHTS_NAME} with sha256 {config.sha256}, got {found}")
    if importlib.util.find_spec("transformers") is None:
        raise EncoderMissingError("encoder: expected the library transformers; install it with the extra 'hf'")
    return folder


def _adapted(tokenizer: Any) -> SubwordTokenizer:
    """Adapt a tokenizer of transformers."""

    def split(words: list[str]) -> list[list[int]]:
        numbers: list[list[int]] = tokenizer(words, is_split_into_words=False, add_special_tokens=False)["input_ids"]
        return numbers

    return SubwordTokenizer(
        split=split,
        start=tokenizer.cls_token_id,
        end=tokenizer.sep_token_id,
        padding=tokenizer.pad_token_id,
        unknown=tokenizer.unk_token_id,
    )


def _unreadable(folder: Path, error: Exception) -> EncoderMissingError:
    return EncoderMissingError(f"encoder: expected a Hugging Face model in {folder}: {error}")


def _weights_digest(folder: Path) -> str:
    status = (folder / WEIGHTS_NAME).stat()
    return _file_digest(folder / WEIGHTS_NAME, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _file_digest(path: Path, modified: int, size: int) -> str:
    del modified, size  # part of the cache key: a changed file is read again
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
