"""Baseline-BiLSTM-CNN: independent stacks of LSTMs, a softmax for each word (Li et al., 2020)."""

from typing import ClassVar

from concord.models.bilstm_cnn import BiLstmCnnConfig, BiLstmCnnTagger
from concord.models.data.vocabulary import Vocabulary
from concord.models.layers.cross_lstm import IndependentLstm
from concord.models.tagger import TaggerConfig


class BaselineBiLstmCnn(BiLstmCnnTagger):
    """Labels each word from the last states of a rightward and of a leftward stack.

    A label's score is a sum of what lies left and of what lies right, so it cannot depend on both at once, as on their
    exclusive or.
    """

    name: ClassVar[str] = "baseline_bilstm_cnn"
    config_class: ClassVar[type[TaggerConfig]] = BiLstmCnnConfig

    def __init__(self, config: BiLstmCnnConfig, vocabulary: Vocabulary) -> None:
        """Build the network."""
        super().__init__(config, vocabulary, stack=IndependentLstm)
