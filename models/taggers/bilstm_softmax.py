"""BiLSTM with a softmax per word: the plain baseline (NCRF++; Yang and Zhang, 2018)."""

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from concord.models.data.batch import Batch
from concord.models.decoders.distribution import SoftmaxDistribution
from concord.models.taggers.one_stage import BiLstmTagger


class BiLstmSoftmax(BiLstmTagger):
    """Word representation, bidirectional LSTM, linear layer, softmax."""

    name: ClassVar[str] = "bilstm_softmax"

    @override
    def decode(self, states: Tensor, batch: Batch) -> SoftmaxDistribution:
        return SoftmaxDistribution(self.output(states), batch.mask)
