"""Label attention: words attend to label embeddings, and the last layer's scores are the logits.

Cui and Zhang (2019). The paper (section 4.2) projects queries, keys and values of the heads linearly; its parameter
counts (table 2) and released code have a linear layer with bias and a ReLU, in the last layer too. Both are here.
Unlike the released code, this attends to real labels only (no label for padding) and omits the value projection of the
last layer, which nothing reads.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from concord.models.decoders.softmax import SoftmaxDistribution

Projection = Literal["linear", "relu"]
"""``linear``, a matrix, as in the paper; ``relu``, a linear layer with bias and a ReLU, as in the released code."""


class LabelAttention(nn.Module):
    """Multi-head attention from words to labels; all layers but the last."""

    def __init__(self, width: int, *, heads: int, dropout: float, projection: Projection | None) -> None:
        """Build the projections; None, a naive layer, omits them and the scale; ``width`` is a multiple of ``heads``.

        The dropout is on the attention weights, as in the released code; the paper has none there.
        """
        super().__init__()
        self._heads = heads
        self.query = _project(projection, width)
        self.key = _project(projection, width)
        self.value = _project(projection, width)
        self.dropout = nn.Dropout(dropout)
        self._scale = 1.0 if projection is None else math.sqrt(width / heads)

    def forward(self, hidden: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Concatenate each word's hidden state H with the labels it attends to, which have a residual connection.

        Of the states ``(B, T, width)`` and the label embeddings ``(L, width)`` it returns ``[H ; H + attended]``, shape
        ``(B, T, 2 * width)``, which the next layer reads; and the weights before dropout, shape ``(B, heads, T, L)``,
        which sum to 1 over the labels and are zeros where padded.
        """
        query, key, value = (
            self._split(projection(states))
            for projection, states in ((self.query, hidden), (self.key, labels), (self.value, labels))
        )
        scores = query @ key.transpose(-1, -2) / self._scale
        weights: Tensor = scores.softmax(dim=-1) * mask[:, None, :, None]
        attended = (self.dropout(weights) @ value).transpose(1, 2).flatten(2)
        return torch.cat([hidden, hidden + attended], dim=-1), weights

    def _split(self, states: Tensor) -> Tensor:
        heads: Tensor = states.unflatten(-1, (self._heads, -1)).transpose(-3, -2)
        return heads


class LabelScorer(nn.Module):
    """The last layer: one head whose raw scores are the logits, without softmax or dropout.

    A naive scorer equals a softmax layer without bias whose weight is the label table, as the paper points out.
    """

    __call__: Callable[..., SoftmaxDistribution]

    def __init__(self, width: int, *, projection: Projection | None) -> None:
        """Build the projections; None, a naive scorer, omits them and the scale."""
        super().__init__()
        self.query = _project(projection, width)
        self.key = _project(projection, width)
        self._scale = 1.0 if projection is None else math.sqrt(width)

    def forward(self, hidden: Tensor, labels: Tensor, mask: Tensor) -> SoftmaxDistribution:
        """Build the distribution; shapes as in ``LabelAttention``."""
        scores = nn.functional.linear(self.query(hidden), self.key(labels)) / self._scale
        return SoftmaxDistribution(scores, mask)


def _project(projection: Projection | None, width: int) -> nn.Module:
    if projection is None:
        return nn.Identity()
    if projection == "linear":
        return nn.Linear(width, width, bias=False)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU())
