"""Cross-BiLSTM-CNN: LSTM layers of which each reads both directions of the one below (Li et al., 2020)."""

from typing import ClassVar

from concord.models.data.vocabulary import Vocabulary
from concord.models.layers.cross_lstm import CrossLstm
from concord.models.one_stage.bilstm_cnn import BiLstmCnnConfig, BiLstmCnnTagger
from concord.models.tagger import TaggerConfig


class CrossBiLstmCnn(BiLstmCnnTagger):
    """Labels each word from the states of a Cross stack."""

    name: ClassVar[str] = "cross_bilstm_cnn"
    config_class: ClassVar[type[TaggerConfig]] = BiLstmCnnConfig

    def __init__(self, config: BiLstmCnnConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary, stack=CrossLstm)
