"""Words as subwords of an encoder: windows within its capacity, and passes of several windows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

SPECIAL_TOKENS = 2
PADDED_PASS = {"cpu": 256, "cuda": 8192}
"""Padded subwords per pass: on a CPU a pass should fit into the cache, on a GPU it should be large."""
# A reader remembers the subwords of about this many distinct words, since most words of a text recur.
_KNOWN_WORDS = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SubwordWindow:
    """A range of words in one sentence: all of them, unless the sentence has more subwords than the encoder takes."""

    sentence: int
    """Index of the sentence."""
    first: int
    """Index of the window's first word in the sentence."""
    keep: tuple[int, int]
    """Half-open range of words, counted from ``first``, whose vectors are used; the others are context."""
    words: Sequence[list[int]]
    """The subword numbers of each word."""

    @property
    def subwords(self) -> int:
        """Number of subwords, without special tokens."""
        return sum(map(len, self.words))


@dataclass(frozen=True, kw_only=True, slots=True)
class SubwordTokenizer:
    """What an encoder's tokenizer does here: it splits words, and has numbers for the special tokens."""

    split: Callable[[list[str]], list[list[int]]]
    """Returns the subword numbers of each word, without special tokens."""
    start: int
    end: int
    padding: int
    unknown: int


class SubwordReader:
    """Splits words into subwords and sentences into windows."""

    def __init__(self, tokenizer: SubwordTokenizer, *, capacity: int, overlap_words: int) -> None:
        """Use a tokenizer; ``capacity`` is the subwords of a window, without special tokens."""
        self._tokenizer = tokenizer
        self._capacity = capacity
        self._overlap_words = overlap_words
        self._known: dict[str, list[int]] = {}

    def windows(self, sentences: Sequence[Sequence[str]]) -> list[SubwordWindow]:
        """Return the windows of all sentences, those with the most subwords first; an empty sentence has none."""
        windows = []
        subwords = self._subwords({word for words in sentences for word in words})
        for number, words in enumerate(sentences):
            pieces = [subwords[word] for word in words]
            bounds = window_bounds(list(map(len, pieces)), capacity=self._capacity, overlap_words=self._overlap_words)
            for first, last, begin, end in bounds:
                keep = (begin - first, end - first)
                windows.append(SubwordWindow(sentence=number, first=first, keep=keep, words=pieces[first:last]))
        return sorted(windows, key=lambda window: -window.subwords)

    def rows(self, windows: Sequence[SubwordWindow]) -> list[list[int]]:
        """Return the subword numbers of windows, with special tokens."""
        tokenizer = self._tokenizer
        return [[tokenizer.start, *chain.from_iterable(window.words), tokenizer.end] for window in windows]

    def pad(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Return rows of subword numbers and their attention mask, both ``(windows, subwords)``, int64."""
        numbers = [torch.tensor(row) for row in rows]
        attention = pad_sequence([torch.ones_like(row) for row in numbers], batch_first=True)
        return pad_sequence(numbers, batch_first=True, padding_value=self._tokenizer.padding), attention

    def _subwords(self, words: set[str]) -> Mapping[str, list[int]]:
        """Return the subword numbers of each word; a word without any, such as a zero-width joiner, is unknown."""
        # A new table instead of an emptied one, which another thread may be reading.
        known = self._known = self._known if len(self._known) <= _KNOWN_WORDS else {}
        unknown = [word for word in words if word not in known]
        if unknown:  # the tokenizer does not accept an empty list
            split = self._tokenizer.split(unknown)
            pieces = [found[: self._capacity] or [self._tokenizer.unknown] for found in split]
            known.update(zip(unknown, pieces, strict=True))
        return known


def adapt_tokenizer(tokenizer: Any) -> SubwordTokenizer:
    """Adapt a tokenizer of transformers; where it lacks a special token, padding is 0 and an unknown word the end."""

    def split(words: list[str]) -> list[list[int]]:
        # It does not accept half a surrogate pair.
        whole = [word.encode(errors="replace").decode() for word in words]
        found: list[list[int]] = tokenizer(whole, add_special_tokens=False)["input_ids"]
        return found

    start, end, unknown = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.unk_token_id
    return SubwordTokenizer(
        split=split,
        start=start,
        end=end,
        padding=tokenizer.pad_token_id or 0,
        unknown=end if unknown is None else unknown,
    )


def used_subwords(windows: Sequence[SubwordWindow], *, subwords: int, words: int) -> tuple[list[range], list[int]]:
    """Return of each used word its subwords among those of a padded pass, and its cell among the words of its batch.

    Args:
        subwords, words: the lengths to which windows and sentences are padded.
    """
    places: list[range] = []
    cells: list[int] = []
    for row, window in enumerate(windows):
        place = row * subwords + 1
        for number, pieces in enumerate(window.words):
            if window.keep[0] <= number < window.keep[1]:
                places.append(range(place, place + len(pieces)))
                cells.append(window.sentence * words + window.first + number)
            place += len(pieces)
    return places, cells


def cut_passes(windows: Sequence[SubwordWindow], *, subwords: int) -> Iterator[Sequence[SubwordWindow]]:
    """Split windows, longest first, into passes of at most this many padded subwords, or of one longer window."""
    start = 0
    while start < len(windows):
        longest = SPECIAL_TOKENS + windows[start].subwords
        chosen = windows[start : start + max(1, subwords // longest)]
        start += len(chosen)
        yield chosen


def pack_passes(windows: Sequence[SubwordWindow], *, subwords: int) -> Iterator[Sequence[SubwordWindow]]:
    """Split windows into passes of at most this many subwords, or of one longer window; nothing is padded."""
    start = used = 0
    for stop, window in enumerate(windows):
        length = SPECIAL_TOKENS + window.subwords
        if used + length > subwords and stop > start:
            yield windows[start:stop]
            start, used = stop, 0
        used += length
    if start < len(windows):
        yield windows[start:]


def window_bounds(counts: Sequence[int], *, capacity: int, overlap_words: int) -> list[tuple[int, int, int, int]]:
    """Return each window as first and last word and first and last word whose vectors are used (both half-open).

    The counts are the subwords of each word, from 1 to ``capacity``. Every window uses the vector of at least one word,
    and all of them together have at most 4/3 of the text's subwords.
    """
    if not counts:
        return []
    bounds: list[tuple[int, int]] = []
    first = last = used = 0
    while True:
        while last < len(counts) and used + counts[last] <= capacity:
            used += counts[last]
            last += 1
        bounds.append((first, last))
        if last == len(counts):
            break
        # What the next window shares with this one leaves room for a further word.
        room = min(used // 4, capacity - counts[last])
        first, used = last, 0
        while last - first < overlap_words and used + counts[first - 1] <= room:
            first -= 1
            used += counts[first]
    # Both ends of windows increase strictly, and so does the middle of what neighbours share.
    seams = [(left[1] + right[0]) // 2 for left, right in pairwise(bounds)]
    starts, ends = [0, *seams], [*seams, len(counts)]
    return [(*bound, start, end) for bound, start, end in zip(bounds, starts, ends, strict=True)]
