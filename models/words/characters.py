"""Character networks: vectors of words from their characters.

They embed forms, ``(F, C)``, int64, 0 where padded, as vectors, ``(F, output_dimension)``. An alphabet is numbered
from 2; 0 is padding and 1 the unknown character.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from concord.models.config import Config
from concord.models.data.batch import PADDING

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
