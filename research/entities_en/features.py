"""What the trainings read of each word: rows of numbers, of which the frozen encoder's states are the widest."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from concord.models.data.sentence import Sentence
from concord.models.words.encoder_config import EncoderConfig
from concord.models.words.frozen_encoder import FrozenEncoder

_AT_ONCE = 256
_PASS_SUBWORDS = {"cpu": 512, "cuda": 4096}


class Features:
    """A row of numbers for each word of some sentences."""

    def __init__(self, sentences: Sequence[Sentence], rows: Tensor) -> None:
        """Take the rows of all words of the sentences, one after the other, shape ``(N, D)``."""
        self.rows = rows
        self._first: dict[int, int] = {}
        self.sentences = sentences
        row = 0
        for sentence in sentences:
            self._first[id(sentence)] = row
            row += len(sentence.words)
        if row != len(rows):
            raise ValueError(f"expected a row for each of {row} words, got {len(rows)}")

    def of(self, sentence: Sentence) -> Tensor:
        """Return the rows of a sentence, shape ``(T, D)``."""
        first = self._first[id(sentence)]
        return self.rows[first : first + len(sentence.words)]

    def batch(self, sentences: Sequence[Sentence]) -> Tensor:
        """Return the rows of sentences, zeros where padded, shape ``(B, T, D)``, fp32, on the device of all rows."""
        return nn.utils.rnn.pad_sequence([self.of(sentence) for sentence in sentences], batch_first=True).float()


def encoder_states(sentences: Sequence[Sequence[str]], device: str, config: EncoderConfig | None = None) -> Tensor:
    """Return the states of an encoder, MiniLM, for each word, computed in bf16, shape ``(N, 384)``, fp16."""
    encoder = FrozenEncoder(config or EncoderConfig(), device=device, pass_subwords=_PASS_SUBWORDS[device])
    order = sorted(range(len(sentences)), key=lambda place: len(sentences[place]))
    found: list[Tensor] = [torch.empty(0)] * len(sentences)
    with torch.autocast(device, dtype=torch.bfloat16):
        for start in range(0, len(order), _AT_ONCE):
            places = order[start : start + _AT_ONCE]
            for place, rows in zip(places, encoder.features([sentences[place] for place in places]), strict=True):
                found[place] = rows.half()
    return torch.cat(found)
