"""Split words into the pieces of a unigram model (Kudo, 2018), as the library tokenizers does.

That library takes a second to read 250,000 pieces; a word is short, so a search through a dictionary serves.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping

_BOUNDARY = "▁"
_UNKNOWN_PENALTY = 10.0
# Characters; the rest of a longer word is not read, since no encoder takes the pieces of so many.
_LONGEST_WORD = 10_000
# SentencePiece's rules "nmt": what is no text is removed or is a space; soft hyphens are removed as well.
_REMOVED = [*range(0x1, 0x9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F, 0xAD]
_SPACES = [0x9, 0xA, 0xC, 0xD, 0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD]
_CLEANED = {**dict.fromkeys(_REMOVED), **dict.fromkeys(_SPACES, " ")}
_RUN = re.compile(" {2,}")


def normalize(word: str) -> str:
    """Return a word without control characters, in NFKC, with single spaces."""
    if word.isascii() and word.isprintable():
        cleaned = word
    else:
        cleaned = unicodedata.normalize("NFKC", word.translate(_CLEANED))
    return _RUN.sub(" ", cleaned).strip()


class UnigramSplitter:
    """Splits words into the pieces whose scores have the largest sum."""

    def __init__(self, scores: Mapping[str, tuple[int, float]], *, unknown: int) -> None:
        """Use pieces, each with its number and its score, the logarithm of its probability."""
        self._scores = scores
        self._unknown = unknown
        self._longest = max(map(len, scores))
        self._penalty = min(score for _, score in scores.values()) - _UNKNOWN_PENALTY

    def split(self, words: Iterable[str]) -> list[list[int]]:
        """Return the numbers of each word's pieces; none for a word without visible characters."""
        return [
            [
                number
                for part in normalize(word[:_LONGEST_WORD]).split(" ")
                if part
                for number in self._best(_BOUNDARY + part)
            ]
            for word in words
        ]

    def _best(self, text: str) -> list[int]:
        """Return the best pieces of a text, found from left to right; unknown characters in a row are one piece."""
        scores, unknown, size = self._scores, self._unknown, len(text)
        best = [0.0] + [-math.inf] * size
        origin = [(0, unknown)] * (size + 1)
        for start in range(size):
            so_far = best[start]
            for end in range(start + 1, min(size, start + self._longest) + 1):
                found = scores.get(text[start:end])
                if found is None:
                    if end > start + 1:
                        continue
                    found = (unknown, self._penalty)
                if (score := so_far + found[1]) > best[end]:
                    best[end] = score
                    origin[end] = (start, found[0])
        pieces: list[int] = []
        end = size
        while end > 0:
            end, number = origin[end]
            if number != unknown or pieces[-1:] != [unknown]:
                pieces.append(number)
        return pieces[::-1]
