"""Dependency-aware recognition with relative and global attention (Aguilar and Solorio, 2019).

The input is a word's vector with embeddings of its part of speech and of the relation to its head. A stack of
bidirectional LSTMs reads the sentence, a stack of Child-Sum Tree-LSTMs its dependency tree; relative and global
attention read both, concatenated, and a CRF labels the words. Every sublayer is ``LN(x + Sublayer(m * x))``, where m is
a mask of variational dropout, the same for all words of a sentence (section 3.3 and appendix A).
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import PADDING, UNKNOWN, Batch
from concord.models.data.outputs import AttentionWeights
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.crf import Crf, CrfDistribution
from concord.models.errors import ConfigError
from concord.models.layers.attention import GlobalAttention, OtherWordsAttention
from concord.models.layers.lstm import BiLstm, BiLstmConfig, draw_mask
from concord.models.layers.tree_lstm import TreeLstm, grow_forest
from concord.models.taggers.base import TaggerConfig
from concord.models.taggers.one_stage import OneStageTagger
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig

# Embeddings of tags and of relations have a quarter of the word vector's width.
_FEATURE_PART = 4


class DependencyAwareConfig(TaggerConfig):
    """Sizes of the dependency-aware tagger, and switches for the paper's ablations."""

    representation: WordRepresentationConfig = WordRepresentationConfig(dropout=0.0)
    """The word's vector; `input_dropout` replaces its dropout."""
    input_dropout: float = Field(default=0.3, ge=0, lt=1)
    """Dropout rate of each part of the input, with one mask for all words of a sentence. The first sublayer of each
    branch applies its own mask to this too; with 0 here its input is masked once."""
    dropout: float = Field(default=0.3, ge=0, lt=1)
    """Dropout rate of the input of each sublayer, with one mask for all words of a sentence."""
    tags: bool = True
    """Whether the part of speech is part of the input."""
    relations: bool = True
    """Whether the relation to the head is part of the input."""
    branches: Literal["sequence", "tree", "both"] = "both"
    layers: int = Field(default=2, ge=1)
    """Layers per branch."""
    residual: bool = True
    """Whether the layers of the branches have residual connections and norms; the attentions always have."""
    relative_attention: bool = True
    global_attention: bool = True
    regularization: float = Field(default=1e-5, ge=0)
    """Factor of the sum of the squared weights of LSTMs and attentions, which is added to the loss."""
    legal_mode: bool = True
    """Restrict decoding to well-formed label sequences."""


class DependencyAware(OneStageTagger[DependencyAwareConfig]):
    """Sequence and tree branch, relative and global attention, CRF.

    The paper does not specify the number of layers and the query of the global attention when there are both branches:
    here the last states of the LSTM and the mean over the roots, concatenated. Unlike in the paper, the embeddings of
    an unknown tag or relation are zero, since training never encounters one.
    """

    name: ClassVar[str] = "dependency_aware"
    config_class: ClassVar[type[TaggerConfig]] = DependencyAwareConfig
    needs_trees: ClassVar[bool] = True

    def __init__(self, config: DependencyAwareConfig, vocabulary: Vocabulary) -> None:
        """Build the network; raise ConfigError when the total width of the input's parts is odd."""
        super().__init__(config, vocabulary)
        self.representation = WordRepresentation(config.representation, vocabulary, encoder_width=self.encoder_width)
        words = self.representation.output_dimension
        narrow = max(1, words // _FEATURE_PART)
        self.tags = _feature_table(len(vocabulary.tags), narrow) if config.tags else None
        self.relations = _feature_table(len(vocabulary.relations), narrow) if config.relations else None
        width = words + narrow * (config.tags + config.relations)
        if width % 2:
            raise ConfigError(
                f"representation: expected an even total width, half for each direction of the LSTM, got {width}"
            )
        has_tree, has_sequence = config.branches != "sequence", config.branches != "tree"
        half = BiLstmConfig(hidden=width // 2, layers=1, dropout=0.0)
        self.sequence = self._branch([BiLstm(half, width) for _ in range(config.layers * has_sequence)], width)
        self.tree = self._branch([TreeLstm(width, width) for _ in range(config.layers * has_tree)], width)
        wide = width * (has_tree + has_sequence)
        drop = config.dropout
        self.relative = _Sublayer(OtherWordsAttention(wide), wide, dropout=drop) if config.relative_attention else None
        self.overall = _Sublayer(GlobalAttention(wide, wide), wide, dropout=drop) if config.global_attention else None
        self.output = nn.Linear(wide, len(vocabulary.labels))
        self.crf = Crf(vocabulary.labels, vocabulary.scheme, legal_mode=config.legal_mode)

    @override
    def loss(self, batch: Batch) -> Tensor:
        """Return the negative log-likelihood per word in nats plus the regularization."""
        likelihood = self.distribution(batch).log_likelihood(batch).sum() / int(batch.lengths.sum())
        layers = [module.layer for module in self.modules() if isinstance(module, _Sublayer)]
        squares = sum(weight.square().sum() for layer in layers for weight in layer.parameters())
        return self.config.regularization * squares - likelihood

    @override
    def distribution(self, batch: Batch) -> CrfDistribution:
        states, query = self._extract(batch)
        if self.relative is not None:
            states = self.relative(states, batch.mask)
        if self.overall is not None:
            states = self.overall(states, query, batch.mask)
        return self.crf(self.output(states), batch.mask)

    @override
    def attend(self, batch: Batch) -> Mapping[str, AttentionWeights]:
        """Return the relative attention, and the global one, which is the same for all words of a sentence."""
        attention = {}
        states, query = self._extract(batch)
        if self.relative is not None:
            relative: Any = self.relative.layer
            weights = relative.weights(states, batch.mask)[:, None]
            attention["relative"] = AttentionWeights(weights=weights, over="words")
            states = self.relative(states, batch.mask)
        if self.overall is not None:
            overall: Any = self.overall.layer
            shares = overall.weights(states, query, batch.mask)[:, None, None]
            attention["global"] = AttentionWeights(weights=shares.expand(-1, -1, shares.shape[-1], -1), over="words")
        return attention

    def _branch(self, layers: list[BiLstm] | list[TreeLstm], width: int) -> nn.ModuleList:
        config = self.config
        return nn.ModuleList(
            _Sublayer(layer, width, dropout=config.dropout, residual=config.residual) for layer in layers
        )

    def _extract(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the states of the words, shape ``(B, T, H)``, and a summary of each sentence, shape ``(B, H)``."""
        words = self._embed(batch)
        states, summaries = [], []
        if len(self.sequence):
            sequence = words
            for layer in self.sequence:
                sequence = layer(sequence, batch.lengths)
            states.append(sequence)
            summaries.append(_ends(sequence, batch.lengths))
        if len(self.tree):
            tree, forest = words, grow_forest(batch.sentences, device=words.device)
            for layer in self.tree:
                tree = layer(tree, forest)
            states.append(tree)
            summaries.append(forest.root_states(tree))
        return torch.cat(states, dim=2), torch.cat(summaries, dim=1)

    def _embed(self, batch: Batch) -> Tensor:
        parts = [self.representation(batch, self.encoder_features(batch))]
        for table, numbers in ((self.tags, batch.tags), (self.relations, batch.relations)):
            if table is not None:
                parts.append(table(numbers))
        rate = self.config.input_dropout if self.training else 0.0
        return torch.cat([_drop_features(part, rate) for part in parts], dim=2)


class _Sublayer(nn.Module):
    """``LN(x + layer(m * x))``, or ``layer(m * x)`` if not residual."""

    def __init__(self, layer: nn.Module, width: int, *, dropout: float, residual: bool = True) -> None:
        super().__init__()
        self._dropout = dropout
        self.layer = layer
        self.norm = nn.LayerNorm(width) if residual else None

    def forward(self, states: Tensor, *context: Any) -> Tensor:
        result: Tensor = self.layer(_drop_features(states, self._dropout if self.training else 0.0), *context)
        return result if self.norm is None else self.norm(states + result)


def _drop_features(states: Tensor, rate: float) -> Tensor:
    """Apply variational dropout to the features of words, ``(B, T, D)``: one mask for all words of a sentence."""
    return states * draw_mask((states.shape[0], 1, states.shape[2]), rate, like=states) if rate else states


def _feature_table(names: int, dimension: int) -> nn.Embedding:
    table = nn.Embedding(names + 2, dimension, padding_idx=PADDING)
    nn.init.xavier_uniform_(table.weight)
    with torch.no_grad():
        table.weight[[PADDING, UNKNOWN]] = 0
    return table


def _ends(states: Tensor, lengths: Tensor) -> Tensor:
    """Return the forward half of each sentence's last state and the backward half of its first, concatenated."""
    half = states.shape[2] // 2
    rows = torch.arange(len(lengths), device=states.device)
    return torch.cat([states[rows, (lengths - 1).to(states.device), :half], states[:, 0, half:]], dim=1)
