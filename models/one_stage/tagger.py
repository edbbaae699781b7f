"""The base of the taggers whose one network labels every word."""

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor
from typing_extensions import override

from concord.models.data.batch import Batch
from concord.models.data.windows import Window
from concord.models.decoders.distribution import LabelDistribution
from concord.models.tagger import Call, ConfigT, Tagger
from concord.models.token_table import TokenTable


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
        for part, batch in self.batches(windows, batch_words=call.options.batch_words, on_batch=call.on_batch):
            with self.autocast(call.options.precision):
                distribution = self.distribution(batch)
            table.write(part, batch, distribution, self.vocabulary)
