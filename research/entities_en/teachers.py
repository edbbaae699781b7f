"""The teachers: BiLSTMs over the states of the bundled encoder, and perhaps over spaCy's labels."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import BatchEncoder
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig
from research.entities_en.features import Features
from research.entities_en.learning import Batch, equal_lengths, learn
from research.precision import autocast

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


class FrozenTeacher(nn.Module):
    """Words, characters, and features such as the states of the frozen encoder; two layers of a BiLSTM.

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

    @override
    def forward(self, sentences: Sequence[Sentence], features: Tensor) -> Tensor:
        words = self.representation(self._batches.encode_batch(sentences, device=features.device), features)
        with autocast(features.device.type):
            states = self.lstm(self.word_dropout(words))[0]
        logits: Tensor = self.output(self.dropout(states.float()))
        return logits


def train(
    teacher: FrozenTeacher,
    sentences: Sequence[Sentence],
    gold: Features,
    features: Features,
    *,
    epochs: int,
    seed: int,
    name: str,
    state: Path | None = None,
) -> None:
    """Train a teacher on sentences; gold has the probabilities of each word's labels, ``state`` is as in ``learn``."""
    draws = [random.Random(f"{seed}/{epoch}") for epoch in range(epochs)]
    batches = [equal_lengths(sentences, words=_BATCH_WORDS, draw=draw) for draw in draws]

    def loss_of(batch: Batch) -> Tensor:
        log_probabilities = teacher(batch, features.batch(batch)).log_softmax(dim=-1)
        loss: Tensor = -(log_probabilities * gold.batch(batch)).sum() / _LOSS_SENTENCES
        return loss

    learn(teacher, [{"params": list(teacher.parameters()), "lr": 2e-3}], batches, loss_of, name=name, state=state)


@torch.inference_mode()
def predict(teacher: FrozenTeacher, sentences: Sequence[Sentence], features: Features) -> Tensor:
    """Return the probabilities of all words of sentences in order, shape ``(N, L)``, fp16, on the CPU."""
    teacher.eval()
    found: dict[int, Tensor] = {}
    for batch in equal_lengths(sentences, words=_PREDICTED_WORDS):
        probabilities = teacher(batch, features.batch(batch)).softmax(dim=-1).half().cpu()
        found.update((id(sentence), rows) for sentence, rows in zip(batch, probabilities, strict=True))
    return torch.cat([found[id(sentence)] for sentence in sentences])
