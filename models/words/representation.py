"""The representation of a word: word embedding, case, character network, form vector and encoder features.

Character networks embed forms, ``(F, C)``, int64, 0 where padded, as vectors, ``(F, output_dimension)``. An alphabet is
numbered from 2; 0 is padding and 1 the unknown character.
"""

import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from concord.models.config import Config
from concord.models.data.batch import PADDING, UNKNOWN, WORD_CASES, Batch, Forms
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.words.encoder_config import FormVectorConfig
from concord.models.words.form_vectors import FormVectors

_TYPES = 4
_ROWS = 512
"""The most words that a character CNN reads at once without gradient, so that they stay in the cache."""


class CharCnnConfig(Config):
    """Sizes of the character CNN (Ma and Hovy, 2016; as in NCRF++)."""

    kind: Literal["cnn"] = "cnn"
    embedding_dimension: int = Field(default=30, ge=1)
    filters: int = Field(default=50, ge=1)
    """Filters per width."""
    widths: tuple[int, ...] = (3,)
    """Widths in characters; each adds `filters` dimensions."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Dropout on the character embeddings."""


class CharCnn(nn.Module):
    """A convolution over characters and the maximum over the word's own positions.

    Unlike in the released code of NCRF++, padding never takes part in the maximum, so that a word's vector does not
    depend on the longest word in its batch.
    """

    def __init__(self, config: CharCnnConfig, alphabet: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, config.embedding_dimension, padding_idx=PADDING)
        self.dropout = nn.Dropout(config.dropout)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.embedding_dimension, config.filters, width) for width in config.widths
        )
        self._widths = config.widths
        self.output_dimension = config.filters * len(config.widths)

    def forward(self, forms: Tensor) -> Tensor:
        """Embed words; zeros for a row without characters."""
        lengths = (forms != PADDING).sum(dim=1)
        if self.training or torch.is_grad_enabled() or forms.device.type != "cpu":
            return self._convolve(forms, lengths)
        order = lengths.argsort(descending=True)
        return torch.cat([self._scan(forms[rows], lengths[rows]) for rows in order.split(_ROWS)])[order.argsort()]

    def _scan(self, forms: Tensor, lengths: Tensor) -> Tensor:
        """Embed words, longest first, position by position, so that no padding is multiplied."""
        left = max((width - 1) // 2 for width in self._widths)
        right = max(width // 2 for width in self._widths)
        kernels = [
            nn.functional.pad(convolution.weight, (left - (width - 1) // 2, right - width // 2))
            for width, convolution in zip(self._widths, self._each_convolution(), strict=True)
        ]
        # One product for all widths: each kernel has zeros where only a wider one reads.
        weight = torch.cat(kernels).transpose(1, 2).flatten(1).T.contiguous()
        bias = torch.cat([convolution.get_parameter("bias") for convolution in self._each_convolution()])
        characters = nn.functional.pad(forms[:, : int(lengths[0])], (left, right), value=PADDING)
        embedded = self.embedding(characters).flatten(1)
        found = embedded.new_zeros(len(forms), self.output_dimension)
        step = self.embedding.embedding_dim
        for place, words in enumerate((lengths[:, None] > torch.arange(int(lengths[0]))).sum(dim=0).tolist()):
            scores = torch.addmm(bias, embedded[:words, place * step : place * step + len(weight)], weight)
            found[:words] = scores if place == 0 else torch.maximum(found[:words], scores)
        return cast(Tensor, found)

    def _each_convolution(self) -> Iterator[nn.Conv1d]:
        return (cast(nn.Conv1d, convolution) for convolution in self.convolutions)

    def _convolve(self, forms: Tensor, lengths: Tensor) -> Tensor:
        embedded = self.dropout(self.embedding(forms)).transpose(1, 2)
        pooled = []
        for width, convolution in zip(self._widths, self.convolutions, strict=True):
            left = (width - 1) // 2
            scores = convolution(nn.functional.pad(embedded, (left, width - 1 - left)))
            outside = torch.arange(scores.shape[2], device=forms.device)[None, :] >= lengths[:, None]
            pooled.append(scores.masked_fill(outside[:, None, :], float("-inf")).amax(dim=2))
        result = torch.cat(pooled, dim=1)
        return result.masked_fill(lengths[:, None] == 0, 0.0)


class CharLstmConfig(Config):
    """Sizes of the character LSTM (Lample et al., 2016; as in NCRF++)."""

    kind: Literal["lstm"] = "lstm"
    embedding_dimension: int = Field(default=30, ge=1)
    hidden: int = Field(default=25, ge=1)
    """Units per direction; the word's vector has twice as many dimensions."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Dropout on the character embeddings."""


class CharLstm(nn.Module):
    """A bidirectional LSTM over a word's own characters.

    A vector is the forward state after the last character, then the backward state after the first.
    """

    def __init__(self, config: CharLstmConfig, alphabet: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, config.embedding_dimension, padding_idx=PADDING)
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = nn.LSTM(config.embedding_dimension, config.hidden, batch_first=True, bidirectional=True)
        self.output_dimension = 2 * config.hidden

    def forward(self, forms: Tensor) -> Tensor:
        """Embed words; zeros for a row without characters."""
        embedded = self.dropout(self.embedding(forms))
        lengths = (forms != PADDING).sum(dim=1)
        # Packing needs one character per row: an empty row reads its first padding and is set to zero below.
        packed = pack_padded_sequence(embedded, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        words: Tensor = hidden.transpose(0, 1).flatten(1)
        return words.masked_fill(lengths[:, None] == 0, 0.0)


class FixedCharCnnConfig(Config):
    """Sizes of the CNN over a fixed number of characters and their types (Li et al., 2020)."""

    kind: Literal["fixed_cnn"] = "fixed_cnn"
    length: int = Field(default=20, ge=1)
    """Every word is truncated or padded to this many characters."""
    embedding_dimension: int = Field(default=25, ge=1)
    """Four one-hot features of the character's type are appended."""
    filters: int = Field(default=20, ge=1)
    """Filters per width."""
    widths: tuple[int, ...] = (1, 2, 3)
    """Widths in characters, at most `length`; each adds `filters` dimensions."""

    @field_validator("widths")
    @classmethod
    def _fit_the_length(cls, widths: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        length = info.data.get("length")
        if length is not None and any(not 1 <= width <= length for width in widths):
            raise ValueError(f"expected widths of 1 to length ({length})")
        return widths


class FixedCharCnn(nn.Module):
    """A convolution over characters and their types and the maximum over all positions, including padding.

    As in the released code, the convolutions have neither bias nor activation, and the embedding of padding is trained
    like any other. A word's vector does not depend on other words in its batch, since all words have one length.
    """

    types: Tensor

    def __init__(self, config: FixedCharCnnConfig, characters: Sequence[str]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(characters) + 2, config.embedding_dimension)
        nn.init.normal_(self.embedding.weight, std=0.1)
        types = [[0.0] * _TYPES] * 2 + [_character_type(character) for character in characters]
        self.register_buffer("types", torch.tensor(types), persistent=False)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.embedding_dimension + _TYPES, config.filters, width, bias=False) for width in config.widths
        )
        self._length = config.length
        self.output_dimension = config.filters * len(config.widths)

    def forward(self, forms: Tensor) -> Tensor:
        """Embed words."""
        fixed = nn.functional.pad(forms, (0, self._length), value=PADDING)[:, : self._length]
        inputs = torch.cat([self.embedding(fixed), self.types[fixed]], dim=2).transpose(1, 2)
        return torch.cat([convolution(inputs).amax(dim=2) for convolution in self.convolutions], dim=1)


def _character_kind(values: Any) -> str:
    """Return the ``kind`` of a character network's configuration; the default is a CNN."""
    return str(values.get("kind", "cnn") if isinstance(values, dict) else getattr(values, "kind", "cnn"))


CharacterConfig = Annotated[
    Annotated[CharCnnConfig, Tag("cnn")]
    | Annotated[CharLstmConfig, Tag("lstm")]
    | Annotated[FixedCharCnnConfig, Tag("fixed_cnn")],
    Discriminator(
        _character_kind, custom_error_type="kind", custom_error_message="expected the kind cnn, lstm or fixed_cnn"
    ),
]


def character_network(
    config: CharacterConfig | None, characters: Sequence[str]
) -> CharCnn | CharLstm | FixedCharCnn | None:
    """Build the network for an alphabet; None without a configuration."""
    if config is None:
        return None
    if config.kind == "fixed_cnn":
        return FixedCharCnn(config, characters)
    size = len(characters) + 2
    return CharLstm(config, size) if config.kind == "lstm" else CharCnn(config, size)


def _character_type(character: str) -> list[float]:
    """Return upper case, lower case, digit, punctuation as one-hot features; zeros for any other character."""
    kinds = (
        character.isupper(), character.islower(), character.isdecimal(), unicodedata.category(character)[0] == "P"
    )  # fmt: skip
    return [float(kind) for kind in kinds]


class WordRepresentationConfig(Config):
    """The parts of a word's vector, which are concatenated."""

    word_dimension: int = Field(default=100, ge=0)
    """Dimensions of the word embedding; 0 for none."""
    frozen: bool = False
    """Do not train pretrained vectors, and look words up exactly; all words without a vector, including those of the
    training corpus, share one trained vector (Li et al., 2020)."""
    unit_variance: bool = False
    """Divide the initial embeddings by their standard deviation (released code of UANet and Doc-UANet)."""
    rare_to_unknown: float = Field(default=0.5, ge=0, le=1)
    """Probability that training replaces a word seen once by the unknown word, whose vector is learned this way."""
    word_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability that training replaces any word by the unknown word; the character network still reads it."""
    case_features: bool = False
    """Four one-hot features of a word's case: all upper, first upper, all lower, other (Li et al., 2020)."""
    characters: CharacterConfig | None = CharCnnConfig()
    """The character network: `kind: cnn` (the default), `lstm` or `fixed_cnn`; None for no network."""
    characters_from_vectors: bool = False
    """Initialize the embeddings of characters that are pretrained words with the vectors of these (Wang et al., 2021,
    section 3.5, for Chinese)."""
    form_vectors: FormVectorConfig | None = None
    """Vectors of word forms that a pretrained encoder reads alone; None for none."""
    encoder_dimension: int | None = None
    """Dimensions to which the encoder's features are projected; None for no projection."""
    encoder_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the encoder's features before the projection."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Dropout on the concatenated vector."""

    @field_validator("characters_from_vectors")
    @classmethod
    def _characters_have_a_free_table(cls, wanted: bool, info: ValidationInfo) -> bool:
        if wanted and isinstance(info.data.get("characters"), FixedCharCnnConfig | None):
            raise ValueError("expected characters of the kind cnn or lstm")
        return wanted


class WordRepresentation(nn.Module):
    """Word embedding, character network and further parts, concatenated (NCRF++; Yang and Zhang, 2018)."""

    def __init__(
        self, config: WordRepresentationConfig, vocabulary: Vocabulary, *, encoder_width: int | None = None
    ) -> None:
        """Build the parts; ``encoder_width`` is the width of the encoder's features, None without an encoder."""
        super().__init__()
        self._config = config
        self._first_rare = 2 + len(vocabulary.words) - vocabulary.rare_words
        self.words = _word_table(config, len(vocabulary.words) + 2) if config.word_dimension else None
        self.characters = character_network(config.characters, vocabulary.characters)
        self.projection: nn.Linear | None = None
        width = config.word_dimension + (self.characters.output_dimension if self.characters else 0)
        self.form_vectors = FormVectors(config.form_vectors) if config.form_vectors is not None else None
        width += WORD_CASES * config.case_features + (config.form_vectors.dimension if config.form_vectors else 0)
        if encoder_width is not None:
            width += config.encoder_dimension or encoder_width
            if config.encoder_dimension:
                self.projection = nn.Linear(encoder_width, config.encoder_dimension)
        if not width:
            raise ConfigError("representation: expected a word embedding, characters or an encoder, got none")
        self.output_dimension = width

    def forward(self, batch: Batch, features: Tensor | None) -> Tensor:
        """Return the vectors of a batch's words, shape ``(B, T, output_dimension)``.

        The features are the encoder's, shape ``(B, T, E)``; None without an encoder.
        """
        parts = []
        if self.words is not None:
            parts.append(self.words(self._hide_words(batch.words) if self.training else batch.words))
        parts += [part[batch.form_index] for part in self._read_forms(batch.forms)]
        if features is not None:
            dropped = nn.functional.dropout(features, self._config.encoder_dropout, self.training)
            parts.append(self.projection(dropped) if self.projection is not None else dropped)
        return nn.functional.dropout(torch.cat(parts, dim=-1), self._config.dropout, self.training)

    def of_forms(self, forms: Forms) -> Tensor:
        """Return the vectors of words, shape ``(F, output_dimension)``; not in training, nor with an encoder."""
        words = [] if self.words is None else [self.words(forms.numbers)]
        return torch.cat([*words, *self._read_forms(forms)], dim=-1)

    def _read_forms(self, forms: Forms) -> list[Tensor]:
        """Return the parts that are read from words alone, each of shape ``(F, D)``."""
        parts: list[Tensor] = []
        characters, form_vectors = self.characters, self.form_vectors
        if self._config.case_features:
            parts.append(nn.functional.one_hot(forms.cases, WORD_CASES).float())
        if characters is not None:
            parts.append(forms.once(characters, lambda: characters(forms.characters)))
        if form_vectors is not None:
            parts.append(forms.once(form_vectors, lambda: form_vectors(forms)))
        return parts

    @torch.no_grad()
    def load_vectors(self, vocabulary: Vocabulary, vectors: Mapping[str, np.ndarray]) -> int:
        """Initialize word embeddings with pretrained vectors and return the number of words that have one.

        A word takes the vector of its exact form or else, unless frozen, that of its lower-cased form.
        """
        size, found = len(next(iter(vectors.values()))), 0
        if self.words is None or size != self._config.word_dimension:
            raise ConfigError(
                f"representation.word_dimension: expected {size} as the vectors have, got {self._config.word_dimension}"
            )
        if self._config.unit_variance:
            # Undo the first division: words without a vector stay small relative to vectors, and all are divided alike.
            self.words.weight /= math.sqrt(self._config.word_dimension)
        for number, word in enumerate(vocabulary.words, start=2):
            vector = vectors.get(word, None if self._config.frozen else vectors.get(word.lower()))
            if vector is not None:
                self.words.weight[number] = torch.from_numpy(vector)
                found += 1
        if self._config.unit_variance:
            self.words.weight[1:] /= self.words.weight[1:].std()
        if self._config.characters_from_vectors and self.characters is not None:
            _load_characters(self.characters.embedding, vocabulary, vectors)
        return found

    def _hide_words(self, words: Tensor) -> Tensor:
        draws = torch.rand(words.shape).to(words.device)
        usual, rare = self._config.word_dropout, max(self._config.rare_to_unknown, self._config.word_dropout)
        chance = torch.full_like(draws, usual).masked_fill_(words >= self._first_rare, rare)
        return torch.where((draws < chance) & (words != PADDING), UNKNOWN, words)


class FrozenTable(nn.Module):
    """Pretrained vectors that are not trained; words without one share a trained vector."""

    weight: Tensor

    def __init__(self, words: int, dimension: int) -> None:
        """Start with rows of zeros, which mark words without a vector."""
        super().__init__()
        self.register_buffer("weight", torch.zeros(words, dimension))
        self.unknown = nn.Parameter(torch.empty(dimension).normal_(std=0.1))

    def forward(self, words: Tensor) -> Tensor:
        """Look up words; shape ``(B, T)``, int64, to ``(B, T, D)``."""
        vectors = self.weight[words]
        return torch.where(vectors.any(dim=-1, keepdim=True), vectors, self.unknown)


def _word_table(config: WordRepresentationConfig, size: int) -> nn.Embedding | FrozenTable:
    if config.frozen:
        return FrozenTable(size, config.word_dimension)
    table = nn.Embedding(size, config.word_dimension, padding_idx=PADDING)
    bound = math.sqrt(3.0 / config.word_dimension)
    with torch.no_grad():
        nn.init.uniform_(table.weight, -bound, bound)
        if config.unit_variance:
            # Unlike in the released code, the deviation leaves out row 0, which is padding and zero here.
            table.weight /= table.weight[1:].std()
        table.weight[PADDING] = 0
    return table


@torch.no_grad()
def _load_characters(table: nn.Embedding, vocabulary: Vocabulary, vectors: Mapping[str, np.ndarray]) -> None:
    """Initialize the embeddings of characters that are pretrained words (Wang et al., 2021, section 3.5).

    The embedding is the word's vector times one random orthogonal matrix, which projects it to the table's dimensions.
    All other characters keep their random embedding.
    """
    projection = nn.init.orthogonal_(torch.empty(len(next(iter(vectors.values()))), table.embedding_dim))
    for number, character in enumerate(vocabulary.characters, start=2):
        if character in vectors:
            table.weight[number] = torch.from_numpy(vectors[character]) @ projection
