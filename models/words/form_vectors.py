"""Vectors of word forms: of a text file of GloVe, word2vec or fastText, or what an encoder knows of a word alone.

An encoder reads each distinct form once, alone; the mean of its subwords is projected by a PCA that is fitted on the
forms of the training corpora. A vector depends on its form alone, to the last bit: not on what stands beside it or in
its batch, nor on what was read before. So it may be kept, and those of frequent forms are saved with the tagger.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import Forms
from concord.models.errors import ConfigError
from concord.models.words.bert import Int8Linear
from concord.models.words.encoder import load_encoder
from concord.models.words.encoder_config import FormVectorConfig


def read_word_vectors(path: Path) -> dict[str, np.ndarray]:
    """Read a text file of GloVe, word2vec or fastText, with a word and its numbers, float32, on each line.

    A first line of two integers (word2vec, fastText) is a header. Of a repeated word the first vector is used.

    Raises:
        ConfigError: naming file and line, when numbers are missing, too few or not finite; if it cannot be read.
    """
    vectors: dict[str, np.ndarray] = {}
    for number, word, values in _vector_lines(path):
        vector = _to_vector(values)
        if vector is None:
            raise ConfigError(f"{path}:{number}: expected numbers after the word {word!r}, got {values[:3]}")
        first = next(iter(vectors.values()), vector)
        if vector.shape != first.shape:
            raise ConfigError(f"{path}:{number}: expected {first.size} numbers for {word!r}, got {vector.size}")
        vectors.setdefault(word, vector)
    if not vectors:
        raise ConfigError(f"{path}: expected a word and its numbers on each line, got no such line")
    return vectors


def _vector_lines(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                fields = line.rstrip().split(" ")
                is_header = number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields)
                if is_header or fields == [""]:
                    continue
                yield number, fields[0], fields[1:]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected a readable text file in UTF-8: {error}") from error


def _to_vector(values: list[str]) -> np.ndarray | None:
    try:
        vector = np.array(values, dtype=np.float32)
    except ValueError:
        return None
    return vector if vector.size and np.isfinite(vector).all() else None


# Forms whose vectors are kept besides those of the table; 50 MB for 128 dimensions.
_MOST_KEPT = 100_000


class FormVectors(nn.Module):
    """Returns the vectors of forms; what its table lacks is computed by the encoder.

    Nothing of it is trained. In training a share of the forms is hidden, so that the network learns to do without.

    Attributes:
        mean, projection: of the encoder's states, shapes ``(E,)`` and ``(E, D)``.
        table: vectors of frequent forms, shape ``(N, D)``.
        spellings: these forms in UTF-8, one a line, uint8.
    """

    mean: Tensor
    projection: Tensor
    table: Tensor
    spellings: Tensor

    def __init__(self, config: FormVectorConfig, *, most_kept: int = _MOST_KEPT) -> None:
        super().__init__()
        self._config = config
        self._most_kept = most_kept
        self._product: Int8Linear | None = None
        self._frequent: dict[str, Tensor] = {}
        self._kept: dict[str, Tensor] = {}
        for name in ("mean", "projection", "table"):
            self.register_buffer(name, torch.zeros(0, config.dimension))
        self.register_buffer("spellings", torch.zeros(0, dtype=torch.uint8))

    @torch.no_grad()
    def fit(self, words: Iterable[str]) -> None:
        """Fit the projection on the distinct forms of a text, and fill the table with the most frequent of them.

        The dimensions have a variance of 1 on average over the forms.

        Raises:
            ConfigError: when the encoder's states have fewer dimensions than asked for, or the text has fewer than two
                forms.
            EncoderMissingError: when the encoder cannot be loaded.
        """
        counts = Counter(filter(None, map(self._spelling, words)))
        forms = sorted(counts, key=lambda form: (-counts[form], form))
        if len(forms) < 2:
            raise ConfigError(
                f"form_vectors: expected training corpora of two distinct words or more, got {len(forms)}"
            )
        states = self._read(forms)
        if (width := states.shape[1]) < self._config.dimension:
            raise ConfigError(f"form_vectors.dimension: expected {width} or less, got {self._config.dimension}")
        self.mean = _half(states.mean(dim=0))
        variances, axes = torch.linalg.eigh((states - self.mean).double().T.cov(correction=0))
        largest = variances[-self._config.dimension :].flip(0)
        self.projection = _half((axes[:, -self._config.dimension :].flip(1) / largest.mean().sqrt()).float())
        self._product = None
        vectors = self._project(states)
        self._most_kept = max(self._most_kept, len(forms))
        self._kept = dict(zip(forms, vectors, strict=True))
        # A form of two lines has no place in the table.
        places = [place for place, form in enumerate(forms) if "\n" not in form][: self._config.table_forms]
        self.table = vectors[places]
        self.spellings = torch.tensor(list("\n".join(forms[place] for place in places).encode()), dtype=torch.uint8)
        self._index()

    @override
    @torch.no_grad()
    def forward(self, forms: Forms) -> Tensor:
        """Return the vectors of words, shape ``(F, D)``; zeros for the padding."""
        frequent, none = self._frequent, torch.zeros(self._config.dimension)
        read = [self._spelling(word) for word in forms.rows]
        kept = self._compute([form for form in dict.fromkeys(read) if form and form not in frequent])
        vectors = torch.stack([frequent[form] if form in frequent else kept[form] if form else none for form in read])
        if self.training:
            vectors[torch.rand(len(vectors)) < self._config.hidden] = 0
        return vectors.to(forms.numbers.device)

    @override
    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *arguments: Any) -> None:
        for name, buffer in self.named_buffers():
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, buffer.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._kept = {}
        self._product = None
        self._index()

    def _spelling(self, word: str) -> str:
        return word if self._config.cased else word.lower()

    def _compute(self, forms: Sequence[str]) -> Mapping[str, Tensor]:
        """Return vectors by form, among them those of these forms."""
        # A new table instead of an emptied one, which another thread may be reading.
        kept = self._kept
        new = [form for form in forms if form not in kept]
        if new and len(kept) + len(new) > self._most_kept:
            new, kept = list(forms), {}
        if new:
            # Where autocast is on, the vectors are the same as elsewhere.
            with torch.autocast("cpu", enabled=False):
                kept.update(zip(new, self._project(self._read(new)), strict=True))
            self._kept = kept
        return kept

    def _read(self, forms: Sequence[str]) -> Tensor:
        """Return the encoder's states of forms, each read alone, shape ``(len(forms), E)``.

        They are computed on a CPU, whatever the tagger's device, so that they are the same bits on each.
        """
        encoder = load_encoder(self._config.encoder, "cpu")
        if encoder.is_exact:
            return torch.cat(encoder.features([(form,) for form in forms]))
        return torch.cat([vectors for form in forms for vectors in encoder.features([(form,)])])

    def _project(self, states: Tensor) -> Tensor:
        """Project states, ``(N, E)`` to ``(N, D)``; in int8, since float32 sums depend on the number of rows."""
        if self._product is None:
            self._product = Int8Linear(self.projection.cpu().T, torch.zeros(self._config.dimension))
        return _half(self._product(states - self.mean.cpu()))

    def _index(self) -> None:
        spellings = bytes(self.spellings.tolist()).decode()
        self._frequent = dict(zip(filter(None, spellings.split("\n")), self.table.cpu().unbind(), strict=True))


def _half(values: Tensor) -> Tensor:
    """Round values to those of fp16, in which a tagger may be saved."""
    return values.half().float()
