"""The variational LSTM as a tagger of its own: the first stage of UANet (Ye et al., 2021, Table IV).

With a softmax the label probabilities are the mean over the M weight samples, as in stage one of UANet. A CRF reads
the mean of the logits, since the mean of M CRFs is not a CRF.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from concord.models.data.batch import Batch, finished
from concord.models.data.outputs import PredictOptions
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.crf import DecoderName, SoftmaxOrCrf
from concord.models.decoders.distribution import LabelDistribution, SampledDistribution
from concord.models.layers.variational_lstm import VariationalLstmConfig
from concord.models.taggers.base import TaggerConfig
from concord.models.taggers.one_stage import OneStageTagger
from concord.models.taggers.two_stage_networks import DraftNetwork
from concord.models.words.representation import WordRepresentationConfig


class VariationalLstmTaggerConfig(TaggerConfig):
    """Sizes of the variational LSTM tagger."""

    representation: WordRepresentationConfig = WordRepresentationConfig(unit_variance=True)
    lstm: VariationalLstmConfig = VariationalLstmConfig()
    samples: int = Field(default=8, ge=1)
    """Number of Monte Carlo weight samples M in inference."""
    sample_seed: int = 20210823
    """Seed from which the weight samples of a model are drawn once."""
    decoder: DecoderName = "softmax"


class VariationalLstmTagger(OneStageTagger[VariationalLstmTaggerConfig]):
    """Word representation, variational LSTM, linear layer, softmax or CRF."""

    name: ClassVar[str] = "variational_lstm"
    config_class: ClassVar[type[TaggerConfig]] = VariationalLstmTaggerConfig

    def __init__(self, config: VariationalLstmTaggerConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.network = DraftNetwork(config.representation, config.lstm, vocabulary, encoder_width=self.encoder_width)
        self.decoder = SoftmaxOrCrf(config.decoder, vocabulary.labels, vocabulary.scheme)

    @override
    def distribution(self, batch: Batch) -> LabelDistribution:
        """Run one stochastic pass with new masks, as in training."""
        logits, _ = self.network(batch, self.encoder_features(batch))
        return self.decoder(logits, batch.mask)

    @override
    def predicted(self, batch: Batch, options: PredictOptions) -> LabelDistribution:
        config, network = self.config, self.network
        samples = network.lstm.weight_samples(options.samples or config.samples, config.sample_seed)
        features = self.encoder_features(batch)
        with self.autocast(options.precision):
            if config.decoder == "crf":
                each, _ = network.read(network.representation(batch, features), batch.lengths, samples)
                scores = each.mean(dim=0)
            else:
                draft = finished(network.drafting(batch, features, samples))
                each, scores = draft.samples.log(), draft.probabilities.log()
        return SampledDistribution(
            self.decoder(scores, batch.mask), [self.decoder(logits, batch.mask) for logits in each]
        )
