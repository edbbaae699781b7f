"""Labels that a person has confirmed: the document memory holds them as certain, and stage two leaves them alone.

A word whose label is certain has that label with probability 1. The other occurrences of the word in its document, by
the memory's key, are uncertain where stage one drafts another type for them, so that stage two reads them again with
the certain label in the memory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.data.windows import Window
from concord.models.labels import OUTSIDE, split_label
from concord.models.outputs import Draft
from concord.models.two_stage.config import MemoryKey
from concord.models.two_stage.document_memory import number_words

_NONE, _SEVERAL = -1, -2


@dataclass(frozen=True, kw_only=True, slots=True)
class CertainLabels:
    """The certain labels of a call; rows number the words of all its documents."""

    labels: Tensor
    """Number of the certain label of each word, shape ``(N,)``, int64, -1 where there is none."""
    types: Tensor
    """Number of the type that the word certainly has elsewhere in its document, shape ``(N,)``, int64; -1 where nothing
    is known, -2 where it has several."""
    type_of: Tensor
    """Number of the type of each label, shape ``(L,)``, int64."""

    @classmethod
    def of(
        cls,
        documents: Sequence[Sequence[Sentence]],
        certain: Sequence[Mapping[int, str]] | None,
        vocabulary: Vocabulary,
        key: MemoryKey | None,
    ) -> "CertainLabels | None":
        """Collect the certain labels of documents; None if there are none.

        Args:
            certain: for each document, labels in gold form by the number of the word in it; those of a type that the
                tagger does not know are left out.
            key: of the memory; None for a tagger without one.

        Raises:
            ValueError: when there are not as many as documents, or a document has no such word.
        """
        if certain is None or not any(certain):
            return None
        names = list(vocabulary.labels)
        labels = [
            number
            for document, own in zip(documents, certain, strict=True)
            for number in _numbers(document, own, vocabulary)
        ]
        kinds = [split_label(name)[1] if vocabulary.scheme.has_entities else name for name in names]
        type_of = [kinds.index(kind) for kind in kinds]
        words = [[word for sentence in document for word in sentence.words] for document in documents]
        groups = number_words(words, key).tolist() if key is not None else range(len(labels))
        known: dict[int, int] = {}
        for group, label in zip(groups, labels, strict=True):
            if label != _NONE:
                known[group] = type_of[label] if known.get(group, type_of[label]) == type_of[label] else _SEVERAL
        return cls(
            labels=torch.tensor(labels),
            types=torch.tensor([known.get(group, _NONE) for group in groups]),
            type_of=torch.tensor(type_of),
        )

    @property
    def rows(self) -> list[int]:
        """The rows of the words with a certain label."""
        rows: list[int] = (self.labels != _NONE).nonzero()[:, 0].tolist()
        return rows

    def concerns(self, window: Window) -> bool:
        """Return whether a word of a window has a certain label, here or elsewhere in its document."""
        rows = slice(window.first, window.first + len(window.sentence.words))
        return bool((self.types[rows] != _NONE).any())

    def hold(self, draft: Draft, rows: Tensor) -> Draft:
        """Return a draft whose certain words have their labels, without uncertainty.

        The rows of its words have shape ``(B, T)``, int64, -1 where padded.
        """
        labels = self._at(self.labels, rows).to(draft.labels.device)
        is_certain = labels != _NONE
        held = nn.functional.one_hot(labels.clamp(min=0), draft.probabilities.shape[-1]).to(draft.probabilities)
        return replace(
            draft,
            probabilities=torch.where(is_certain[..., None], held, draft.probabilities),
            labels=torch.where(is_certain, labels, draft.labels),
            uncertainty=draft.uncertainty.masked_fill(is_certain, 0.0),
            samples=torch.where(is_certain[..., None], held, draft.samples),
        )

    def leave_to_stage_two(self, draft: Draft, rows: Tensor) -> Draft:
        """Return a draft with infinite uncertainty at words of another type than they certainly have elsewhere."""
        types = self._at(self.types, rows).to(draft.labels.device)
        disagrees = (types != _NONE) & (self.type_of.to(draft.labels.device)[draft.labels] != types)
        is_certain = (self._at(self.labels, rows) != _NONE).to(draft.labels.device)
        uncertainty = draft.uncertainty.masked_fill(disagrees, math.inf).masked_fill(is_certain, -math.inf)
        return replace(self.hold(draft, rows), uncertainty=uncertainty)

    @staticmethod
    def _at(values: Tensor, rows: Tensor) -> Tensor:
        return values[rows.clamp(min=0)].masked_fill(rows < 0, _NONE)


def _numbers(document: Sequence[Sentence], certain: Mapping[int, str], vocabulary: Vocabulary) -> list[int]:
    """Return the number of each word's certain label in the tagger's scheme, -1 where there is none."""
    lengths = [len(sentence.words) for sentence in document]
    words = sum(lengths)
    if any(not 0 <= place < words for place in certain):
        raise ValueError(f"certain: expected words from 0 to {words - 1}, got {min(certain)} to {max(certain)}")
    outside = OUTSIDE if vocabulary.scheme.has_entities else ""
    labels = [certain.get(place, outside) for place in range(words)]
    ends = accumulate(lengths)
    converted = [
        label
        for length, end in zip(lengths, ends, strict=True)
        for label in vocabulary.scheme.from_gold(labels[end - length : end])
    ]
    known = {name: number for number, name in enumerate(vocabulary.labels)}
    return [known.get(label, _NONE) if place in certain else _NONE for place, label in enumerate(converted)]
