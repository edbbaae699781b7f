"""What the trainings read of each word: rows of numbers, of which the frozen encoder's states are the widest."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from concord.models.data.sentence import Sentence
from concord.models.words.encoder import FrozenEncoder
from concord.models.words.encoder_config import BUNDLED_NAME, EncoderConfig

_AT_ONCE = 256
_BLOCK_WORDS = 190


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
    """Return the states of an encoder, by default the bundled one, for each word, shape ``(N, 384)``, fp16."""
    chosen = config or EncoderConfig(source=BUNDLED_NAME)
    encoder = FrozenEncoder(chosen, device=device)
    order = sorted(range(len(sentences)), key=lambda place: len(sentences[place]))
    found: list[Tensor] = [torch.empty(0)] * len(sentences)
    for start in range(0, len(order), _AT_ONCE):
        places = order[start : start + _AT_ONCE]
        states = torch.cat(encoder.features([sentences[place] for place in places])).half().cpu()
        for place, rows in zip(places, states.split([len(sentences[place]) for place in places]), strict=True):
            found[place] = rows
    return torch.cat(found)
