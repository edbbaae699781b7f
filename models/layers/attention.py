"""Attention over the words of a sentence, and what captures attention weights for figures."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn

from concord.models.config import Config


class SelfAttentionConfig(Config):
    """Sizes of multi-head self-attention."""

    heads: int = Field(default=5, ge=1)
    head_dimension: int = Field(default=40, ge=1)
    """Dimensions of queries, keys and values in each head."""


class MultiHeadSelfAttention(nn.Module):
    """Scaled dot-product attention without bias, dropout or output projection (Li et al., 2020, Att-BiLSTM-CNN)."""

    def __init__(self, config: SelfAttentionConfig, input_dimension: int) -> None:
        super().__init__()
        self._heads = config.heads
        self._scale = math.sqrt(config.head_dimension)
        self.output_dimension = config.heads * config.head_dimension
        self.query = nn.Linear(input_dimension, self.output_dimension, bias=False)
        self.key = nn.Linear(input_dimension, self.output_dimension, bias=False)
        self.value = nn.Linear(input_dimension, self.output_dimension, bias=False)

    def weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return how much each word (row) attends to each word (column), shape ``(B, heads, T, T)``.

        The states have shape ``(B, T, D)``. Each row sums to 1; padded columns are 0.
        """
        scores = self._split(self.query(states)) @ self._split(self.key(states)).transpose(-1, -2) / self._scale
        return scores.masked_fill(~mask[:, None, None, :], float("-inf")).softmax(dim=-1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the context vectors of each word, all heads concatenated, shape ``(B, T, output_dimension)``."""
        contexts = self.weights(states, mask) @ self._split(self.value(states))
        return contexts.transpose(1, 2).flatten(2)

    def _split(self, states: Tensor) -> Tensor:
        return states.reshape(*states.shape[:2], self._heads, -1).transpose(1, 2)


class OtherWordsAttention(nn.Module):
    """Attention to all words but the word itself, the "relative attention" of Aguilar and Solorio (2019).

    It has one head, the width of the states and no bias: ``A = softmax(Q K^T / sqrt(H))`` with the diagonal masked,
    and ``M = A V + V``. In a sentence of one word A is 0, so M is V.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self._scale = math.sqrt(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)

    def weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return A, shape ``(B, T, T)``, for states ``(B, T, H)``; rows and columns of padding are 0."""
        others = mask[:, :, None] & mask[:, None, :] & ~torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        scores = self.query(states) @ self.key(states).transpose(1, 2) / self._scale
        # The lowest number instead of -inf keeps a row without any other word, and its gradient, finite.
        lowest = torch.finfo(scores.dtype).min
        weights: Tensor = scores.masked_fill(~others, lowest).softmax(dim=-1)
        return weights * others

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return M, shape ``(B, T, H)``; zeros where padded."""
        values = self.value(states)
        gathered: Tensor = self.weights(states, mask).to(values.dtype) @ values + values
        return gathered * mask[:, :, None]


class GlobalAttention(nn.Module):
    """Additive attention that scales the state of every word by its weight (Aguilar and Solorio, 2019).

    ``u_i = v^T tanh(W_h h_i + b_h + W_q q + b_q)``, ``a = softmax(u)`` over the words of the sentence, and
    ``z_i = a_i h_i``: the states are scaled, not summed.
    """

    def __init__(self, width: int, query_width: int) -> None:
        """Build the projections; ``query_width`` is the width of q, a summary of the sentence."""
        super().__init__()
        self.state = nn.Linear(width, width)
        self.query = nn.Linear(query_width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def weights(self, states: Tensor, query: Tensor, mask: Tensor) -> Tensor:
        """Return a, ``(B, T)``, for states ``(B, T, H)`` and q, ``(B, Q)``; 0 where padded. No sentence is empty."""
        scores = self.score((self.state(states) + self.query(query)[:, None]).tanh())[:, :, 0]
        weights: Tensor = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return weights

    def forward(self, states: Tensor, query: Tensor, mask: Tensor) -> Tensor:
        """Return z, shape ``(B, T, H)``; zeros where padded."""
        return self.weights(states, query, mask)[:, :, None].to(states.dtype) * states


@contextmanager
def capture_outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Yield a mapping from name to last output of each module; a module that does not run has no entry."""
    outputs: dict[str, Tensor] = {}

    def store(name: str, module: nn.Module, arguments: object, output: Tensor) -> None:
        del module, arguments
        outputs[name] = output

    handles = [module.register_forward_hook(partial(store, name)) for name, module in modules.items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
