"""Sentences: the words that taggers read, with gold or soft labels and trees; passages and windows of them.

Invisible characters stay in a text and in its offsets, and decide nothing about it.

Marks of direction, zero-width spaces and joiners, soft hyphens, byte order marks within a text, variation selectors and
the like come from word processors, web pages and OCR. Networks, lists of terms and names read words without them; so
they do where a script writes with a joiner or an emoji is composed by one, because a label must not depend on it.

So does what breaks a word at the end of a line: its hyphen and the white space. Where the hyphen is part of the word,
as in ``Jean-Paul``, it is read.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from concord.models.labels import OUTSIDE, LabelScheme


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


if TYPE_CHECKING:
    from torch import Tensor


class TreeError(ValueError):
    """A sentence without a dependency tree, or with an invalid one; the message quotes the sentence."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Passage:
    """Neighbouring sentences of a document, which a frozen encoder reads at once."""

    words: tuple[str, ...]
    features: "Tensor | None" = None
    """What the encoder made of the words, shape ``(words, width)``, once a prediction has asked for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """A sentence; every field has one entry per word."""

    words: tuple[str, ...]
    """Without invisible characters, which no tagger sees."""
    labels: tuple[str, ...] | None = None
    """Gold labels, in BIO2 or as labels of single words."""
    known: tuple[bool, ...] | None = None
    """Which of the gold labels are known; the others are ``O``. None where all are."""
    tags: tuple[str, ...] | None = None
    heads: tuple[int, ...] | None = None
    relations: tuple[str, ...] | None = None
    """Tags, heads and relations: part of speech, head (1-based, 0 for the root) and relation to the head."""
    soft: SoftLabels | None = None
    """What training reads in place of the gold labels: probabilities of labels, or the labels that words may have."""
    terms: tuple[str, ...] | None = None
    """Labels by a list of terms, in BIO2; None where it has no match."""
    passage: Passage | None = field(default=None, compare=False, repr=False)
    """The passage that an encoder reads to encode the sentence; None for the sentence alone."""
    passage_start: int = field(default=0, compare=False, repr=False)
    """Where the sentence starts in the passage, in words."""

    def __post_init__(self) -> None:
        # All words that consist of nothing else are the same word.
        object.__setattr__(self, "words", tuple(visible(word) or "\u200b" for word in self.words))
        for name in ("labels", "known", "tags", "heads", "relations", "terms"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.words):
                raise ValueError(f"Sentence.{name}: expected {len(self.words)} entries, got {len(values)}")

    def part(self, start: int, end: int) -> "Sentence":
        """Return the words from ``start`` to ``end``, half-open; a word whose head is outside becomes a root."""
        span = slice(start, end)
        heads = None
        if self.heads is not None:
            heads = tuple(head - start if start < head <= end else 0 for head in self.heads[span])
        return Sentence(
            words=self.words[span],
            labels=self.labels and self.labels[span],
            known=self.known and self.known[span],
            tags=self.tags and self.tags[span],
            heads=heads,
            relations=self.relations and self.relations[span],
            soft=self.soft and self.soft.part(start, end),
            terms=self.terms and self.terms[span],
            passage=self.passage,
            passage_start=self.passage_start + start,
        )


def first_words(sentence: Sentence) -> str:
    """Return enough of a sentence to find it by, for messages."""
    return " ".join(sentence.words[:12])


def first_documents(documents: Sequence[Sequence[Sentence]], words: int) -> Sequence[Sequence[Sentence]]:
    """Return the first documents that have this many words together, or all."""
    counts = accumulate(sum(len(sentence.words) for sentence in document) for document in documents)
    return documents[: 1 + sum(count < words for count in counts)]


def check_trees(sentences: Iterable[Sentence]) -> None:
    """Raise TreeError, naming the sentence, unless every sentence has tags, heads and relations."""
    for sentence in sentences:
        if sentence.tags is None or sentence.heads is None or sentence.relations is None:
            raise TreeError(
                "expected tags and a dependency tree for every sentence, got a sentence without: "
                f"{first_words(sentence)!r}; run `concord parse` on the corpus first"
            )


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A part of a sentence; the whole of it unless the sentence is too long."""

    document: int
    """Number of the document in the call."""
    first: int
    """Row of the window's first word; rows number the words of all documents of the call."""
    sentence: Sentence
    keep: tuple[int, int]
    """The words of the window whose results count, half-open."""


def cut_windows(documents: Sequence[Sequence[Sentence]], *, longest: int, overlap: int) -> list[Window]:
    """Return the windows of all sentences with at least one word, in reading order."""
    windows = []
    first = 0
    for number, document in enumerate(documents):
        for sentence in document:
            length = len(sentence.words)
            for start, end, keep in _window_bounds(length, longest, overlap):
                part = unlabelled_part(sentence, start, end)
                windows.append(Window(document=number, first=first + start, sentence=part, keep=keep))
            first += length
    return windows


def unlabelled_part(sentence: Sentence, start: int, end: int) -> Sentence:
    """Return part of a sentence without its labels, whose types the tagger may not know."""
    part = sentence if end - start == len(sentence.words) else sentence.part(start, end)
    return part if part.labels is None and part.soft is None else replace(part, labels=None, soft=None)


def _window_bounds(length: int, longest: int, overlap: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield start, end and kept words (counted from the start) of each window of a sentence."""
    if length == 0:
        return
    step = max(1, longest - overlap)
    starts = range(0, max(1, length - longest + step), step)
    bounds = [(start, min(start + longest, length)) for start in starts]
    seams = [(left[1] + right[0]) // 2 for left, right in pairwise(bounds)]
    for (start, end), begin, stop in zip(bounds, [0, *seams], [*seams, length], strict=True):
        yield start, end, (begin - start, stop - start)


INVISIBLE = re.compile(
    # Of Unicode's category Cf all but the thirteen that have a glyph (Prepended_Concatenation_Mark), and of its
    # property Default_Ignorable_Code_Point all.
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """Return a text without its invisible characters."""
    return text if text.isascii() else INVISIBLE.sub("", text)


HYPHENS = "-\u00ac\u00ad\u2010\u2011\u2e17"
"""What may end a line within a word."""
_END_OF_LINE = r"[^\S\r\n]*(?:\r*\n|\r)[^\S\r\n]*"
_BROKEN = re.compile(rf"[{HYPHENS}](?<=[^\W\d_][^\W\d_][{HYPHENS}]){_END_OF_LINE}(?=([^\W\d_]+)([-\u2010\u2011]\w)?)")
_FIRST_HALF = re.compile(r"([-\u2010\u2011])?(?<![^\W\d_])([^\W\d_]++)\Z")
_LONGEST_HALF = 60
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_NO_SECOND_HALF = ("and", "or", "to")  # pre- and post-war


def line_breaks(text: str) -> list[tuple[int, int]]:
    """Return the bounds of what breaks words at the ends of lines, with the hyphens of those that are written without.

    These are the words that go on with a small letter, unless the rest of the text shows that they are composed of two.
    """
    broken = [
        (half, found)
        for found in _BROKEN.finditer(text)
        if (half := _FIRST_HALF.search(text, max(0, found.start() - _LONGEST_HALF), found.start()))
    ]
    if not broken:
        return []
    rest = without(((half.start(2), found.end(1)) for half, found in broken), text, " ")
    # Each of them once: most of a long text says nothing new.
    words = set(_WORD.findall(" ".join(set(rest.lower().split()))))
    breaks = []
    for half, found in broken:
        start, end = found.span()
        first, second = half[2].lower(), found[1].lower()
        goes_on = found[1][0].islower()
        both = first in words and second in words and first + second not in words
        is_composed = both or half[1] or found[2] or f"{first}-{second}" in words
        if found[1] in _NO_SECOND_HALF:
            continue
        if text[start] in "\u00ac\u00ad" or (goes_on and not is_composed):
            breaks.append((start, end))
        elif goes_on or half[1] or half[2][0].isupper():
            breaks.append((start + 1, end))
    return breaks


def without(spans: Iterable[tuple[int, int]], text: str, filler: str = "") -> str:
    """Return a text without some spans of it, which are in order."""
    bounds = [0, *chain.from_iterable(spans), len(text)]
    return filler.join(text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True))


def without_line_breaks(text: str) -> str:
    """Return a text in which no word is broken at the end of a line."""
    return without(line_breaks(text), text)
