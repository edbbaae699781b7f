"""The teachers: BiLSTMs over the frozen encoder, and the encoder tuned; all read spaCy's labels.

They err differently, so the mean of their probabilities is better than each.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import BatchEncoder
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.words.encoder_config import EncoderConfig
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig
from concord.models.words.tuned_encoder import TunedEncoder
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
_LAYER_DECAY = 0.9
_LOSS_SENTENCES = 32
"""The losses of a batch are summed over words and divided by this, so that every word counts the same."""
_PREDICTED_WORDS = 8000


class Teacher(nn.Module):
    """Labels sentences of one length.

    Attributes:
        batch_words: the most words of a batch in training.
    """

    batch_words: int

    def groups(self) -> list[dict[str, object]]:
        """Return the groups of parameters with their learning rates."""
        raise NotImplementedError

    @override
    def forward(self, sentences: Sequence[Sentence], features: Tensor) -> Tensor:
        """Return logits, ``(B, T, L)``; features of shape ``(B, T, D)``."""
        raise NotImplementedError


class FrozenTeacher(Teacher):
    """Words, characters, states of the frozen encoder, spaCy's labels; two layers of a BiLSTM."""

    batch_words = 1600

    def __init__(self, vocabulary: Vocabulary, width: int, *, hidden: int = 256) -> None:
        super().__init__()
        self._batches = BatchEncoder(vocabulary, trees=False)
        self.representation = WordRepresentation(_REPRESENTATION, vocabulary, encoder_width=width)
        self.lstm = nn.LSTM(
            self.representation.output_dimension, hidden, 2, bidirectional=True, batch_first=True, dropout=0.3
        )
        self.dropout, self.word_dropout = nn.Dropout(0.3), nn.Dropout(0.15)
        self.output = nn.Linear(2 * hidden, len(vocabulary.labels))

    @override
    def groups(self) -> list[dict[str, object]]:
        return [{"params": list(self.parameters()), "lr": 2e-3}]

    @override
    def forward(self, sentences: Sequence[Sentence], features: Tensor) -> Tensor:
        words = self.representation(self._batches.encode_batch(sentences, device=features.device), features)
        with _autocast(features.device.type):
            states = self.lstm(self.word_dropout(words))[0]
        logits: Tensor = self.output(self.dropout(states.float()))
        return logits


class TunedTeacher(Teacher):
    """The encoder tuned, and spaCy's labels; a BiLSTM."""

    batch_words = 1600

    def __init__(self, vocabulary: Vocabulary, width: int, *, hidden: int = 160, side: int = 32) -> None:
        super().__init__()
        self.encoder = TunedEncoder(EncoderConfig(tuned=True, last_layers=1))
        self.side = nn.Linear(width, side)
        self.dropout, self.side_dropout = nn.Dropout(0.15), nn.Dropout(0.25)
        self.lstm = nn.LSTM(self.encoder.width + side, hidden, bidirectional=True, batch_first=True)
        self.output = nn.Linear(2 * hidden, len(vocabulary.labels))

    @override
    def groups(self) -> list[dict[str, object]]:
        above = {one: depth for one, depth in self.encoder.layers_above().items() if one.requires_grad}
        rest = [one for name, one in self.named_parameters() if not name.startswith("encoder.")]
        tuned = [{"params": [one], "lr": 1.5e-4 * _LAYER_DECAY**depth} for one, depth in above.items()]
        return [*tuned, {"params": rest, "lr": 2e-3}]

    @override
    def forward(self, sentences: Sequence[Sentence], features: Tensor) -> Tensor:
        with _autocast(features.device.type):
            words = self.encoder([sentence.words for sentence in sentences], features.shape[1])
            side = self.side(self.side_dropout(features)).relu()
            states = self.lstm(self.dropout(torch.cat([words.to(side), side], dim=-1)))[0]
        logits: Tensor = self.output(self.dropout(states.float()))
        return logits


def _autocast(device: str) -> torch.autocast:
    return torch.autocast(device, dtype=torch.bfloat16, enabled=trains_in_bf16(device))


def train(
    teacher: Teacher,
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
    batches = [equal_lengths(sentences, words=teacher.batch_words, draw=draw) for draw in draws]

    def loss_of(batch: Batch) -> Tensor:
        log_probabilities = teacher(batch, features.batch(batch)).log_softmax(dim=-1)
        loss: Tensor = -(log_probabilities * gold.batch(batch)).sum() / _LOSS_SENTENCES
        return loss

    learn(teacher, teacher.groups(), batches, loss_of, name=name)


@torch.inference_mode()
def predict(teacher: Teacher, sentences: Sequence[Sentence], features: Features) -> Tensor:
    """Return the probabilities of all words of sentences in order, shape ``(N, L)``, fp16, on the CPU."""
    teacher.eval()
    found: dict[int, Tensor] = {}
    for batch in equal_lengths(sentences, words=_PREDICTED_WORDS):
        probabilities = teacher(batch, features.batch(batch)).softmax(dim=-1).half().cpu()
        found.update((id(sentence), rows) for sentence, rows in zip(batch, probabilities, strict=True))
    return torch.cat([found[id(sentence)] for sentence in sentences])
