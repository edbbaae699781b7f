"""The bases of the taggers whose one network labels every word.

``BiLstmCnnTagger`` is that of the BiLSTM-CNN taggers of Li et al. (2020), which differ in what the output layer reads:
independent stacks (Baseline), Cross stacks (Cross), or independent stacks with self-attention (Att). Unlike the
released code, the alphabet is that of the training corpus rather than a fixed list of 85 characters; the vector of
unknown words leaves the case features alone, as in the paper; and a cell has PyTorch's two biases.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import Batch, Work, overlap
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Window
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import LabelDistribution, SoftmaxDistribution
from concord.models.layers.lstm import (
    BiLstm,
    BiLstmConfig,
    CrossLstm,
    IndependentLstm,
    StackedLstmConfig,
    read_words,
)
from concord.models.taggers.base import Call, ConfigT, Tagger, TaggerConfig
from concord.models.taggers.token_table import TokenTable
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig


class OneStageTagger(Tagger[ConfigT]):
    """A tagger whose one network returns a distribution over label sequences."""

    @abstractmethod
    def distribution(self, batch: Batch) -> LabelDistribution:
        """Return the distribution over the label sequences of a batch."""

    @override
    def loss(self, batch: Batch) -> Tensor:
        """Return the mean over sentences of their negative log-likelihood in nats."""
        return -self.distribution(batch).log_likelihood(batch).mean()

    @override
    def fill(self, table: TokenTable, windows: Sequence[Window], call: Call) -> None:
        def works() -> Iterator[Work[None]]:
            batch_words = self.batch_words(call.options)
            for part, batch in self.batches(windows, batch_words=batch_words, on_batch=call.on_batch):
                yield table.write(part, batch, self.predicted(batch, call.options), self.vocabulary)

        overlap(works(), self.device)

    def predicted(self, batch: Batch, options: PredictOptions) -> LabelDistribution:
        """Return the distribution that labels are predicted from, where it is another one than that of training."""
        with self.autocast(options.precision):
            return self.distribution(batch)


class BiLstmTaggerConfig(TaggerConfig):
    """Sizes of a tagger with a bidirectional LSTM."""

    representation: WordRepresentationConfig = WordRepresentationConfig()
    lstm: BiLstmConfig | None = BiLstmConfig()
    """None for no LSTM: the linear layer reads the word vectors, such as those of a tuned encoder."""


class BiLstmTagger(OneStageTagger):
    """Word representation, bidirectional LSTM, linear layer, decoder."""

    config_class: ClassVar[type[TaggerConfig]] = BiLstmTaggerConfig

    def __init__(self, config: BiLstmTaggerConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.representation = WordRepresentation(config.representation, vocabulary, encoder_width=self.encoder_width)
        width = self.representation.output_dimension
        self.lstm = BiLstm(config.lstm, width) if config.lstm is not None else None
        self.output = nn.Linear(self.lstm.output_dimension if self.lstm else width, len(vocabulary.labels))

    @abstractmethod
    def decode(self, states: Tensor, batch: Batch) -> LabelDistribution:
        """Return the distribution over the label sequences of a batch, whose states are ``(B, T, H)``."""

    @override
    def distribution(self, batch: Batch) -> LabelDistribution:
        features = self.encoder_features(batch)
        if self.lstm is None:
            return self.decode(self.representation(batch, features), batch)
        return self.decode(read_words(self.lstm, batch, self.representation, features), batch)


class BiLstmCnnConfig(TaggerConfig):
    """Sizes of a BiLSTM-CNN tagger."""

    representation: WordRepresentationConfig = WordRepresentationConfig()
    lstm: StackedLstmConfig = StackedLstmConfig()


class BiLstmCnnTagger(OneStageTagger):
    """Word representation, stacked LSTMs, linear layer, softmax."""

    config_class: ClassVar[type[TaggerConfig]] = BiLstmCnnConfig
    stack: ClassVar[type[CrossLstm | IndependentLstm]] = IndependentLstm

    def __init__(self, config: BiLstmCnnConfig, vocabulary: Vocabulary, *, context_dimension: int = 0) -> None:
        """Build the network; the output layer reads ``context_dimension`` values besides the hidden states."""
        super().__init__(config, vocabulary)
        self.representation = WordRepresentation(config.representation, vocabulary, encoder_width=self.encoder_width)
        self.lstm = self.stack(config.lstm, self.representation.output_dimension)
        self.output = nn.Linear(self.lstm.output_dimension + context_dimension, len(vocabulary.labels))

    def read(self, batch: Batch) -> Tensor:
        """Return the input of the output layer: the LSTMs' hidden states, shape ``(B, T, 2H)``."""
        return self.lstm(self.representation(batch, self.encoder_features(batch)), batch.lengths)

    @override
    def distribution(self, batch: Batch) -> SoftmaxDistribution:
        return SoftmaxDistribution(self.output(self.read(batch)), batch.mask)

    @override
    def loss(self, batch: Batch) -> Tensor:
        """Return the mean over words of their negative log-likelihood in nats, as in the paper."""
        return -self.distribution(batch).log_likelihood(batch).sum() / batch.mask.sum()
