"""The document memory: stage one's results at the other occurrences of each word (Ye et al., 2021, section III-C).

Words of a document that share a key read each other: hidden states serve as keys, embeddings of drafts as values. No
word reads its own slot or another document.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from concord.models.data.vocabulary import normalize_digits
from concord.models.devices import send
from concord.models.taggers.two_stage.config import MemoryKey


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryContents:
    """The part of a memory that a batch of words may read."""

    hidden: Tensor
    """Stage one's states, shape ``(N, H)``."""
    probabilities: Tensor
    """Stage one's mean probabilities, shape ``(N, L)``."""
    slots: Tensor
    """The rows of these two that each of K words reads, shape ``(K, S)``, int64, -1 for an empty slot."""
    cells: Tensor
    """The cell of each of these words among all ``B * T``, shape ``(K,)``, int64; the others read nothing."""

    @classmethod
    def of(cls, hidden: Tensor, probabilities: Tensor, slots: Tensor) -> "MemoryContents":
        """Return contents from the rows that each word reads, shape ``(B, T, S)``, int64, -1 if none, on the CPU."""
        slots = slots.flatten(0, 1)
        cells = (slots >= 0).any(dim=1).nonzero()[:, 0]
        slots, cells = send(hidden.device, slots[cells], cells)
        return cls(hidden=hidden, probabilities=probabilities, slots=slots, cells=cells)


class DocumentMemory:
    """Stage one's states and mean probabilities of all words of some documents.

    Words are addressed by row: their number counted through all documents.
    """

    def __init__(self, groups: Tensor, *, slots: int, hidden: int, labels: int, device: torch.device) -> None:
        """Index words, given by their ``number_words``, and allocate memory for states of ``hidden`` dimensions.

        ``labels`` is the number of labels.
        """
        self.index = occurrence_index(groups, slots=slots)
        # Only words that another word can read are stored.
        readable = torch.zeros(len(self.index), dtype=torch.bool)
        readable[self.index[self.index >= 0]] = True
        self._places = torch.where(readable, readable.cumsum(0) - 1, -1)
        stored = int(readable.sum())
        self._hidden = torch.zeros(stored, hidden, device=device)
        self._probabilities = torch.zeros(stored, labels, device=device)

    def write(self, rows: Tensor, cells: Tensor, hidden: Tensor, probabilities: Tensor) -> None:
        """Store words of a batch, given by row and by cell, ``(K,)``, int64, on the CPU.

        The states of all cells have shape ``(B, T, H)``, their probabilities ``(B, T, L)``.
        """
        places = self._places[rows]
        places, cells = send(hidden.device, places[places >= 0], cells[places >= 0])
        self._hidden.index_copy_(0, places, hidden.detach().flatten(0, 1).index_select(0, cells))
        self._probabilities.index_copy_(0, places, probabilities.detach().flatten(0, 1).index_select(0, cells))

    def slots(self, rows: Tensor) -> Tensor:
        """Return the rows that words read; shape ``(B, T)`` to ``(B, T, S)``, int64, -1 for padding and empty slots."""
        return self.index[rows.clamp(min=0)].masked_fill(rows[..., None] < 0, -1)

    def read(self, rows: Tensor) -> MemoryContents:
        """Return what a batch of words may read; rows ``(B, T)``, int64, -1 where padded, on the CPU."""
        slots = self.slots(rows)
        read, compact = torch.unique(slots[slots >= 0], return_inverse=True)
        slots[slots >= 0] = compact
        (places,) = send(self._hidden.device, self._places[read])
        return MemoryContents.of(
            self._hidden.index_select(0, places), self._probabilities.index_select(0, places), slots
        )


def word_rows(firsts: Tensor, lengths: Tensor) -> Tensor:
    """Return the row of each word of a batch, shape ``(B, T)``, int64, -1 where padded.

    ``firsts`` has the row of each sentence's first word, shape ``(B,)``, int64.
    """
    places = torch.arange(int(lengths.max()))
    return (firsts[:, None] + places).masked_fill(places >= lengths[:, None], -1)


def occurrence_index(groups: Tensor, *, slots: int) -> Tensor:
    """Find the other occurrences of each word within its document, at most ``slots``, the first in document order.

    Words, ``(N,)``, are given by their ``number_words``. The result has shape ``(N, slots)``, int64: rows of other
    words, filled from the left, then -1.
    """
    order = groups.argsort(stable=True)
    counts = groups.bincount()
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    # The first occurrences of each word; one more than there are slots, since a word skips itself.
    heads = torch.full((len(counts), slots + 1), -1, dtype=torch.int64)
    early = (places <= slots).nonzero()[:, 0]
    heads[groups[early], places[early]] = early
    columns = torch.arange(slots)
    return heads[groups[:, None], columns + (columns >= places[:, None])]


def number_words(documents: Sequence[Sequence[str]], key: MemoryKey) -> Tensor:
    """Number all words so that two have the same number if they are the same word of the same document; ``(N,)``.

    Words are the same if their ``key`` is: ``lower``, lower-cased with digits as 0 (released code), or ``exact``.
    """
    words = list(chain.from_iterable(documents))
    forms: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for word in dict.fromkeys(words):
        form = normalize_digits(word).lower() if key == "lower" else word
        numbers[word] = forms.setdefault(form, len(forms))
    owners = torch.arange(len(documents)).repeat_interleave(torch.tensor(list(map(len, documents)), dtype=torch.int64))
    own = torch.tensor(list(map(numbers.__getitem__, words)), dtype=torch.int64)
    found: tuple[Tensor, Tensor] = torch.unique(owners * len(forms) + own, return_inverse=True)
    return found[1]
