"""BiLSTM-LAN: a hierarchy of BiLSTM layers refined by label attention (Cui and Zhang, 2019).

Every layer but the last concatenates its hidden states and their attention to the label embeddings as the input of the
next layer; the attention scores of the last layer are the logits, and only they are supervised. Each word is labelled
on its own: information on the labels of neighbours travels through the higher BiLSTM layers, not through a CRF.

Words attend to label embeddings. The paper (section 4.2) projects queries, keys and values of the heads linearly; its
parameter counts (table 2) and released code have a linear layer with bias and a ReLU, in the last layer too. Both are
here. Unlike the released code, this attends to real labels only (no label for padding) and omits the value projection
of the last layer, which nothing reads.
"""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import Batch
from concord.models.data.outputs import AttentionWeights
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import SoftmaxDistribution
from concord.models.layers.lstm import BiLstm, BiLstmConfig
from concord.models.taggers.base import TaggerConfig
from concord.models.taggers.one_stage import OneStageTagger
from concord.models.words.representation import CharLstmConfig, WordRepresentation, WordRepresentationConfig

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


class BiLstmLanConfig(TaggerConfig):
    """Sizes and variants of BiLSTM-LAN."""

    representation: WordRepresentationConfig = WordRepresentationConfig(characters=CharLstmConfig())
    lstm: BiLstmConfig = BiLstmConfig(layers=3)
    """All layers, with label attention between them; dropout is on each layer's output."""
    heads: int = Field(default=5, ge=1)
    """Heads of the label attention between layers; a divisor of 2 * lstm.hidden."""
    attention_dropout: float = Field(default=0.5, ge=0, lt=1)
    """Dropout on the attention weights."""
    label_bound: float = Field(default=0.0025, gt=0)
    """Label embeddings are initialized uniformly within this distance of 0. With the released 0.0025 all labels are
    alike at first; SGD separates them slowly, Adam not within a few epochs."""
    attention: bool = True
    """False is the paper's ablation without attention (table 3), which the paper does not describe further. Here it
    means that each higher layer reads the hidden states only, and the last layer scores labels as usual."""
    projection: Projection = "relu"
    """How the attention projects words and labels: `linear` (paper, section 4.2) or `relu`, with bias and ReLU
    (released code, and the paper's parameter counts)."""
    naive: bool = False
    """Use attention without projections and scale; with one layer this is a BiLSTM-softmax."""
    carry_state: bool = False
    """Initialize every higher layer with the last states of the first, as the released code does; each word then has
    some information about the whole sentence."""

    @field_validator("heads")
    @classmethod
    def _heads_divide_the_width(cls, heads: int, info: ValidationInfo) -> int:
        lstm = info.data.get("lstm")
        if lstm is not None and 2 * lstm.hidden % heads:
            raise ValueError(f"expected a divisor of 2 * lstm.hidden ({2 * lstm.hidden})")
        return heads


class BiLstmLan(OneStageTagger):
    """Word representation, bidirectional LSTM layers with label attention between them, label scores."""

    name: ClassVar[str] = "bilstm_lan"
    config_class: ClassVar[type[TaggerConfig]] = BiLstmLanConfig

    def __init__(self, config: BiLstmLanConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self._carry_state = config.carry_state
        self.representation = WordRepresentation(config.representation, vocabulary, encoder_width=self.encoder_width)
        width, higher = 2 * config.lstm.hidden, config.lstm.layers - 1
        one_layer = config.lstm.model_copy(update={"layers": 1})
        inputs = [self.representation.output_dimension] + [2 * width if config.attention else width] * higher
        self.lstms = nn.ModuleList(BiLstm(one_layer, dimension) for dimension in inputs)
        embeddings = torch.empty(len(vocabulary.labels), width)
        self.labels = nn.Parameter(embeddings.uniform_(-config.label_bound, config.label_bound))
        projection = None if config.naive else config.projection
        self.attentions = nn.ModuleList(
            LabelAttention(width, heads=config.heads, dropout=config.attention_dropout, projection=projection)
            for _ in range(higher if config.attention else 0)
        )
        self.scorer = LabelScorer(width, projection=projection)

    @override
    def distribution(self, batch: Batch) -> SoftmaxDistribution:
        hidden, _ = self._read(batch)
        return self.scorer(hidden, self.labels, batch.mask)

    @override
    def attend(self, batch: Batch) -> Mapping[str, AttentionWeights]:
        """Return the attention of each layer to labels, ``labels_1`` and up; that of the last is the distribution."""
        hidden, weights = self._read(batch)
        decided = self.scorer(hidden, self.labels, batch.mask)
        layers = {**dict(enumerate(weights, start=1)), len(self.lstms): decided.marginals()[:, None]}
        return {f"labels_{layer}": AttentionWeights(weights=shares, over="labels") for layer, shares in layers.items()}

    def _read(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Return the hidden states of the last layer, ``(B, T, width)``, and the attention weights of the others.

        The weights of each layer have shape ``(B, heads, T, L)``, 0..1, zeros where padded.
        """
        inputs = self.representation(batch, self.encoder_features(batch))
        hidden, carried, weights = inputs, None, []
        for number, lstm in enumerate(self.lstms):
            hidden, state = cast(BiLstm, lstm).read(inputs, batch.lengths, state=carried)
            if self._carry_state and number == 0:
                carried = state
            inputs = hidden
            if number < len(self.attentions):
                inputs, layer_weights = self.attentions[number](hidden, self.labels, batch.mask)
                weights.append(layer_weights)
        return hidden, weights
