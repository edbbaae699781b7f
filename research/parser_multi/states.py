"""The states of the encoder, which the network reads: computed once, in files that are mapped into memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from concord.models.data.sentence import Passage, Sentence, with_passages
from concord.models.words.encoder import FrozenEncoder
from concord.pipeline.parsing.stanza_packages import ENCODER

WIDTH = 4 * 384
"""Dimensions of a word's states."""
_GROUP_PASSAGES = 40


def write_states(path: Path, documents: Sequence[Sequence[Sequence[str]]]) -> None:
    """Write the states of the words of documents, in order, as the parser reads them; shape ``(N, width)``, fp16."""
    encoder = FrozenEncoder(ENCODER)
    total = sum(len(words) for document in documents for words in document)
    written = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(total, WIDTH))
    start = 0
    passages = list(_passages(documents))
    for first in range(0, len(passages), _GROUP_PASSAGES):
        for states in encoder.read(passages[first : first + _GROUP_PASSAGES]):
            written[start : start + len(states)] = states.numpy()
            start += len(states)
    written.flush()


def _passages(documents: Sequence[Sequence[Sequence[str]]]) -> Iterator[Passage]:
    for document in documents:
        found = with_passages([Sentence(words=tuple(words)) for words in document], ENCODER.passage_words)
        yield from dict.fromkeys(sentence.passage for sentence in found if sentence.passage is not None)
