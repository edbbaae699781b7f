"""Attention over the words of a sentence."""

import math

from pydantic import Field
from torch import Tensor, nn

from models.config import Config


class SelfAttentionConfig(Config):
    """Sizes of a multi-head self-attention."""

    heads: int = Field(default=5, ge=1)
    head_dimension: int = Field(default=40, ge=1)
    """Dimensions of a head's queries, keys and values."""


class MultiHeadSelfAttention(nn.Module):
    """Scaled dot products without bias, dropout or output projection (Li et al., 2020, Att-BiLSTM-CNN)."""

    def __init__(self, config: SelfAttentionConfig, input_dimension: int) -> None:
        """Build the projections of all heads."""
        super().__init__()
        self._heads = config.heads
        self._scale = math.sqrt(config.head_dimension)
        self.output_dimension = config.heads * config.head_dimension
        self.query = nn.Linear(input_dimension, self.output_dimension, bias=False)
        self.key = nn.Linear(input_dimension, self.output_dimension, bias=False)
        self.value = nn.Linear(input_dimension, self.output_dimension, bias=False)

    def weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """Give how much each word (row) attends to each word (column).

        Args:
            states: shape ``(B, T, D)``, float.
            mask: true where a word stands, shape ``(B, T)``, bool.

        Returns:
            Shape ``(B, heads, T, T)``, float; each row sums to 1, padded columns are 0.
        """
        scores = self._split(self.query(states)) @ self._split(self.key(states)).transpose(-1, -2) / self._scale
        return scores.masked_fill(~mask[:, None, None, :], float("-inf")).softmax(dim=-1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Give each word's contexts, head by head.

        Args:
            states: shape ``(B, T, D)``, float.
            mask: true where a word stands, shape ``(B, T)``, bool.

        Returns:
            Shape ``(B, T, output_dimension)``, float.
        """
        contexts = self.weights(states, mask) @ self._split(self.value(states))
        return contexts.transpose(1, 2).flatten(2)

    def _split(self, states: Tensor) -> Tensor:
        return states.reshape(*states.shape[:2], self._heads, -1).transpose(1, 2)
