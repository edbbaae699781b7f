"""What the words of names attend to, and how far away it is, in the sentence and in its tree.

Aguilar and Solorio (2019), table 4 and figure 6, for the relative attention of their tagger. Hops are the edges between
two words: neighbours are one hop apart in the sentence, a word and its head in the tree.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concord.models.data.sentence import Sentence
from concord.models.labels import Span
from concord.pipeline.errors import InputError

FARTHEST = 10
"""Hops that are counted one by one; all beyond are counted together."""
MOST_WORDS = 6


@dataclass(kw_only=True, slots=True)
class Distances:
    """How many words attend most to a word so many hops away, and how many would by chance."""

    attended: Counter[int] = field(default_factory=Counter)
    by_chance: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """As if each word attended most to any of the others, all equally likely."""

    def add(self, hops: Sequence[int], *, chosen: int) -> None:
        """Count a word, by the hops to each of the others and the place of the one that it attends to most."""
        self.attended[hops[chosen]] += 1
        for distance in hops:
            self.by_chance[distance] += 1 / len(hops)

    def report(self) -> dict[str, Any]:
        """Return for both the mean in hops, and the percentage of words for each number of hops, all beyond last."""
        return {"attended": _describe(self.attended), "by_chance": _describe(self.by_chance)}


@dataclass(kw_only=True, slots=True)
class Context:
    """What the names of a type attend to most among the words outside all names."""

    words: Counter[str] = field(default_factory=Counter)
    tags: Counter[str] = field(default_factory=Counter)
    tags_by_chance: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def report(self) -> dict[str, Any]:
        """Return the most attended words of letters, and the percentages of parts of speech, beside those by chance."""
        total = self.words.total()
        words = [(word, count) for word, count in self.words.most_common() if word.isalpha()]
        tags = {
            tag: {"attended": 100.0 * count / total, "by_chance": 100.0 * self.tags_by_chance[tag] / total}
            for tag, count in self.tags.most_common()
        }
        return {"counted": total, "words": dict(words[:MOST_WORDS]), "tags": tags}


def count_attended(rows: Iterable[tuple[Sentence, Sequence[Span], NDArray[np.floating[Any]]]]) -> dict[str, Any]:
    """Count what the words of names attend to most.

    Args:
        rows: sentences with trees, their names, and the attention of each word to each, shape ``(T, T)``.

    Returns:
        how many words of names were counted; the percentage of those that attend most to a word of their own name;
        the hops in sequence and tree; by type of the name the most attended words outside all names.

    Raises:
        InputError: when no name has another word in its sentence.
    """
    sequence, tree = Distances(), Distances()
    contexts: defaultdict[str, Context] = defaultdict(Context)
    own = 0
    for sentence, spans, weights in rows:
        outside = [place for place in range(len(sentence.words)) if not any(place in _places(span) for span in spans)]
        for span, place in [(name, place) for name in spans for place in _places(name)]:
            others = [other for other in range(len(sentence.words)) if other != place]
            if not others:
                continue
            chosen = int(weights[place, others].argmax())
            own += others[chosen] in _places(span)
            sequence.add([abs(other - place) for other in others], chosen=chosen)
            tree.add(hops_from(sentence.heads or (), place, others), chosen=chosen)
            if outside:
                _count_context(contexts[span.label], sentence, outside, weights[place])
    words = sequence.attended.total()
    if not words:
        raise InputError("expected a name with another word in its sentence, got none")
    return {
        "words": words,
        "own_name": 100.0 * own / words,
        "hops": {"sequence": sequence.report(), "tree": tree.report()},
        "outside_names": {kind: contexts[kind].report() for kind in sorted(contexts)},
    }


def hops_from(heads: Sequence[int], place: int, others: Iterable[int]) -> list[int]:
    """Return the edges from a word to each of the others; words of two trees meet above both roots."""
    path = _path_from_root(heads, place)
    found = []
    for other in others:
        second = _path_from_root(heads, other)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, second, strict=False)))
        found.append(len(path) + len(second) - 2 * shared)
    return found


def _describe(counts: Mapping[int, float]) -> dict[str, Any]:
    shares, total = [0.0] * (FARTHEST + 1), sum(counts.values())
    for hops, count in counts.items():
        shares[min(hops, FARTHEST + 1) - 1] += 100.0 * count / total
    return {"mean": sum(hops * count for hops, count in counts.items()) / total, "shares": shares}


def _path_from_root(heads: Sequence[int], place: int) -> list[int]:
    path = []
    while place >= 0:
        path.append(place)
        place = heads[place] - 1
    return path[::-1]


def _places(span: Span) -> range:
    return range(span.start, span.end)


def _count_context(
    context: Context, sentence: Sentence, outside: Sequence[int], weights: NDArray[np.floating[Any]]
) -> None:
    chosen, tags = outside[int(weights[outside].argmax())], sentence.tags or ()
    context.words[sentence.words[chosen].lower()] += 1
    context.tags[tags[chosen]] += 1
    for place in outside:
        context.tags_by_chance[tags[place]] += 1 / len(outside)
