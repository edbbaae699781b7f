"""BiLSTM-LAN: a hierarchy of BiLSTM layers refined by label attention (Cui and Zhang, 2019).

Each layer but the last puts beside its hidden states what they gather from the label embeddings, and the next layer
reads both; the last layer's attention scores are the logits. Only they are supervised. Labels are decided word by
word: what a neighbour's label says travels through the higher BiLSTM layers, not through a CRF.
"""

from collections.abc import Mapping
from typing import ClassVar, cast

from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import Batch
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.label_attention import LabelAttention, LabelScorer, label_table
from concord.models.decoders.softmax import SoftmaxDistribution
from concord.models.layers.bilstm import BiLstm, BiLstmConfig
from concord.models.outputs import AttentionWeights
from concord.models.tagger import OneStageTagger, TaggerConfig
from concord.models.words.char_lstm import CharLstmConfig
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig


class BiLstmLanConfig(TaggerConfig):
    """Sizes and variants of BiLSTM-LAN."""

    representation: WordRepresentationConfig = WordRepresentationConfig(characters=CharLstmConfig())
    lstm: BiLstmConfig = BiLstmConfig(layers=3)
    """All layers, with label attention between them; dropout is on each layer's output."""
    heads: int = Field(default=5, ge=1)
    """Heads of the label attention between layers; they divide 2 * lstm.hidden."""
    attention_dropout: float = Field(default=0.5, ge=0, lt=1)
    """Dropout on the weights of labels."""
    label_bound: float = Field(default=0.0025, gt=0)
    """Label embeddings start uniformly within this much of 0. The released 0.0025 makes all labels alike at first;
    SGD tells them apart slowly, Adam in a few epochs not at all."""
    attention: bool = True
    """False is the paper's ablation without attention (table 3), which it describes in no more words. It is read
    here as: nothing is gathered from labels, each higher layer reads the hidden states alone, and the last layer
    scores labels as before."""
    naive: bool = False
    """Leave projections and scale out of every attention; with one layer that is a BiLSTM-softmax."""
    carry_state: bool = False
    """Start every higher layer from the first one's last states, as the released code does; each word then sees
    something of the whole sentence."""

    @field_validator("heads")
    @classmethod
    def _heads_divide_the_width(cls, heads: int, known: ValidationInfo) -> int:
        lstm = known.data.get("lstm")
        if lstm is not None and 2 * lstm.hidden % heads:
            raise ValueError(f"expected a divisor of 2 * lstm.hidden ({2 * lstm.hidden})")
        return heads


class BiLstmLan(OneStageTagger):
    """Word representation, bidirectional LSTM layers with label attention between them, label scores."""

    name: ClassVar[str] = "bilstm_lan"
    config_class: ClassVar[type[TaggerConfig]] = BiLstmLanConfig

    def __init__(self, config: BiLstmLanConfig, vocabulary: Vocabulary) -> None:
        """Build the network."""
        super().__init__(config, vocabulary)
        self._carry_state = config.carry_state
        self.representation = WordRepresentation(config.representation, vocabulary, encoder_width=self.encoder_width)
        width, higher = 2 * config.lstm.hidden, config.lstm.layers - 1
        one_layer = config.lstm.model_copy(update={"layers": 1})
        inputs = [self.representation.output_dimension] + [2 * width if config.attention else width] * higher
        self.lstms = nn.ModuleList(BiLstm(one_layer, dimension) for dimension in inputs)
        self.labels = label_table(len(vocabulary.labels), width, bound=config.label_bound)
        self.attentions = nn.ModuleList(
            LabelAttention(width, heads=config.heads, dropout=config.attention_dropout, naive=config.naive)
            for _ in range(higher if config.attention else 0)
        )
        self.scorer = LabelScorer(width, naive=config.naive)

    @override
    def distribution(self, batch: Batch) -> SoftmaxDistribution:
        hidden, _ = self._read(batch)
        distribution: SoftmaxDistribution = self.scorer(hidden, self.labels, batch.mask)
        return distribution

    @override
    def attend(self, batch: Batch) -> Mapping[str, AttentionWeights]:
        """Give the attention that each layer pays to labels, ``labels_1`` and up; the last is the distribution."""
        hidden, weights = self._read(batch)
        decided: SoftmaxDistribution = self.scorer(hidden, self.labels, batch.mask)
        layers = {**dict(enumerate(weights, start=1)), len(self.lstms): decided.marginals()[:, None]}
        return {f"labels_{layer}": AttentionWeights(weights=found, over="labels") for layer, found in layers.items()}

    def _read(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Give the last layer's hidden states, shape ``(B, T, width)``, and the label weights of the others.

        Those are of shape ``(B, heads, T, L)``, float, 0..1, a tensor a layer; zeros where padded.
        """
        inputs = self.representation(batch, self.encoder_features(batch))
        hidden, carried, weights = inputs, None, []
        for number, lstm in enumerate(self.lstms):
            hidden, state = cast(BiLstm, lstm).read(inputs, batch.lengths, state=carried)
            if self._carry_state and number == 0:
                carried = state
            inputs = hidden
            if number < len(self.attentions):
                inputs, layer_weights = self.attentions[number](hidden, self.labels, batch.mask)
                weights.append(layer_weights)
        return hidden, weights
