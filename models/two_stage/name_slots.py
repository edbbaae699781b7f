"""Slots by name: which other occurrences of a word belong to a drafted name that stands where the word stands.

The word is a poor unit of a memory: "Baxter" may be a person in one sentence and part of a street in the next, and
whether it ends a name depends on the words beside it. A slot therefore tells how its surroundings match those of the
word that reads it. All of it follows from drafts and words of the document, whatever their order or batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from concord.models.labels import split_label

MARKS = 3
"""A slot's marks: its name stands here too; the words before match; the words after match. Sentences' ends match."""
# Words to either side that are compared; a longer name is compared within them.
_REACH = 5


class NameSlots:
    """The drafted names of some documents."""

    def __init__(self, words: Tensor, sentences: Tensor, labels: Sequence[str], first: Sequence[int] = ()) -> None:
        """Take the number of each word, which is that of its other occurrences, and of its sentence, both ``(N,)``.

        The words of the rows ``first`` stay before others.
        """
        self._words, self._sentences = (
            torch.nn.functional.pad(one, (_REACH, _REACH), value=-1) for one in (words, sentences)
        )
        prefixes, kinds = zip(*map(split_label, labels), strict=True)
        self._kinds = torch.tensor([kinds.index(kind) if kind else -1 for kind in kinds])
        self._begins = torch.tensor([prefix in "BS" for prefix in prefixes])
        self._ends = torch.tensor([prefix in "ES" for prefix in prefixes])
        self._drafts = torch.full_like(words, labels.index("O"))
        self._is_first = torch.zeros(len(words), dtype=torch.bool)
        self._is_first[list(first)] = True
        self._names: tuple[Tensor, Tensor] | None = None

    def write(self, rows: Tensor, probabilities: Tensor) -> None:
        """Take the drafts of some words: rows ``(K,)``, int64, and probabilities ``(K, L)``."""
        self._drafts[rows] = probabilities.argmax(dim=-1).cpu()
        self._names = None

    def choose(self, rows: Tensor, slots: Tensor, *, most: int) -> tuple[Tensor, Tensor]:
        """Return the ``most`` slots that words read, those of names first, with their marks ``(..., most, MARKS)``.

        The words' rows have shape ``(...)``, their slots ``(..., W)``, -1 where empty, in the order of preference.
        """
        if self._names is None:
            self._names = self._find_names()
        first, stop = (column[slots.clamp(min=0)] for column in self._names)
        compared = {shift: self._compare(rows, slots, shift) for shift in range(-_REACH, _REACH + 1)}
        stands = first >= 0
        for shift, (matches, _) in compared.items():
            stands &= matches | (slots + shift < first) | (slots + shift >= stop)
        before, after = (matches | both_end for matches, both_end in (compared[-1], compared[1]))
        present = slots >= 0
        is_first = self._is_first[slots.clamp(min=0)]
        # The name itself, then names that hold the word, then the word.
        rank = torch.where(stands, 1, torch.where(first >= 0, 2, 3)).masked_fill(is_first, 0).masked_fill(~present, 4)
        order = rank.argsort(dim=-1, stable=True)[..., :most]
        marks = torch.stack([stands, before, after], dim=-1) & present[..., None]
        return slots.gather(-1, order), marks.gather(-2, order[..., None].expand(*order.shape, MARKS))

    def _compare(self, rows: Tensor, slots: Tensor, shift: int) -> tuple[Tensor, Tensor]:
        """Tell whether words at a distance from words and from slots match, and whether both sentences end there."""
        here, there = rows.clamp(min=0)[..., None] + _REACH, slots.clamp(min=0) + _REACH
        inside_here = self._sentences[here + shift] == self._sentences[here]
        inside_there = self._sentences[there + shift] == self._sentences[there]
        same = self._words[here + shift] == self._words[there + shift]
        return inside_here & inside_there & same, ~inside_here & ~inside_there

    def _find_names(self) -> tuple[Tensor, Tensor]:
        """Return the rows of the first word of each word's name and of the word after its last; -1 outside of names."""
        kinds, places = self._kinds[self._drafts], torch.arange(len(self._drafts))
        sentences = self._sentences[_REACH : len(places) + _REACH]
        goes_on = torch.zeros_like(self._is_first)
        goes_on[1:] = (
            (kinds[1:] == kinds[:-1])
            & (sentences[1:] == sentences[:-1])
            & ~self._begins[self._drafts[1:]]
            & ~self._ends[self._drafts[:-1]]
        )
        outside = kinds < 0
        first = torch.where(goes_on, 0, places).cummax(dim=0).values
        last = torch.where(goes_on.roll(-1), len(places), places).flip(0).cummin(dim=0).values.flip(0)
        return first.masked_fill(outside, -1), (last + 1).masked_fill(outside, -1)
