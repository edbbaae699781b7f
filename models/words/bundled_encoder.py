"""The encoder that Concord ships: eight layers of multilingual-e5-small (Wang et al., 2024), in 4 bits.

Its folder has the numbers of the network in config.json, with the digests of the other files; the layers, and the
embeddings of the pieces of words in two parts, all in blocks of values of 4 bits with a scale each; and the pieces.

Words are split into the pieces of a unigram model (Kudo, 2018), as the library tokenizers does. That library takes a
second to read 250,000 pieces; a word is short, so a search through a dictionary serves.
"""

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from concord.models.regular_files import file_digest
from concord.models.words.bert import Bert
from concord.models.words.encoder_config import BUNDLED_ENCODER, BUNDLED_SHA256, CONFIG_NAME, EncoderConfig
from concord.models.words.subwords import SubwordTokenizer

_BOUNDARY = "▁"
_UNKNOWN_PENALTY = 10.0
# Characters; the rest of a longer word is not read, since no encoder takes the pieces of so many.
_LONGEST_WORD = 10_000
# SentencePiece's rules "nmt": what is no text is removed or is a space; soft hyphens are removed as well.
_REMOVED = [*range(0x1, 0x9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F, 0xAD]
_SPACES = [0x9, 0xA, 0xC, 0xD, 0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD]
_CLEANED = {**dict.fromkeys(_REMOVED), **dict.fromkeys(_SPACES, " ")}
_RUN = re.compile(" {2,}")


def normalize(word: str) -> str:
    """Return a word without control characters, in NFKC, with single spaces."""
    if word.isascii() and word.isprintable():
        cleaned = word
    else:
        cleaned = unicodedata.normalize("NFKC", word.translate(_CLEANED))
    return _RUN.sub(" ", cleaned).strip()


class UnigramSplitter:
    """Splits words into the pieces whose scores have the largest sum."""

    def __init__(self, scores: Mapping[str, tuple[int, float]], *, unknown: int) -> None:
        """Use pieces, each with its number and its score, the logarithm of its probability."""
        self._scores = scores
        self._unknown = unknown
        self._longest = max(map(len, scores))
        self._penalty = min(score for _, score in scores.values()) - _UNKNOWN_PENALTY

    def split(self, words: Iterable[str]) -> list[list[int]]:
        """Return the numbers of each word's pieces; none for a word without visible characters."""
        return [
            [
                number
                for part in normalize(word[:_LONGEST_WORD]).split(" ")
                if part
                for number in self._best(_BOUNDARY + part)
            ]
            for word in words
        ]

    def _best(self, text: str) -> list[int]:
        """Return the best pieces of a text, found from left to right; unknown characters in a row are one piece."""
        scores, unknown, size = self._scores, self._unknown, len(text)
        best = [0.0] + [-math.inf] * size
        origin = [(0, unknown)] * (size + 1)
        for start in range(size):
            so_far = best[start]
            for end in range(start + 1, min(size, start + self._longest) + 1):
                found = scores.get(text[start:end])
                if found is None:
                    if end > start + 1:
                        continue
                    found = (unknown, self._penalty)
                if (score := so_far + found[1]) > best[end]:
                    best[end] = score
                    origin[end] = (start, found[0])
        pieces: list[int] = []
        end = size
        while end > 0:
            end, number = origin[end]
            if number != unknown or pieces[-1:] != [unknown]:
                pieces.append(number)
        return pieces[::-1]


PIECES_NAME = "pieces.safetensors"
WEIGHT_NAMES = ("layers.safetensors", "words-1.safetensors", "words-2.safetensors")
SCALE_NAME = "features.scale"
"""The tensor that features are multiplied by, for a variance of 1 each."""
BLOCK = 32
"""Values that share a scale."""
_ZERO = 8


class PackedTable:
    """Embeddings in 4 bits, of which only the rows that occur are unpacked."""

    def __init__(self, parts: list[Mapping[str, Tensor]]) -> None:
        """Use the rows of parts, each with ``packed``, ``(rows, width / 2)``, and ``scales``, ``(rows, blocks)``."""
        self._parts = parts
        self._first = [0]
        for part in parts[:-1]:
            self._first.append(self._first[-1] + len(part["packed"]))

    def __call__(self, numbers: Tensor) -> Tensor:
        """Return rows, shape ``(N,)`` to ``(N, width)``, float32."""
        packed, scales = self._rows(0, numbers)
        for part in range(1, len(self._parts)):
            # Chosen without asking which rows there are, for which the host would have to wait for a GPU.
            is_own = (numbers >= self._first[part])[:, None]
            own_packed, own_scales = self._rows(part, numbers)
            packed, scales = torch.where(is_own, own_packed, packed), torch.where(is_own, own_scales, scales)
        return unpack(packed, scales)

    def _rows(self, part: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of a part, others where it lacks them."""
        table = self._parts[part]
        own = (numbers - self._first[part]).clamp(0, len(table["packed"]) - 1)
        return table["packed"][own], table["scales"][own]


def unpack(packed: Tensor, scales: Tensor) -> Tensor:
    """Return the values of rows, float32: of each block the low halves of its bytes come first.

    Shapes ``(rows, columns / 2)``, uint8, and ``(rows, columns / 32)``, fp16, to ``(rows, columns)``.
    """
    blocks = packed.unflatten(1, (-1, BLOCK // 2))
    values = torch.cat([blocks & 15, blocks >> 4], dim=2).float().sub_(_ZERO)
    return values.mul_(scales.float().unsqueeze(2)).flatten(1)


def read_bundled_encoder(settings: EncoderConfig, *, device: str) -> tuple[Bert, SubwordTokenizer, Tensor]:
    """Read the network, the tokenizer, and the scale of the features, shape ``(width,)``.

    Raises:
        ModelError, OSError, ValueError, KeyError, SafetensorError: when files are damaged or unreadable, or others than
            those of the settings.
    """
    if settings.sha256 != BUNDLED_SHA256:
        raise ValueError(
            f"expected {CONFIG_NAME} with sha256 {settings.sha256}, got {BUNDLED_SHA256}: the tagger was trained over "
            "another version of it; use the Concord that saved it, or train again"
        )
    if damaged := damaged_files():
        raise ValueError(f"damaged or missing: {', '.join(damaged)}; install Concord again")
    config: dict[str, Any] = json.loads((BUNDLED_ENCODER / CONFIG_NAME).read_bytes())
    layers, *words = (load_file(BUNDLED_ENCODER / name, device=device) for name in WEIGHT_NAMES)
    weights = {name: value for name, value in layers.items() if not name.endswith((".packed", ".scales"))}
    for name, packed in layers.items():
        if name.endswith(".packed"):
            whole = name.removesuffix(".packed")
            weights[whole] = unpack(packed, layers[f"{whole}.scales"])
    scale = weights.pop(SCALE_NAME)
    bert = Bert(config, weights, table=PackedTable(words), precision=settings.precision)
    return bert, _read_tokenizer(config), scale


def damaged_files() -> list[str]:
    """Return the names of the bundled encoder's files that are missing, or have another digest than they should."""
    config = BUNDLED_ENCODER / CONFIG_NAME
    if not config.is_file() or file_digest(config).hex() != BUNDLED_SHA256:
        return [CONFIG_NAME]
    digests: dict[str, str] = json.loads(config.read_bytes())["sha256"]
    paths = {BUNDLED_ENCODER / name: digest for name, digest in digests.items()}
    return [path.name for path, digest in paths.items() if not path.is_file() or file_digest(path).hex() != digest]


def _read_tokenizer(config: Mapping[str, Any]) -> SubwordTokenizer:
    found = load_file(BUNDLED_ENCODER / PIECES_NAME)
    pieces = bytes(found["text"].numpy()).decode().split("\n")
    scores = dict(zip(pieces, enumerate(found["scores"].tolist()), strict=True))
    # Text that reads like a special piece is text.
    for piece in ("<s>", "</s>", "<pad>", "<unk>", "<mask>"):
        scores.pop(piece, None)
    numbers = {name: config[name] for name in ("start", "end", "padding", "unknown")}
    return SubwordTokenizer(split=UnigramSplitter(scores, unknown=numbers["unknown"]).split, **numbers)
