"""A CNN over the characters of a word (Ma and Hovy, 2016; as in NCRF++)."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from concord.models.config import Config
from concord.models.data.batch import PADDING


class CharCnnConfig(Config):
    """Sizes of the character CNN."""

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

    def __init__(self, config: CharCnnConfig, characters: int) -> None:
        """Build the network for an alphabet of this size, which includes padding and the unknown character."""
        super().__init__()
        self.embedding = nn.Embedding(characters, config.embedding_dimension, padding_idx=PADDING)
        self.dropout = nn.Dropout(config.dropout)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.embedding_dimension, config.filters, width) for width in config.widths
        )
        self._widths = config.widths
        self.output_dimension = config.filters * len(config.widths)

    def forward(self, forms: Tensor) -> Tensor:
        """Embed words.

        Args:
            forms: characters of each word, shape ``(F, C)``, int64, 0 where padded.

        Returns:
            Shape ``(F, output_dimension)``, float; zeros for a row without characters.
        """
        embedded = self.dropout(self.embedding(forms)).transpose(1, 2)
        lengths = (forms != PADDING).sum(dim=1)
        pooled = []
        for width, convolution in zip(self._widths, self.convolutions, strict=True):
            left = (width - 1) // 2
            scores = convolution(nn.functional.pad(embedded, (left, width - 1 - left)))
            outside = torch.arange(scores.shape[2], device=forms.device)[None, :] >= lengths[:, None]
            pooled.append(scores.masked_fill(outside[:, None, :], float("-inf")).amax(dim=2))
        result = torch.cat(pooled, dim=1)
        return result.masked_fill(lengths[:, None] == 0, 0.0)
