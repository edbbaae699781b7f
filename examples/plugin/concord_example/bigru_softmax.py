"""A tagger of another package: a bidirectional GRU with a softmax for each word."""

from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from concord.models.config import Config
from concord.models.data.batch import Batch
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import SoftmaxDistribution
from concord.models.taggers.base import TaggerConfig
from concord.models.taggers.one_stage import OneStageTagger
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig


class BiGruConfig(Config):
    """Sizes of the GRU."""

    hidden: int = 64
    """Units in each direction."""


class BiGruSoftmaxConfig(TaggerConfig):
    """What ``profiles.NAME.model`` of a training file may set."""

    representation: WordRepresentationConfig = WordRepresentationConfig()
    gru: BiGruConfig = BiGruConfig()


class BiGruSoftmax(OneStageTagger):
    """Word representation, bidirectional GRU, linear layer, softmax."""

    name: ClassVar[str] = "bigru_softmax"
    config_class: ClassVar[type[TaggerConfig]] = BiGruSoftmaxConfig

    def __init__(self, config: BiGruSoftmaxConfig, vocabulary: Vocabulary) -> None:
        """Build the network."""
        super().__init__(config, vocabulary)
        self.representation = WordRepresentation(config.representation, vocabulary, encoder_width=self.encoder_width)
        self.gru = nn.GRU(self.representation.output_dimension, config.gru.hidden, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * config.gru.hidden, len(vocabulary.labels))

    @override
    def distribution(self, batch: Batch) -> SoftmaxDistribution:
        words = self.representation(batch, self.encoder_features(batch))
        return SoftmaxDistribution(self.output(self._states(words, batch.lengths)), batch.mask)

    def _states(self, words: Tensor, lengths: Tensor) -> Tensor:
        # Packed, so that a sentence's labels do not depend on the padding that its batch gives it.
        packed = nn.utils.rnn.pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=words.shape[1])
        return states
