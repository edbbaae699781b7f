"""The document memory: for each word, what stage one saw and drafted at the word's other occurrences.

Ye et al. (2021), section III-E. Words of a document that share a key read each other: hidden states serve as keys,
draft label embeddings as values. A word never reads its own slot, and no word reads another document.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from concord.models.data.vocabulary import normalize_digits

MemoryKey = Literal["lower", "exact"]


def occurrence_index(documents: Sequence[Sequence[str]], *, key: MemoryKey, slots: int) -> Tensor:
    """Find the other occurrences of each word within its document.

    Args:
        documents: the words of each document in reading order.
        key: what makes two words the same. ``lower``: lower-cased, digits as 0 (released code); ``exact``: the word.
        slots: how many occurrences are kept, the first in document order.

    Returns:
        Shape ``(N, slots)``, int64, N words of all documents: numbers of words counted through all documents,
        filled from the left; -1 where there is none.
    """
    total = sum(map(len, documents))
    index = torch.full((total, slots), -1, dtype=torch.int64)
    first = 0
    for words in documents:
        places: defaultdict[str, list[int]] = defaultdict(list)
        for number, word in enumerate(words, start=first):
            places[normalize_digits(word).lower() if key == "lower" else word].append(number)
        for numbers in places.values():
            if len(numbers) > 1:
                _fill(index, numbers, slots)
        first += len(words)
    return index


def _fill(index: Tensor, numbers: list[int], slots: int) -> None:
    head = numbers[: slots + 1]
    for place, number in enumerate(numbers):
        others = head[:place] + head[place + 1 :] if place <= slots else head[:slots]
        others = others[:slots]
        index[number, : len(others)] = torch.tensor(others)


class MemoryReader(nn.Module):
    """Attends from a word's current state to the slots of its other occurrences.

    One head, scaled by the root of the width; the same weights sum up contexts (projected keys) and labels (projected
    values). A word without another occurrence reads a learned vector of each instead. Either of the two may be left
    out; the keys address the slots all the same.
    """

    def __init__(self, *, width: int, hidden: int, dropout: float, contexts: bool = True, labels: bool = True) -> None:
        """Build the projections.

        Args:
            width: dimensions of the streams that read, and of the label values.
            hidden: dimensions of stage one's hidden states.
            contexts, labels: which of the two is read.
        """
        super().__init__()
        self.reads_contexts, self.reads_labels = contexts, labels
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(hidden, width)
        if labels:
            self.value = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        if contexts:
            self.default_context = nn.Parameter(torch.randn(width))
        if labels:
            self.default_label = nn.Parameter(torch.randn(width))
        self._scale = width**0.5

    def project(self, hidden: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Project what is stored, once a word.

        Args:
            hidden: stage one's states, shape ``(N, hidden)``.
            labels: embeddings of the drafts, shape ``(N, width)``; None where no labels are read.

        Returns:
            Keys and values, each of shape ``(N, width)``; no values without labels.
        """
        return self.key(hidden), self.value(labels) if labels is not None else None

    def forward(
        self, states: Tensor, keys: Tensor, values: Tensor | None, slots: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Read the memory.

        Args:
            states: the words that read, shape ``(B, T, width)``.
            keys, values: from ``project``, shape ``(N, width)``; N may be 0.
            slots: rows to read for each word, shape ``(B, T, S)``, int64, -1 where there is none.

        Returns:
            Contexts and labels, each of shape ``(B, T, width)``, or None where it is not read.
        """
        present = slots >= 0
        known = present.any(dim=-1)
        context = self.default_context.expand_as(states).clone() if self.reads_contexts else None
        label = self.default_label.expand_as(states).clone() if self.reads_labels else None
        if known.any():
            rows = slots[known].clamp(min=0)
            slot_keys = keys[rows]
            query = self.query(states[known])
            scores = (slot_keys @ query[:, :, None])[:, :, 0] / self._scale
            weights = self.dropout(scores.masked_fill(~present[known], float("-inf")).softmax(dim=-1))
            if context is not None:
                context[known] = (weights[:, None, :] @ slot_keys)[:, 0].to(context.dtype)
            if label is not None and values is not None:
                label[known] = (weights[:, None, :] @ values[rows])[:, 0].to(label.dtype)
        return context, label
