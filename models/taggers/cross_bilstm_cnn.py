"""Cross-BiLSTM-CNN: LSTM layers that each read both directions of the one below (Li et al., 2020)."""

from typing import ClassVar

from models.base import TaggerConfig
from models.bilstm_cnn import BiLstmCnnConfig, BiLstmCnnTagger
from models.data import Vocabulary
from models.layers.cross_lstm import CrossLstm


class CrossBiLstmCnn(BiLstmCnnTagger):
    """Labels each word from the last layer of a Cross stack."""

    name: ClassVar[str] = "cross_bilstm_cnn"
    config_class: ClassVar[type[TaggerConfig]] = BiLstmCnnConfig

    def __init__(self, config: BiLstmCnnConfig, vocabulary: Vocabulary) -> None:
        """Build the network."""
        super().__init__(config, vocabulary, stack=CrossLstm)
