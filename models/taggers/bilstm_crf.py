"""BiLSTM with a conditional random field (Lample et al., 2016; NCRF++, Yang and Zhang, 2018)."""

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from concord.models.data.batch import Batch
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.crf import Crf, CrfDistribution
from concord.models.taggers.base import TaggerConfig
from concord.models.taggers.one_stage import BiLstmTagger, BiLstmTaggerConfig


class BiLstmCrfConfig(BiLstmTaggerConfig):
    """Sizes of the BiLSTM-CRF tagger."""

    legal_mode: bool = True
    """Restrict decoding to well-formed label sequences."""


class BiLstmCrf(BiLstmTagger):
    """Word representation, bidirectional LSTM, linear layer, CRF."""

    name: ClassVar[str] = "bilstm_crf"
    config_class: ClassVar[type[TaggerConfig]] = BiLstmCrfConfig

    def __init__(self, config: BiLstmCrfConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.crf = Crf(vocabulary.labels, vocabulary.scheme, legal_mode=config.legal_mode)

    @override
    def decode(self, states: Tensor, batch: Batch) -> CrfDistribution:
        return self.crf(self.output(states), batch.mask)
