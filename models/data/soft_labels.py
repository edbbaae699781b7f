"""Labels that are not certain: the set of labels that each word may have, or a teacher's probabilities of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from concord.models.labels.schemes import LabelScheme
from concord.models.labels.spans import OUTSIDE


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SoftLabels:
    """The K labels that the words of a sentence may have, in the order of the words."""

    names: tuple[str, ...]
    """Labels by number, in the tagger's own scheme."""
    words: NDArray[np.int32]
    """The word of each label, shape ``(K,)``, never falling."""
    labels: NDArray[np.int16]
    """Number of each label, shape ``(K,)``."""
    probabilities: NDArray[np.float32] | None = None
    """Shape ``(K,)``, their sum over a word is 1; None if each of a word's labels may be the right one."""

    def part(self, start: int, end: int) -> "SoftLabels":
        """Return the labels of the words from ``start`` to ``end``, half-open."""
        inside = slice(*np.searchsorted(self.words, (start, end)).tolist())
        return replace(
            self,
            words=self.words[inside] - start,
            labels=self.labels[inside],
            probabilities=None if self.probabilities is None else self.probabilities[inside],
        )


def allowed_labels(
    gold: Sequence[str],
    names: tuple[str, ...],
    *,
    lacks: Collection[str],
    scheme: LabelScheme,
    known: Sequence[bool] | None = None,
) -> SoftLabels:
    """Return the labels that words may have in a corpus that lacks some entity types, or the labels of some words.

    A word outside of all entities may be outside, or anything in an entity of these types; where they are all types
    that there are, nothing is known of such a word. A word whose label is not known may have any, but that it cannot
    prolong an entity whose labels are known.

    Args:
        gold: labels of a sentence, in BIO2.
        names: all labels, in the scheme.
        lacks: entity types that the corpus does not annotate.
        known: which labels are known; None if all are.
    """
    numbers = {name: number for number, name in enumerate(names)}
    own = np.array([numbers[label] for label in scheme.from_gold(gold)], dtype=np.int16)
    free = np.zeros(len(names), dtype=bool)
    free[[numbers[label] for label in scheme.label_set(lacks)]] = True
    allowed = np.zeros((len(own), len(names)), dtype=bool)
    allowed[own == numbers[OUTSIDE]] = free
    allowed[np.arange(len(own)), own] = True
    if known is not None:
        is_known = np.array(known, dtype=bool)
        after_known = ~is_known & np.concatenate(([False], is_known[:-1]))
        allowed[~is_known] = True
        allowed[after_known] = [scheme.allows(None, name) for name in names]
    words, labels = allowed.nonzero()
    return SoftLabels(names=names, words=words.astype(np.int32), labels=labels.astype(np.int16))
