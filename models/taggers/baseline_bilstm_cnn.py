"""Baseline-BiLSTM-CNN: independent stacks of LSTMs and a softmax per word (Li et al., 2020)."""

from typing import ClassVar

from concord.models.taggers.one_stage import BiLstmCnnTagger


class BaselineBiLstmCnn(BiLstmCnnTagger):
    """Labels each word from the states of a rightward and of a leftward stack.

    The score of a label is a sum over left and right context, so it cannot express an interaction of the two, such as
    their exclusive or.
    """

    name: ClassVar[str] = "baseline_bilstm_cnn"
