"""Attention over the words of a sentence, the Transformer with relative attention, and what captures attention weights.

The Transformer's two-stream variant also attends to draft labels. Scores follow Transformer-XL (Dai et al., 2019) and
TENER (Yan et al., 2019) with the paper's sign and origin: sinusoids of the offset i - j. (The released code keeps a
table whose origin moves with the longest sentence seen.) In the last layer or in all, a second stream has draft labels
as keys and values (Ye et al., 2021, section III-B).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

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


class TwoStreamConfig(Config):
    """Sizes of the two-stream encoder."""

    heads: int = Field(default=7, ge=1)
    head_dimension: int = Field(default=80, ge=2, multiple_of=2)
    """Dimensions per head; even, since sinusoids come in pairs. The width of a stream is heads times this."""
    layers: int = Field(default=2, ge=1)
    """Number of layers; the last one has two streams, or each in the form of the paper."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    attention_dropout: float = Field(default=0.15, ge=0, lt=1)

    @property
    def width(self) -> int:
        """Dimensions of a stream."""
        return self.heads * self.head_dimension


def sinusoids(length: int, dimension: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sines and cosines of the places from 0 to length - 1, each of shape ``(length, dimension / 2)``."""
    # In float64: angles of far places would be too coarse for the differences of near ones.
    places = torch.arange(length, device=like.device, dtype=torch.float64)
    exponents = torch.arange(0, dimension, 2, device=like.device, dtype=torch.float64) / dimension
    angles = places[:, None] * torch.exp(-math.log(10_000.0) * exponents)
    return angles.sin().to(like.dtype), angles.cos().to(like.dtype)


class RelativeAttention(nn.Module):
    """Multi-head attention with relative positions, without output projection as in the released code."""

    def __init__(self, config: TwoStreamConfig) -> None:
        super().__init__()
        self._heads = config.heads
        self._scale = math.sqrt(config.head_dimension)
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width, bias=False)
        self.position = nn.Linear(config.head_dimension, config.head_dimension, bias=False)
        self.content_bias = nn.Parameter(torch.empty(config.heads, config.head_dimension))
        self.position_bias = nn.Parameter(torch.empty(config.heads, config.head_dimension))
        nn.init.xavier_uniform_(self.content_bias)
        nn.init.xavier_uniform_(self.position_bias)
        self.dropout = nn.Dropout(config.attention_dropout)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score every key for every query, both ``(B, T, width)``; shape ``(B, heads, T, T)``, scaled.

        A query's score of an offset is ``f sin(w (i - j)) + g cos(w (i - j))``, summed over the frequencies w. By the
        rule for the angle of a difference that is ``(g sin wi - f cos wi) sin wj + (f sin wi + g cos wi) cos wj``, a
        product of a part that depends on i and one that depends on j, so that content and offset are one product.
        """
        query = self._split(self.query(queries))
        key = self._split(self.key(keys))
        sines, cosines = sinusoids(queries.shape[1], query.shape[-1], like=query)
        factors = (query + self.position_bias[:, None]) @ self.position.weight
        of_sine, of_cosine = factors.chunk(2, dim=-1)
        turned = (of_cosine * sines - of_sine * cosines, of_sine * sines + of_cosine * cosines)
        left = torch.cat([query + self.content_bias[:, None], *turned], dim=-1) / self._scale
        places = torch.cat([sines, cosines], dim=-1).expand_as(key)
        return left @ torch.cat([key, places], dim=-1).transpose(-1, -2)

    def forward(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Attend from words to words or to labels; shape ``(B, T, width)``, zeros where padded."""
        scores = self.scores(queries, keys).masked_fill_(~mask[:, None, None, :], float("-inf"))
        weights = self.dropout(scores.softmax(dim=-1))
        attended: Tensor = (weights @ self._split(self.value(keys))).transpose(1, 2).flatten(2)
        return attended * mask[:, :, None]

    def _split(self, states: Tensor) -> Tensor:
        return states.reshape(*states.shape[:2], self._heads, -1).transpose(1, 2)


class RelativeLayer(nn.Module):
    """One post-norm Transformer layer."""

    __call__: Callable[..., Tensor]

    def __init__(self, config: TwoStreamConfig, *, projected: bool = False) -> None:
        """Build the layer; the paper projects what the heads attend to, the released code does not."""
        super().__init__()
        self.attention = RelativeAttention(config)
        self.projection = nn.Linear(config.width, config.width) if projected else nn.Identity()
        self.attention_norm = nn.LayerNorm(config.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.width, 2 * config.width),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(2 * config.width, config.width),
            nn.Dropout(config.dropout),
        )
        self.feed_forward_norm = nn.LayerNorm(config.width)

    def forward(self, states: Tensor, mask: Tensor, *, queries: Tensor | None = None) -> Tensor:
        """Return the states of the layer, ``(B, T, width)``; another stream may attend to them, themselves if None."""
        found = self.attention(states if queries is None else queries, states, mask)
        attended = self.attention_norm(states + self.projection(found))
        return cast(Tensor, self.feed_forward_norm(attended + self.feed_forward(attended)))


class RelativeTransformer(nn.Module):
    """A Transformer with relative attention over words (TENER; Yan et al., 2019)."""

    __call__: Callable[..., Tensor]

    def __init__(self, config: TwoStreamConfig, *, projected: bool = False) -> None:
        """Build the layers; ``projected`` as in RelativeLayer."""
        super().__init__()
        self.lower = nn.ModuleList(RelativeLayer(config, projected=projected) for _ in range(config.layers - 1))
        self.last = RelativeLayer(config, projected=projected)

    def read_words(self, words: Tensor, mask: Tensor) -> Tensor:
        """Run all layers but the last; a document memory may be read between the two calls."""
        for layer in self.lower:
            words = layer(words, mask)
        return words

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Run all layers; shape ``(B, T, width)``."""
        return self.last(self.read_words(words, mask), mask)

    def attentions(self) -> dict[str, nn.Module]:
        """Return the modules whose outputs are attention weights, shape ``(B, heads, T, T)``, lowest layer first."""
        layers = [layer for layer in (*self.lower, self.last) if isinstance(layer, RelativeLayer)]
        return {f"words_{number}": layer.attention.dropout for number, layer in enumerate(layers, start=1)}


class TwoStreamEncoder(RelativeTransformer):
    """A relative Transformer whose last layer also attends to draft labels.

    The label stream has no residual connection, norm or feed-forward network, so a word's own draft label enters only
    through attention; the unused feed-forward weights of the released code are left out.
    """

    def __init__(self, config: TwoStreamConfig) -> None:
        super().__init__(config)
        self.label_attention = RelativeAttention(config)

    @override
    def attentions(self) -> dict[str, nn.Module]:
        return super().attentions() | {"drafts": self.label_attention.dropout}


class LayeredTwoStreamEncoder(RelativeTransformer):
    """One or two streams in every layer, as the paper writes them (Ye et al., 2021, eq. 9, 12 and 13).

    The words h attend to words and, with ``labelled``, to the labels l, and both are updated::

        h' = FeedForward(LayerNorm(h + Linear(Attention(h, h))))
        l' = FeedForward(LayerNorm(l + Linear(Attention(h, l))))

    As in Transformer-XL, the feed-forward network has a residual connection and a norm of its own.
    """

    def __init__(self, config: TwoStreamConfig, *, labelled: bool = True) -> None:
        super().__init__(config, projected=True)
        self.labels = nn.ModuleList(RelativeLayer(config, projected=True) for _ in range(labelled * config.layers))

    def run_layer(self, number: int, streams: list[Tensor], mask: Tensor) -> list[Tensor]:
        """Run a layer, from 0, on words and, if it is labelled, labels; return their states, all ``(B, T, width)``."""
        words, *labels = streams
        layer = (*self.lower, self.last)[number]
        return [layer(words, mask), *(self.labels[number](stream, mask, queries=words) for stream in labels)]

    @override
    def attentions(self) -> dict[str, nn.Module]:
        layers = [layer for layer in self.labels if isinstance(layer, RelativeLayer)]
        drafts = {f"drafts_{number}": layer.attention.dropout for number, layer in enumerate(layers, start=1)}
        return super().attentions() | drafts
