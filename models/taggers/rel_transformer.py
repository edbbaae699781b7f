"""The relative Transformer as a tagger of its own (TENER; Yan et al., 2019).

It is a row of Table II of Ye et al. (2021) and, in their Table IV, UANet without its first stage: stage two without
draft labels, with a softmax or a CRF.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import nn
from typing_extensions import override

from concord.models.data.batch import Batch
from concord.models.data.outputs import AttentionWeights
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.crf import DecoderName, SoftmaxOrCrf
from concord.models.decoders.distribution import LabelDistribution
from concord.models.layers.attention import RelativeTransformer, TwoStreamConfig, capture_outputs
from concord.models.taggers.base import TaggerConfig
from concord.models.taggers.one_stage import OneStageTagger
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig


class RelTransformerConfig(TaggerConfig):
    """Sizes of the relative Transformer tagger."""

    representation: WordRepresentationConfig = WordRepresentationConfig(unit_variance=True)
    transformer: TwoStreamConfig = TwoStreamConfig()
    decoder: DecoderName = "softmax"


class RelTransformer(OneStageTagger):
    """Word representation, layers of relative attention, linear layer, softmax or CRF."""

    name: ClassVar[str] = "rel_transformer"
    config_class: ClassVar[type[TaggerConfig]] = RelTransformerConfig

    def __init__(self, config: RelTransformerConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.representation = WordRepresentation(config.representation, vocabulary, encoder_width=self.encoder_width)
        self.words_in = nn.Linear(self.representation.output_dimension, config.transformer.width)
        self.transformer = RelativeTransformer(config.transformer)
        self.dropout = nn.Dropout(config.transformer.dropout)
        self.output = nn.Linear(config.transformer.width, len(vocabulary.labels))
        self.decoder = SoftmaxOrCrf(config.decoder, vocabulary.labels, vocabulary.scheme)

    @override
    def distribution(self, batch: Batch) -> LabelDistribution:
        words = self.words_in(self.representation(batch, self.encoder_features(batch)))
        logits = self.output(self.dropout(self.transformer(words, batch.mask)))
        return self.decoder(logits, batch.mask)

    @override
    def attend(self, batch: Batch) -> Mapping[str, AttentionWeights]:
        """Return the attention of each layer, ``words_1`` and up."""
        with capture_outputs(self.transformer.attentions()) as captured:
            self.distribution(batch)
        return {name: AttentionWeights(weights=weights, over="words") for name, weights in captured.items()}
