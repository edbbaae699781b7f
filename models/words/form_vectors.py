"""Vectors of word forms: what a pretrained encoder knows of a word, without reading its sentence.

Each distinct form is read once, alone, by the encoder; the mean of its subwords is projected by a PCA that is fitted on
the forms of the training corpora. A vector depends on its form alone, to the last bit: not on what stands beside it or
in its batch, nor on what was read before.
The projection and the vectors of frequent forms are saved with the tagger, so that it also works without the encoder;
a form that is not among them then has no vector, and is known by its spelling alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import Forms
from concord.models.errors import ConfigError
from concord.models.words.encoder_config import FormVectorConfig, encoder_available
from concord.models.words.frozen_encoder import load_encoder

# Forms whose vectors are kept besides those of the table; 50 MB for 128 dimensions.
_MOST_KEPT = 100_000


class FormVectors(nn.Module):
    """Looks up the vectors of lower-cased forms; what its table lacks is computed by the encoder, if installed.

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
        self._has_encoder = encoder_available(config.encoder)
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
            ConfigError: when the encoder's states have fewer dimensions than asked for.
            EncoderMissingError: when the encoder is not installed.
        """
        counts = Counter(filter(None, map(str.lower, words)))
        forms = sorted(counts, key=lambda form: (-counts[form], form))
        states = self._read(forms)
        if (width := states.shape[1]) < self._config.dimension:
            raise ConfigError(f"form_vectors.dimension: expected {width} or less, got {self._config.dimension}")
        self.mean = states.mean(dim=0)
        variances, axes = torch.linalg.eigh((states - self.mean).double().T.cov(correction=0))
        largest = variances[-self._config.dimension :].flip(0)
        # Contiguous, as it is once loaded: a product has other last bits where its factor lies otherwise in memory.
        projection = axes[:, -self._config.dimension :].flip(1) / largest.mean().sqrt()
        self.projection = projection.float().contiguous()
        vectors = self._project(states)
        self._most_kept = max(self._most_kept, len(forms))
        # Not these vectors: a tagger that is saved and loaded computes those of the other forms anew, one by one.
        self._kept = {}
        frequent = forms[: self._config.table_forms]
        self.table = vectors[: len(frequent)].clone()
        self.spellings = torch.frombuffer(bytearray("\n".join(frequent).encode()), dtype=torch.uint8)
        self._index()

    @override
    @torch.no_grad()
    def forward(self, forms: Forms) -> Tensor:
        """Return the vectors of words, shape ``(F, D)``; zeros for the padding and for forms that have none."""
        lowered = [word.lower() for word in forms.rows]
        self._compute([form for form in dict.fromkeys(lowered) if form and form not in self._frequent])
        kept, none = self._kept, torch.zeros(self._config.dimension)
        vectors = torch.stack([self._frequent.get(form, kept.get(form, none)) for form in lowered])
        if self.training:
            vectors[torch.rand(len(lowered)) < self._config.hidden] = 0
        return vectors.to(forms.numbers.device)

    @override
    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *arguments: Any) -> None:
        for name, buffer in self.named_buffers():
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, buffer.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._kept = {}
        self._index()

    def _compute(self, forms: Sequence[str]) -> None:
        new = [form for form in forms if form not in self._kept]
        if not self._has_encoder or not new:
            return
        if len(self._kept) + len(new) > self._most_kept:
            # A new table instead of an emptied one, which another thread may be reading.
            new, self._kept = list(forms), {}
        encoder = load_encoder(self._config.encoder, self.mean.device.type)
        read = self._read(new) if encoder.is_exact else [self._read([form])[0] for form in new]
        # One by one: a product of another number of rows has other last bits, which what is kept would carry on, so
        # that a run that was killed and resumed would write other bytes than an undisturbed one.
        self._kept.update((form, self._project(states[None])[0]) for form, states in zip(new, read, strict=True))

    def _read(self, forms: Sequence[str]) -> Tensor:
        """Return the encoder's states of forms, each read alone, shape ``(len(forms), E)``."""
        encoder = load_encoder(self._config.encoder, self.mean.device.type)
        return torch.cat(encoder.features([(form,) for form in forms]))

    def _project(self, states: Tensor) -> Tensor:
        return (states - self.mean.cpu()) @ self.projection.cpu()

    def _index(self) -> None:
        spellings = bytes(self.spellings.tolist()).decode()
        self._frequent = dict(zip(filter(None, spellings.split("\n")), self.table.cpu().unbind(), strict=True))
