"""Sentences: the words that taggers read, with gold labels and dependency trees if known."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from concord.models.data.soft_labels import SoftLabels
from concord.models.data.visible import visible

if TYPE_CHECKING:
    from torch import Tensor


class TreeError(ValueError):
    """A sentence without a dependency tree, or with an invalid one; the message quotes the sentence."""


@dataclass(slots=True, eq=False)
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
