"""Structured Refinement (SR): hidden states refined by the marginals of a CRF (Wang et al., 2021).

Each refinement layer is a BiLSTM, a CRF over the products of its states with the label embeddings, and structured
attention; a last BiLSTM and CRF decode. Only the last CRF is trained on labels; the others are trained through it.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import Batch
from concord.models.data.outputs import AttentionWeights
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.crf import Crf, CrfDistribution, LinearChain
from concord.models.layers.lstm import BiLstm, BiLstmConfig, read_words
from concord.models.taggers.base import TaggerConfig
from concord.models.taggers.one_stage import OneStageTagger
from concord.models.words.representation import CharLstmConfig, WordRepresentation, WordRepresentationConfig

# Bound of the CRF's initial scores, as in the authors' library torchlatent up to version 0.4.2.
_INITIAL_SCORE = 0.01

Merge = Literal["residual", "concatenation"]


class StructuredRefinementConfig(TaggerConfig):
    """Sizes of the structured refinement tagger."""

    representation: WordRepresentationConfig = WordRepresentationConfig(characters=CharLstmConfig(hidden=50))
    lstm: BiLstmConfig = BiLstmConfig(hidden=300)
    """The BiLSTM of every layer; label embeddings have the width of its output."""
    layers: int = Field(default=1, ge=1)
    """Number of refinement layers, without the BiLSTM of the decoder."""
    sharing: Literal["both", "embeddings", "none"] = "both"
    """What refinement layers and decoder share: label embeddings and CRF, only the embeddings, or nothing."""
    latent_labels: int | None = Field(default=None, ge=1)
    """Labels of a refinement layer that shares nothing; None for as many as the decoder has."""
    merge: Merge = "residual"
    """How a layer combines its states and the expected label embedding."""
    legal_mode: bool = True
    """Restrict decoding to well-formed label sequences."""

    @field_validator("latent_labels")
    @classmethod
    def _latent_labels_are_not_shared(cls, latent_labels: int | None, info: ValidationInfo) -> int | None:
        if latent_labels is not None and info.data.get("sharing") != "none":
            raise ValueError("expected sharing: none with a number of latent labels")
        return latent_labels


class StructuredAttention(nn.Module):
    """Refines hidden states by the label embeddings expected given the whole sentence (section 3 of the paper).

    With the marginals ``mu``, the label embeddings ``v`` and the projection ``V``, which has a bias, a word's state
    ``h`` becomes ``LayerNorm(h + ReLU(sum_y mu(y) V v_y))`` (Wang et al., 2021); with the merge ``concatenation`` (the
    ablation in its Table 8) the two summands are concatenated instead. The marginals stay in the graph, so training
    differentiates the log-partition twice. Unlike in the softmax of label attention, a word's weights depend on the
    scores of the whole sentence.
    """

    def __init__(self, dimension: int, *, merge: Merge) -> None:
        super().__init__()
        self.output_dimension = dimension if merge == "residual" else 2 * dimension
        self.value = nn.Linear(dimension, dimension)
        self.norm = nn.LayerNorm(self.output_dimension)
        self._merge = merge

    def forward(self, hidden: Tensor, label_embedding: Tensor, distribution: CrfDistribution) -> Tensor:
        """Refine the states of a batch, shape ``(B, T, dimension)`` to ``(B, T, output_dimension)``.

        The label embeddings have shape ``(L, dimension)``; the distribution is scored from the states.
        """
        values = self.value(label_embedding)
        expected = (distribution.marginals().to(values.dtype) @ values).relu()
        merged = hidden + expected if self._merge == "residual" else torch.cat((hidden, expected), dim=-1)
        refined: Tensor = self.norm(merged)
        return refined


class StructuredRefinement(OneStageTagger):
    """Word representation, refinement layers, BiLSTM, CRF.

    Attributes:
        label_embeddings: of each refinement layer and, last, of the decoder; one if shared. Shape ``(L, d)`` each.
        crfs: likewise.
    """

    name: ClassVar[str] = "structured_refinement"
    config_class: ClassVar[type[TaggerConfig]] = StructuredRefinementConfig

    def __init__(self, config: StructuredRefinementConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.representation = WordRepresentation(config.representation, vocabulary, encoder_width=self.encoder_width)
        self.lstms = nn.ModuleList()
        self.attentions = nn.ModuleList()
        width = self.representation.output_dimension
        for _ in range(config.layers):
            lstm = BiLstm(config.lstm, width)
            attention = StructuredAttention(lstm.output_dimension, merge=config.merge)
            self.lstms.append(lstm)
            self.attentions.append(attention)
            width = attention.output_dimension
        self.lstms.append(BiLstm(config.lstm, width))
        labels = len(vocabulary.labels)
        latent = config.latent_labels or labels
        own_embeddings = config.layers if config.sharing == "none" else 0
        own_crfs = config.layers if config.sharing != "both" else 0
        self.label_embeddings = nn.ParameterList(
            _label_embedding(size, 2 * config.lstm.hidden) for size in (*[latent] * own_embeddings, labels)
        )
        self.crfs = nn.ModuleList(LinearChain(latent) for _ in range(own_crfs))
        self.crfs.append(Crf(vocabulary.labels, vocabulary.scheme, legal_mode=config.legal_mode))
        for scores in self.crfs.parameters():
            nn.init.uniform_(scores, -_INITIAL_SCORE, _INITIAL_SCORE)

    @override
    def distribution(self, batch: Batch) -> CrfDistribution:
        return self._distributions(batch)[-1]

    @override
    def attend(self, batch: Batch) -> Mapping[str, AttentionWeights]:
        """Return the marginals of each refinement layer, ``refinement_1`` and up."""
        if len(self.label_embeddings) > 1:
            return {}  # the labels of a layer with its own embeddings have no names
        layers = enumerate(self._distributions(batch)[:-1], start=1)
        return {
            f"refinement_{layer}": AttentionWeights(weights=distribution.marginals()[:, None], over="labels")
            for layer, distribution in layers
        }

    def _distributions(self, batch: Batch) -> list[CrfDistribution]:
        """Return the distribution over labels of each refinement layer and, last, of the decoder."""
        hidden = read_words(self.lstms[0], batch, self.representation, self.encoder_features(batch))
        distributions = []
        for layer, attention in enumerate(self.attentions):
            label_embedding = self.label_embeddings[min(layer, len(self.label_embeddings) - 1)]
            distributions.append(self._score(hidden, label_embedding, self.crfs[min(layer, len(self.crfs) - 1)], batch))
            hidden = self.lstms[layer + 1](attention(hidden, label_embedding, distributions[-1]), batch.lengths)
        return [*distributions, self._score(hidden, self.label_embeddings[-1], self.crfs[-1], batch)]

    def _score(self, hidden: Tensor, label_embedding: Tensor, crf: nn.Module, batch: Batch) -> CrfDistribution:
        return cast(CrfDistribution, crf(hidden @ label_embedding.T, batch.mask))


def _label_embedding(labels: int, dimension: int) -> nn.Parameter:
    """Initialize label embeddings like the weights of a linear layer; the paper does not say how."""
    embedding = torch.empty(labels, dimension)
    nn.init.kaiming_uniform_(embedding, a=math.sqrt(5))
    return nn.Parameter(embedding)
