"""The teachers: BiLSTMs over spaCy's labels and the states of the bundled encoder, frozen or tuned.

They err differently, so the mean of their probabilities is better than each.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag
from typing_extensions import override

from concord.models.data.batch import BatchEncoder
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.words.bundled_encoder import SCALE_NAME, read_weights
from concord.models.words.encoder import read_frozen_encoder
from concord.models.words.encoder_config import EncoderConfig
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig
from research.entities_en.features import Features
from research.entities_en.learning import Batch, equal_lengths, learn
from research.precision import trains_in_bf16

_REPRESENTATION = WordRepresentationConfig.from_mapping(
    {
        "word_dimension": 50,
        "word_dropout": 0.3,
        "unit_variance": False,
        "characters": {"embedding_dimension": 25, "filters": 40, "widths": [2, 3, 4], "dropout": 0.25},
        "dropout": 0.4,
        "encoder_dimension": 256,
        "encoder_dropout": 0.25,
    }
)
_BATCH_WORDS = 1600
_LOSS_SENTENCES = 32
"""The losses of a batch are summed over words and divided by this, so that every word counts the same."""
_PREDICTED_WORDS = 8000
_RATE = 2e-3
_TUNED_LAYERS = 4
_TUNED_RATE, _LAYER_DECAY = 1.5e-4, 0.8


class FrozenTeacher(nn.Module):
    """Words, characters, states of the frozen encoder, spaCy's labels; two layers of a BiLSTM.

    It labels sentences of one length: features of shape ``(B, T, D)`` to logits, ``(B, T, L)``.
    """

    def __init__(self, vocabulary: Vocabulary, width: int, *, hidden: int = 256) -> None:
        super().__init__()
        self._batches = BatchEncoder(vocabulary, trees=False)
        self.representation = WordRepresentation(_REPRESENTATION, vocabulary, encoder_width=width)
        self.lstm = nn.LSTM(
            self.representation.output_dimension, hidden, 2, bidirectional=True, batch_first=True, dropout=0.3
        )
        self.dropout, self.word_dropout = nn.Dropout(0.3), nn.Dropout(0.15)
        self.output = nn.Linear(2 * hidden, len(vocabulary.labels))

    def groups(self) -> list[dict[str, object]]:
        """Return groups of parameters with their learning rates."""
        return [{"params": list(self.parameters()), "lr": _RATE}]

    @override
    def forward(self, sentences: Sequence[Sentence], features: Tensor) -> Tensor:
        words = self.representation(self._batches.encode_batch(sentences, device=features.device), features)
        device = features.device.type
        with torch.autocast(device, dtype=torch.bfloat16, enabled=trains_in_bf16(device)):
            states = self.lstm(self.word_dropout(words))[0]
        logits: Tensor = self.output(self.dropout(states.float()))
        return logits


class TunedTeacher(FrozenTeacher):
    """The same over the encoder itself, whose last layers are tuned; its features are spaCy's labels alone."""

    def __init__(self, vocabulary: Vocabulary, width: int, *, device: str) -> None:
        encoder = TunedEncoder(device)
        super().__init__(vocabulary, encoder.width + width)
        self.encoder = encoder

    @override
    def groups(self) -> list[dict[str, object]]:
        tuned = [
            {"params": list(layer.parameters()), "lr": _TUNED_RATE * _LAYER_DECAY**depth}
            for depth, layer in enumerate(reversed(self.encoder.layers))
        ]
        rest = [parameter for name, parameter in self.named_parameters() if not name.startswith("encoder.")]
        return [*tuned, {"params": rest, "lr": _RATE}]

    @override
    def forward(self, sentences: Sequence[Sentence], features: Tensor) -> Tensor:
        return super().forward(sentences, torch.cat([self.encoder(sentences), features], dim=-1))


class TunedEncoder(nn.Module):
    """The bundled encoder, of which the last layers are trained."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._frozen = read_frozen_encoder(EncoderConfig(), device=device)
        self.width = self._frozen.width
        config, weights = read_weights(device)
        self._first = config["num_hidden_layers"] - _TUNED_LAYERS
        self.layers = nn.ModuleList(_layer(config, weights, self._first + number) for number in range(_TUNED_LAYERS))
        self._scale = weights[SCALE_NAME]

    @override
    def forward(self, sentences: Sequence[Sentence]) -> Tensor:
        """Return the features of sentences of one length, shape ``(B, T, width)``."""
        windows = self._frozen.reader.windows([sentence.words for sentence in sentences])
        rows = self._frozen.reader.rows(windows)
        with torch.no_grad():
            below = self._frozen.states(rows)[self._first]
        states = nn.utils.rnn.pad_sequence(below.split([len(row) for row in rows]), batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=states.device)
        is_padding = torch.arange(states.shape[1], device=states.device) >= lengths[:, None]
        total = torch.zeros_like(states)
        for layer in self.layers:
            states = layer(states, src_key_padding_mask=is_padding)
            total = total + states
        flat = (total / len(self.layers)).float()[~is_padding] * self._scale
        counts = torch.tensor([count for window in windows for count in (1, *map(len, window.words), 1)])
        starts = (counts.cumsum(0) - counts).to(flat.device)
        means = embedding_bag(torch.arange(len(flat), device=flat.device), flat, starts, mode="mean")
        found: list[list[Tensor]] = [[] for _ in sentences]
        parts = means.split([len(window.words) + 2 for window in windows])
        for window, part in sorted(zip(windows, parts, strict=True), key=lambda pair: pair[0].first):
            begin, end = window.keep
            found[window.sentence].append(part[1 + begin : 1 + end])
        return torch.stack([torch.cat(own) for own in found])


def _layer(config: Mapping[str, Any], weights: Mapping[str, Tensor], number: int) -> nn.TransformerEncoderLayer:
    """Return a layer of BERT, with its weights."""
    name, attention = f"encoder.layer.{number}", f"encoder.layer.{number}.attention"
    layer = nn.TransformerEncoderLayer(
        config["hidden_size"],
        config["num_attention_heads"],
        len(weights[f"{name}.intermediate.dense.bias"]),
        activation="gelu",
        layer_norm_eps=config["layer_norm_eps"],
        batch_first=True,
    )
    parts = {
        "self_attn.out_proj": f"{attention}.output.dense",
        "linear1": f"{name}.intermediate.dense",
        "linear2": f"{name}.output.dense",
        "norm1": f"{attention}.output.LayerNorm",
        "norm2": f"{name}.output.LayerNorm",
    }
    state = {f"{own}.{kind}": weights[f"{other}.{kind}"] for own, other in parts.items() for kind in ("weight", "bias")}
    for kind in ("weight", "bias"):
        streams = [weights[f"{attention}.self.{stream}.{kind}"] for stream in ("query", "key", "value")]
        state[f"self_attn.in_proj_{kind}"] = torch.cat(streams)
    layer.load_state_dict(state)
    return layer


def train(
    teacher: FrozenTeacher,
    sentences: Sequence[Sentence],
    gold: Features,
    features: Features,
    *,
    epochs: int,
    seed: int,
    name: str,
) -> None:
    """Train a teacher on sentences; gold has a one-hot row for each word."""
    draws = [random.Random(f"{seed}/{epoch}") for epoch in range(epochs)]
    batches = [equal_lengths(sentences, words=_BATCH_WORDS, draw=draw) for draw in draws]

    def loss_of(batch: Batch) -> Tensor:
        log_probabilities = teacher(batch, features.batch(batch)).log_softmax(dim=-1)
        loss: Tensor = -(log_probabilities * gold.batch(batch)).sum() / _LOSS_SENTENCES
        return loss

    learn(teacher, teacher.groups(), batches, loss_of, name=name)


@torch.inference_mode()
def predict(teacher: FrozenTeacher, sentences: Sequence[Sentence], features: Features) -> Tensor:
    """Return the probabilities of all words of sentences in order, shape ``(N, L)``, fp16, on the CPU."""
    teacher.eval()
    found: dict[int, Tensor] = {}
    for batch in equal_lengths(sentences, words=_PREDICTED_WORDS):
        probabilities = teacher(batch, features.batch(batch)).softmax(dim=-1).half().cpu()
        found.update((id(sentence), rows) for sentence, rows in zip(batch, probabilities, strict=True))
    return torch.cat([found[id(sentence)] for sentence in sentences])
