"""Sentences, vocabularies and batches: where text becomes tensors, once.

Shape letters used everywhere: B sentences of a batch, T words of a sentence, C characters of a word, H hidden
units, L labels, S memory slots, M Monte-Carlo weight samples.
"""

from collections.abc import Iterable
from dataclasses import dataclass


class TreeError(ValueError):
    """A sentence whose dependency tree is missing or is none; the message names the sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """One sentence; every field has one entry a word.

    Attributes:
        labels: gold labels, in BIO2 or plain labels of the words.
        tags, heads, relations: part of speech, 1-based head (0 is the root) and relation to it.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    heads: tuple[int, ...] | None = None
    relations: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("labels", "tags", "heads", "relations"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.words):
                raise ValueError(f"Sentence.{name}: expected {len(self.words)} entries, got {len(values)}")

    def part(self, start: int, end: int) -> "Sentence":
        """Give the words from ``start`` to ``end``, half-open; a word whose head stays outside becomes a root."""
        span = slice(start, end)
        heads = None
        if self.heads is not None:
            heads = tuple(head - start if start < head <= end else 0 for head in self.heads[span])
        return Sentence(
            words=self.words[span],
            labels=self.labels and self.labels[span],
            tags=self.tags and self.tags[span],
            heads=heads,
            relations=self.relations and self.relations[span],
        )


def first_words(sentence: Sentence) -> str:
    """Give enough of a sentence to find it again, for messages."""
    return " ".join(sentence.words[:12])


def check_trees(sentences: Iterable[Sentence]) -> None:
    """Check that every sentence has tags, heads and relations.

    Raises:
        TreeError: naming the first sentence that lacks them.
    """
    for sentence in sentences:
        if sentence.tags is None or sentence.heads is None or sentence.relations is None:
            raise TreeError(
                "expected tags and a dependency tree for every sentence, got a sentence without: "
                f"{first_words(sentence)!r}; run `concord parse` on the corpus first"
            )
