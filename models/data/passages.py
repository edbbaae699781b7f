"""Passages: the sentences of a document in groups of about equal size, which a frozen encoder reads at once."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from concord.models.data.sentence import Passage, Sentence


def with_passages(document: Sequence[Sentence], words: int) -> list[Sentence]:
    """Return the sentences of a document with passages of about ``words`` words, which depend on the document alone.

    A passage ends where the next sentence would exceed its share of the document by more than half of that sentence.
    Sentences that have a passage keep it.
    """
    total = sum(len(sentence.words) for sentence in document)
    share = total / max(1, math.ceil(total / words))
    groups: list[list[Sentence]] = [[]]
    size = 0
    for sentence in document:
        if size and size + len(sentence.words) / 2 > share:
            groups.append([])
            size = 0
        groups[-1].append(sentence)
        size += len(sentence.words)
    return [sentence for group in groups for sentence in _as_passage(group)]


def _as_passage(sentences: Sequence[Sentence]) -> list[Sentence]:
    passage = Passage(tuple(chain.from_iterable(sentence.words for sentence in sentences)))
    found, start = [], 0
    for sentence in sentences:
        found.append(sentence if sentence.passage else replace(sentence, passage=passage, passage_start=start))
        start += len(sentence.words)
    return found
