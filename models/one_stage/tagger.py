"""The base of the taggers whose one network labels every word."""

from abc import abstractmethod

from torch import Tensor
from typing_extensions import override

from concord.models.data.batch import Batch
from concord.models.decoders.distribution import LabelDistribution
from concord.models.tagger import CallSettings, Tagger
from concord.models.token_table import TokenTable


class OneStageTagger(Tagger):
    """A tagger whose one network returns a distribution over label sequences."""

    @abstractmethod
    def distribution(self, batch: Batch) -> LabelDistribution:
        """Return the distribution over the label sequences of a batch."""

    @override
    def loss(self, batch: Batch) -> Tensor:
        """Return the mean over sentences of their negative log-likelihood in nats."""
        return -self.distribution(batch).log_likelihood(batch).mean()

    @override
    def fill(self, table: TokenTable, settings: CallSettings) -> None:
        for windows, batch in self.batches(
            settings.windows, batch_words=settings.batch_words, on_batch=settings.on_batch
        ):
            with self.autocast(settings.precision):
                distribution = self.distribution(batch)
            table.write(windows, batch, distribution, self.vocabulary)
