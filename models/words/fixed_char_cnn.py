"""A CNN over a fixed number of characters and their types (Li et al., 2020)."""

import unicodedata
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from concord.models.config import Config
from concord.models.data.batch import PADDING

_TYPES = 4


class FixedCharCnnConfig(Config):
    """Sizes of the character CNN."""

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
    def _fit_the_length(cls, widths: tuple[int, ...], known: ValidationInfo) -> tuple[int, ...]:
        length = known.data.get("length")
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
        """Build the network.

        Args:
            characters: the alphabet, numbered from 2; 0 is padding and 1 the unknown character.
        """
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
        """Embed words.

        Args:
            forms: characters of each word, shape ``(F, C)``, int64, 0 where padded.

        Returns:
            Shape ``(F, output_dimension)``, float.
        """
        fixed = nn.functional.pad(forms, (0, self._length), value=PADDING)[:, : self._length]
        inputs = torch.cat([self.embedding(fixed), self.types[fixed]], dim=2).transpose(1, 2)
        return torch.cat([convolution(inputs).amax(dim=2) for convolution in self.convolutions], dim=1)


def _character_type(character: str) -> list[float]:
    """Return upper case, lower case, digit, punctuation as one-hot features; zeros for any other character."""
    kinds = (
        character.isupper(), character.islower(), character.isdecimal(), unicodedata.category(character)[0] == "P"
    )  # fmt: skip
    return [float(kind) for kind in kinds]
