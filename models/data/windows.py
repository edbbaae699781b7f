"""Windows: sentences of any length as overlapping parts that a network can read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from concord.models.data.sentence import Sentence


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
