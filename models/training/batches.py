"""The training batches of an epoch."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import Field

from concord.models.config import Config
from concord.models.data.sentence import Sentence
from concord.models.labels.schemes import LabelScheme

# Sentences are sorted by length within pools of this many batches, so that a batch has little padding.
_POOL_BATCHES = 20

Unit = Sequence[Sentence]
"""Sentences that stay together: a part of a document, or a single sentence."""
_Item = TypeVar("_Item")


class CaseNoise(Config):
    """Which share of the sentences an epoch reads with another case; the others stay as they are."""

    lower: float = Field(default=0.0, ge=0, le=0.5)
    """In lower case, as in hasty messages."""
    upper: float = Field(default=0.0, ge=0, le=0.5)
    """In upper case, as in headlines."""


def change_case(batches: Sequence[Sequence[Unit]], noise: CaseNoise, chooser: random.Random) -> list[list[Unit]]:
    """Change the case of randomly chosen sentences, which an encoder then reads alone; labels and trees stay."""

    def changed(sentence: Sentence) -> Sentence:
        drawn = chooser.random()
        if drawn < noise.lower:
            return replace(sentence, words=tuple(map(str.lower, sentence.words)), passage=None, passage_start=0)
        if drawn < noise.lower + noise.upper:
            return replace(sentence, words=tuple(map(str.upper, sentence.words)), passage=None, passage_start=0)
        return sentence

    return [[list(map(changed, unit)) for unit in batch] for batch in batches]


def sentence_batches(documents: Sequence[Unit], shuffler: random.Random, *, batch_sentences: int) -> list[list[Unit]]:
    """Return batches of single sentences of similar length, in random order."""
    units = [[sentence] for document in documents for sentence in document if _teaches([sentence])]
    shuffler.shuffle(units)
    pool = batch_sentences * _POOL_BATCHES
    batches = [
        batch
        for start in range(0, len(units), pool)
        for batch in _chunks(sorted(units[start : start + pool], key=lambda unit: len(unit[0].words)), batch_sentences)
    ]
    shuffler.shuffle(batches)
    return [list(batch) for batch in batches]


def document_batches(
    documents: Sequence[Unit], shuffler: random.Random, *, batch_sentences: int, document_sentences: int
) -> list[list[Unit]]:
    """Return batches of whole documents in random order, with at least ``batch_sentences`` sentences each but the last.

    Documents of more than ``document_sentences`` sentences are split.
    """
    units = [part for document in documents for part in _chunks(document, document_sentences) if _teaches(part)]
    shuffler.shuffle(units)
    return list(_fill_batches(units, batch_sentences))


def split_long(sentence: Sentence, longest: int, scheme: LabelScheme) -> list[Sentence]:
    """Split a sentence of more than ``longest`` words; an entity across a boundary becomes two."""
    if len(sentence.words) <= longest:
        return [sentence]
    pieces = []
    for start in range(0, len(sentence.words), longest):
        piece = sentence.part(start, start + longest)
        if scheme.has_entities and piece.labels and piece.labels[0].startswith("I-"):
            piece = replace(piece, labels=(f"B-{piece.labels[0][2:]}", *piece.labels[1:]))
        pieces.append(piece)
    return pieces


def _teaches(unit: Unit) -> bool:
    """Return whether any label of a unit is known; a sentence without is read only beside others of its document."""
    return any(sentence.known is None or any(sentence.known) for sentence in unit)


def _fill_batches(units: Sequence[Unit], sentences: int) -> Iterator[list[Unit]]:
    batch: list[Unit] = []
    for unit in units:
        batch.append(unit)
        if sum(map(len, batch)) >= sentences:
            yield batch
            batch = []
    if batch:
        yield batch


def _chunks(items: Sequence[_Item], size: int) -> list[Sequence[_Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
