"""Cross-BiLSTM-CNN: LSTM layers of which each reads both directions of the one below (Li et al., 2020)."""

from typing import ClassVar

from concord.models.layers.lstm import CrossLstm, IndependentLstm
from concord.models.taggers.one_stage import BiLstmCnnTagger


class CrossBiLstmCnn(BiLstmCnnTagger):
    """Labels each word from the states of a Cross stack."""

    name: ClassVar[str] = "cross_bilstm_cnn"
    stack: ClassVar[type[CrossLstm | IndependentLstm]] = CrossLstm
