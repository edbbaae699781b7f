"""Att-BiLSTM-CNN: independent stacks of LSTMs with self-attention over their states (Li et al., 2020)."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from concord.models.data.batch import Batch
from concord.models.data.outputs import AttentionWeights
from concord.models.data.vocabulary import Vocabulary
from concord.models.layers.attention import MultiHeadSelfAttention, SelfAttentionConfig
from concord.models.taggers.base import TaggerConfig
from concord.models.taggers.one_stage import BiLstmCnnConfig, BiLstmCnnTagger


class AttBiLstmCnnConfig(BiLstmCnnConfig):
    """Sizes of Att-BiLSTM-CNN."""

    attention: SelfAttentionConfig = SelfAttentionConfig()


class AttBiLstmCnn(BiLstmCnnTagger):
    """Labels each word from its hidden states and the context vectors of all attention heads."""

    name: ClassVar[str] = "att_bilstm_cnn"
    config_class: ClassVar[type[TaggerConfig]] = AttBiLstmCnnConfig

    def __init__(self, config: AttBiLstmCnnConfig, vocabulary: Vocabulary) -> None:
        contexts = config.attention.heads * config.attention.head_dimension
        super().__init__(config, vocabulary, context_dimension=contexts)
        self.attention = MultiHeadSelfAttention(config.attention, self.lstm.output_dimension)

    @override
    def read(self, batch: Batch) -> Tensor:
        hidden = super().read(batch)
        return torch.cat([hidden, self.attention(hidden, batch.mask)], dim=2)

    @override
    def attend(self, batch: Batch) -> Mapping[str, AttentionWeights]:
        weights = self.attention.weights(super().read(batch), batch.mask)
        return {"self": AttentionWeights(weights=weights, over="words")}
