"""Baseline-BiLSTM-CNN: independent stacks of LSTMs and a softmax per word (Li et al., 2020)."""

from typing import ClassVar

from concord.models.data.vocabulary import Vocabulary
from concord.models.layers.cross_lstm import IndependentLstm
from concord.models.one_stage.bilstm_cnn import BiLstmCnnConfig, BiLstmCnnTagger
from concord.models.tagger import TaggerConfig


class BaselineBiLstmCnn(BiLstmCnnTagger):
    """Labels each word from the states of a rightward and of a leftward stack.

    The score of a label is a sum over left and right context, so it cannot express an interaction of the two, such as
    their exclusive or.
    """

    name: ClassVar[str] = "baseline_bilstm_cnn"
    config_class: ClassVar[type[TaggerConfig]] = BiLstmCnnConfig

    def __init__(self, config: BiLstmCnnConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary, stack=IndependentLstm)
