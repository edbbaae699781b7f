"""Contextual features of words from a pretrained encoder that is not trained."""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from concord.models.tensor_files import write_tensors
from concord.models.words.encoder import EncoderConfig, EncoderMissingError, mean_states, read_frozen_encoder
from concord.models.words.subwords import cut_passes

# Padded subwords per pass. Small passes stay in a CPU's cache: 256 are 1.5 times as fast as 2048.
_BATCH_SUBWORDS = 256


class FrozenEncoder:
    """Computes features of words; its weights get no gradient and are in no checkpoint."""

    def __init__(self, config: EncoderConfig, *, device: str = "cpu") -> None:
        loaded = read_frozen_encoder(config, device=device)
        self._config = config
        self._device = device
        self._reader = loaded.reader
        self._states = loaded.states
        self.width = loaded.width
        self._cache: dict[tuple[str, ...], Tensor] = {}

    def features(self, sentences: Sequence[Sequence[str]]) -> list[Tensor]:
        """Encode sentences, each on its own; one tensor per sentence, shape ``(words, width)``, float32."""
        keys = [tuple(words) for words in sentences]
        missing = [key for key in keys if key not in self._cache]
        computed = dict(zip(missing, self._encode(missing), strict=True))
        return [computed[key] if key in computed else self._cache[key] for key in keys]

    def cache(self, sentences: Sequence[Sequence[str]]) -> None:
        """Compute features and cache them in memory, for training on the same sentences in every epoch."""
        distinct = sorted({tuple(words) for words in sentences} - self._cache.keys())
        self._cache.update(zip(distinct, self._encode(distinct), strict=True))

    def write_cache(self, path: Path) -> None:
        """Write the cached features to a safetensors file for other trainings."""
        words = list(self._cache)
        write_tensors(
            {"features": torch.cat([self._cache[key] for key in words])},
            path,
            metadata={"words": json.dumps(words), "encoder": self._config.model_dump_json()},
        )

    def read_cache(self, path: Path) -> None:
        """Add the features that ``write_cache`` wrote; raise EncoderMissingError if they are from another encoder."""
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata()
            if EncoderConfig.from_mapping(json.loads(metadata["encoder"]), where=str(path)) != self._config:
                raise EncoderMissingError(f"{path}: expected features of {self._config}, got {metadata['encoder']}")
            words = [tuple(key) for key in json.loads(metadata["words"])]
            parts = stored.get_tensor("features").split([len(key) for key in words])
        self._cache.update(zip(words, parts, strict=True))

    @torch.inference_mode()
    def _encode(self, sentences: Sequence[tuple[str, ...]]) -> list[Tensor]:
        features = [torch.empty(len(words), self.width) for words in sentences]
        for windows in cut_passes(self._reader.windows(sentences), subwords=_BATCH_SUBWORDS):
            numbers, attention = self._reader.pad(windows)
            layers = self._states(numbers.to(self._device), attention.to(self._device))
            states = mean_states(layers, last=self._config.last_layers).cpu()
            for window, window_states in zip(windows, states, strict=True):
                begin, end = window.keep
                vectors = _word_means(window_states, window.words)[begin:end]
                features[window.sentence][window.first + begin : window.first + end] = vectors
        return features


@lru_cache(maxsize=2)
def load_encoder(config: EncoderConfig, device: str) -> FrozenEncoder:
    """Load an encoder; the taggers of a process share one."""
    return FrozenEncoder(config, device=device)


def _word_means(states: Tensor, words: Sequence[list[int]]) -> Tensor:
    counts = torch.tensor([len(pieces) for pieces in words])
    owner = torch.repeat_interleave(torch.arange(len(words)), counts)
    sums = torch.zeros(len(words), states.shape[1]).index_add_(0, owner, states[1 : 1 + len(owner)])
    return sums / counts[:, None]
