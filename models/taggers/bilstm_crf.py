"""BiLSTM with a conditional random field (Lample et al., 2016; NCRF++, Yang and Zhang, 2018)."""

from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import Batch
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.crf.distribution import Crf, CrfDistribution
from concord.models.layers.bilstm import BiLstmConfig, build_bilstm, read_words
from concord.models.one_stage import OneStageTagger
from concord.models.tagger import TaggerConfig
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig


class BiLstmCrfConfig(TaggerConfig):
    """Sizes of the BiLSTM-CRF tagger."""

    representation: WordRepresentationConfig = WordRepresentationConfig()
    lstm: BiLstmConfig | None = BiLstmConfig()
    """None for no LSTM: the linear layer reads the word vectors, such as those of a tuned encoder."""
    legal_mode: bool = True
    """Restrict decoding to well-formed label sequences."""


class BiLstmCrf(OneStageTagger):
    """Word representation, bidirectional LSTM, linear layer, CRF."""

    name: ClassVar[str] = "bilstm_crf"
    config_class: ClassVar[type[TaggerConfig]] = BiLstmCrfConfig

    def __init__(self, config: BiLstmCrfConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.representation = WordRepresentation(config.representation, vocabulary, encoder_width=self.encoder_width)
        self.lstm = build_bilstm(config.lstm, self.representation.output_dimension)
        self.output = nn.Linear(self.lstm.output_dimension, len(vocabulary.labels))
        self.crf = Crf(vocabulary.labels, vocabulary.scheme, legal_mode=config.legal_mode)

    def read(self, batch: Batch) -> Tensor:
        """Return the LSTM's states, shape ``(B, T, H)``."""
        return read_words(self.lstm, batch, self.representation, self.encoder_features(batch))

    def decode(self, states: Tensor, batch: Batch) -> CrfDistribution:
        """Return the distribution over label sequences; states of shape ``(B, T, H)``."""
        return self.crf(self.output(states), batch.mask)

    @override
    def distribution(self, batch: Batch) -> CrfDistribution:
        return self.decode(self.read(batch), batch)
