"""Contextual features of words from an encoder that is fine-tuned with its tagger."""

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from concord.models.errors import EncoderMissingError
from concord.models.words.encoder import LoadedEncoder, layer_states, mean_states, read_encoder
from concord.models.words.encoder_config import EncoderConfig
from concord.models.words.subwords import SubwordWindow, cut_passes

TOKENIZER_NAME = "tokenizer.json"
# Files of a folder besides its weights; not every folder has the last three.
_FILES = ("config.json", TOKENIZER_NAME, "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
# Padded subwords per pass: on a CPU a pass should fit into the cache, on a GPU it should be large.
_PASS_SUBWORDS = {"cpu": 256, "cuda": 8192}
# Padded subwords of a training batch whose activations are kept; those of further passes are computed again in the
# backward pass, so that a batch of long documents fits into memory.
KEPT_SUBWORDS = 2048
_LAYER = re.compile(r"\blayers?\.(\d+)\.")


class TunedEncoder(nn.Module):
    """Computes the same features as ``FrozenEncoder``, with gradient."""

    __call__: Callable[..., Tensor]

    def __init__(self, config: EncoderConfig) -> None:
        """Load the pretrained weights; the folder must have a tokenizer.json, which a saved tagger needs."""
        super().__init__()
        loaded = _read_without_pooler(config)
        self.width = loaded.width
        self.network: Any = loaded.network
        self._reader = loaded.reader
        self._last_layers = config.last_layers
        if config.tuned_layers is not None:
            for parameter, above in self.layers_above().items():
                parameter.requires_grad_(above < config.tuned_layers)
        self.files = _read_files(loaded.folder)

    @override
    def forward(self, sentences: Sequence[Sequence[str]], length: int) -> Tensor:
        """Encode sentences, each on its own; shape ``(B, length, width)``, float32, zeros where padded.

        Equal sentences are encoded once, except in training, where each has a dropout of its own.
        """
        distinct = list(dict.fromkeys(map(tuple, sentences)))
        if self.training or len(distinct) == len(sentences):
            return self._encode(sentences, length)
        rows = {words: row for row, words in enumerate(distinct)}
        return self._encode(distinct, length)[[rows[tuple(words)] for words in sentences]]

    def _encode(self, sentences: Sequence[Sequence[str]], length: int) -> Tensor:
        device = next(self.network.parameters()).device
        features = torch.zeros(len(sentences) * length, self.width, device=device)
        vectors: list[Tensor] = []
        cells: list[int] = []
        subwords = 0
        for windows in cut_passes(self._reader.windows(sentences), subwords=_PASS_SUBWORDS[device.type]):
            numbers, attention = (tensor.to(device) for tensor in self._reader.pad(self._reader.rows(windows)))
            subwords += numbers.numel()
            if torch.is_grad_enabled() and subwords > KEPT_SUBWORDS:
                states = checkpoint(self._states, numbers, attention, use_reentrant=False)
            else:
                states = self._states(numbers, attention)
            vectors.append(_word_means(states, windows))
            cells.extend(_cells(windows, length))
        if vectors:
            features = features.index_copy(0, torch.tensor(cells, dtype=torch.int64, device=device), torch.cat(vectors))
        return features.view(len(sentences), length, self.width)

    def layers_above(self) -> dict[nn.Parameter, int]:
        """Return for each parameter the number of layers above its own; embeddings are below the lowest layer."""
        layers = int(self.network.config.num_hidden_layers)
        return {
            parameter: layers - 1 - int(match[1]) if (match := _LAYER.search(name)) else layers
            for name, parameter in self.network.named_parameters()
        }

    def _states(self, numbers: Tensor, attention: Tensor) -> Tensor:
        return mean_states(layer_states(self.network, numbers, attention), last=self._last_layers)


def _read_without_pooler(config: EncoderConfig) -> LoadedEncoder:
    """Read an encoder in fp32 without the layer that pools the states of a sentence, which would stay untrained."""
    with _quiet():
        try:
            return read_encoder(config, dtype=torch.float32, add_pooling_layer=False)
        except TypeError:  # an encoder without such a layer does not accept the argument
            return read_encoder(config, dtype=torch.float32)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from warning about the missing pooling layer."""
    if importlib.util.find_spec("transformers") is None:  # read_encoder raises
        yield
        return
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _read_files(folder: Path) -> Mapping[str, bytes]:
    if not (folder / TOKENIZER_NAME).is_file():
        raise EncoderMissingError(f"encoder: expected {folder / TOKENIZER_NAME}, got no such file")
    return {name: (folder / name).read_bytes() for name in _FILES if (folder / name).is_file()}


def _word_means(states: Tensor, windows: Sequence[SubwordWindow]) -> Tensor:
    """Average the subwords of each used word; ``(windows, subwords, width)`` to ``(words, width)``."""
    places: list[int] = []
    counts: list[int] = []
    for row, window in enumerate(windows):
        place = row * states.shape[1] + 1
        for number, pieces in enumerate(window.words):
            if window.keep[0] <= number < window.keep[1]:
                places.extend(range(place, place + len(pieces)))
                counts.append(len(pieces))
            place += len(pieces)
    chosen = states.flatten(0, 1).index_select(0, torch.tensor(places, dtype=torch.int64, device=states.device))
    # The order of additions is fixed on a GPU too, unlike that of index_add.
    return torch.segment_reduce(chosen, "mean", lengths=torch.tensor(counts, dtype=torch.int64, device=states.device))


def _cells(windows: Sequence[SubwordWindow], length: int) -> Iterator[int]:
    """Yield the index of each used word in the flattened batch of sentences."""
    for window in windows:
        first = window.sentence * length + window.first
        yield from range(first + window.keep[0], first + window.keep[1])
