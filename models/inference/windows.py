"""Cut long sentences into overlapping windows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from concord.models.data.sentence import Sentence


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A stretch of one sentence; all of it, unless the sentence is over-long.

    Attributes:
        document: number of the document in the call.
        first: number of the window's first word, counted through all documents.
        keep: words of the window, half-open, whose results count.
    """

    document: int
    first: int
    sentence: Sentence
    keep: tuple[int, int]


def cut_windows(documents: Sequence[Sequence[Sentence]], *, longest: int, overlap: int) -> list[Window]:
    """Give the windows of all sentences that have a word, in reading order."""
    windows = []
    first = 0
    for number, document in enumerate(documents):
        for sentence in document:
            length = len(sentence.words)
            for start, end, keep in _window_bounds(length, longest, overlap):
                windows.append(
                    Window(document=number, first=first + start, sentence=window_part(sentence, start, end), keep=keep)
                )
            first += length
    return windows


def window_part(sentence: Sentence, start: int, end: int) -> Sentence:
    """Give a stretch of a sentence without its gold labels, which may be of types that the tagger does not know."""
    whole = sentence if end - start == len(sentence.words) else sentence.part(start, end)
    return whole if whole.labels is None else replace(whole, labels=None)


def _window_bounds(length: int, longest: int, overlap: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Give start, end and the kept words (counted from start) of each window of a sentence."""
    if length == 0:
        return
    step = max(1, longest - overlap)
    starts = range(0, max(1, length - longest + step), step)
    bounds = [(start, min(start + longest, length)) for start in starts]
    seams = [(left[1] + right[0]) // 2 for left, right in pairwise(bounds)]
    for (start, end), begin, stop in zip(bounds, [0, *seams], [*seams, length], strict=True):
        yield start, end, (begin - start, stop - start)
