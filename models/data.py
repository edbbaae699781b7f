"""Sentences, vocabularies and batches: where text becomes tensors, once.

Shape letters used everywhere: B sentences of a batch, T words of a sentence, C characters of a word, H hidden
units, L labels, S memory slots, M Monte-Carlo weight samples.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from models.labels import Scheme, convert_labels, label_set, split_label

PADDING = 0
UNKNOWN = 1
IGNORED_LABEL = -100
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """One sentence; every field has one entry a word.

    Attributes:
        labels: gold labels in BIO2.
        tags, heads, relations: part of speech, 1-based head (0 is the root) and relation to it.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    heads: tuple[int, ...] | None = None
    relations: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("labels", "tags", "heads", "relations"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.words):
                raise ValueError(f"Sentence.{name}: expected {len(self.words)} entries, got {len(values)}")


def normalize_digits(word: str) -> str:
    """Put ``0`` for every decimal digit, as NCRF++ does for words and characters."""
    return _DIGIT.sub("0", word)
