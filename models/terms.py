"""Lists of terms: phrases with their labels, found in sentences as spaCy's EntityRuler finds them.

Where a tagger's labels contradict a match, its words are left to stage two, or have the label of the list.
"""

import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator
from torch import Tensor

from concord.models.config import Config
from concord.models.data.batch import Batch
from concord.models.data.outputs import Draft
from concord.models.data.sentence import Sentence, visible
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import Span, decode_spans, encode_spans

_PIECE = re.compile(r"\d+|[^\W\d_]+|[^\s]")
_REMEMBERED_WORDS = 200_000

OVERRULED_BELOW = 0.9
"""A tagger of one stage keeps its labels where it gives each of them at least this probability."""


def _visible_text(text: str) -> str:
    """Return a text without invisible characters, which the words that it is compared with lack as well."""
    if not visible(text).strip():
        raise ValueError("expected a text")
    return visible(text)


class Term(Config):
    """A line of a list of terms, such as ``{"label": "DRUG", "pattern": "aspirin"}``."""

    label: Annotated[str, AfterValidator(_visible_text)]
    """The entity type of a match."""
    pattern: Annotated[str, AfterValidator(_visible_text)]
    phrase_matcher_attr: Literal["ORTH", "TEXT", "LOWER"] | None = None
    """With ``LOWER`` the pattern matches in any case."""
    id: Any = None
    """What spaCy calls a pattern; ignored."""

    @property
    def ignores_case(self) -> bool:
        """Whether the pattern matches in any case."""
        return self.phrase_matcher_attr == "LOWER"


class TermMatcher:
    """The terms of a list, ready to be found: of overlapping matches the longest counts, then the first.

    Of several terms for the same words, the first of the list counts.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        """Index the terms."""
        self._terms = tuple(terms)
        self._indexes = [
            _PhraseIndex(
                ((number, term.pattern) for number, term in enumerate(terms) if term.ignores_case is fold), fold=fold
            )
            for fold in {term.ignores_case for term in terms}
        ]

    @property
    def labels(self) -> frozenset[str]:
        """The entity types of the list."""
        return frozenset(term.label for term in self._terms)

    def spans(self, sentence: Sentence) -> tuple[Span, ...]:
        """Return the matches in a sentence, in order and without overlaps."""
        matches = [match for index in self._indexes for match in index.matches(sentence.words)]
        taken: set[int] = set()
        chosen = []
        for start, end, number in sorted(matches, key=lambda match: (match[0] - match[1], match[0], match[2])):
            places = range(start, end)
            if taken.isdisjoint(places):
                taken.update(places)
                chosen.append(Span(start, end, self._terms[number].label))
        return tuple(sorted(chosen))

    def mark(self, sentence: Sentence) -> Sentence:
        """Return a sentence with its matches as ``Sentence.terms``; the sentence itself if there is none."""
        spans = self.spans(sentence)
        return replace(sentence, terms=encode_spans(spans, len(sentence.words), "BIO")) if spans else sentence


class _PhraseIndex:
    """The phrases of a list, which match whole words however a text is cut into words.

    Phrases and words are compared in NFC, by their runs of letters, runs of digits and single other characters:
    "beta-blocker" is found whether it is one word or three, and "information" is not found in "in formation".
    """

    def __init__(self, phrases: Iterable[tuple[int, str]], *, fold: bool) -> None:
        self._fold = fold
        self._numbers: dict[str, int] = {}
        for number, phrase in phrases:
            self._numbers.setdefault(self._key(phrase), number)
        self._keys = sorted(self._numbers)
        self._known: dict[str, tuple[str, bool]] = {}

    def matches(self, words: Sequence[str]) -> Iterator[tuple[int, int, int]]:
        """Yield all matches, each as its first word, the word after its last, and the number of its term."""
        for start, word in enumerate(words):
            key, begins = self._look_up(word)
            end = start + 1
            while begins:
                number = self._numbers.get(key)
                if number is not None:
                    yield start, end, number
                if end == len(words):
                    break
                key += self._look_up(words[end])[0]
                begins, end = self._begins(key), end + 1

    def _look_up(self, word: str) -> tuple[str, bool]:
        """Return the key of a word and whether a phrase begins with it."""
        found = self._known.get(word)
        if found is None:
            if len(self._known) >= _REMEMBERED_WORDS:
                self._known.clear()
            key = self._key(word)
            found = self._known[word] = key, bool(key) and self._begins(key)
        return found

    def _begins(self, key: str) -> bool:
        place = bisect_left(self._keys, key)
        return place < len(self._keys) and self._keys[place].startswith(key)

    def _key(self, text: str) -> str:
        composed = unicodedata.normalize("NFC", text.lower() if self._fold else text)
        # Every piece ends with a space, so that a key begins another only with whole pieces.
        return "".join(f"{piece} " for piece in _PIECE.findall(composed))


@dataclass(frozen=True, kw_only=True, slots=True)
class Contradiction:
    """A match that is no entity of the labels."""

    sentence: int
    """Number of the sentence in its batch."""
    match: Span
    labels: tuple[int, ...]
    """Numbers of the labels that the match asks for, one per word of it."""
    words: tuple[int, ...]
    """The words of the match and of the entities that overlap it."""


def find_contradictions(batch: Batch, labels: Tensor, vocabulary: Vocabulary) -> list[Contradiction]:
    """Return the matches of a batch's sentences (``Sentence.terms``) that labels, ``(B, T)``, int64, contradict."""
    scheme, contradictions = vocabulary.scheme, list[Contradiction]()
    for row, sentence in enumerate(batch.sentences):
        if sentence.terms is None or scheme.spans is None:
            continue
        length = len(sentence.words)
        entities = scheme.entities([vocabulary.labels[number] for number in labels[row, :length].tolist()])
        for match in decode_spans(sentence.terms, "BIO"):
            if match in entities:
                continue
            words = set(range(match.start, match.end))
            for entity in entities:
                if entity.start < match.end and match.start < entity.end:
                    words.update(range(entity.start, entity.end))
            names = encode_spans([match], length, scheme.spans)[match.start : match.end]
            numbers = tuple(vocabulary.labels.index(name) for name in names)
            found = Contradiction(sentence=row, match=match, labels=numbers, words=tuple(sorted(words)))
            contradictions.append(found)
    return contradictions


def leave_matches_to_stage_two(draft: Draft, contradictions: Sequence[Contradiction]) -> Draft:
    """Return a draft in which contradicted matches have the labels of the list and infinite uncertainty.

    So do, with their own labels, the other words of an entity that overlaps such a match.
    """
    if not contradictions:
        return draft
    probabilities, uncertainty = draft.probabilities.clone(), draft.uncertainty.clone()
    for found in contradictions:
        uncertainty[found.sentence, list(found.words)] = math.inf
        match = slice(found.match.start, found.match.end)
        numbers = torch.tensor(found.labels, device=probabilities.device)
        probabilities[found.sentence, match] = torch.nn.functional.one_hot(
            numbers, num_classes=probabilities.shape[-1]
        ).to(probabilities.dtype)
    return replace(draft, probabilities=probabilities, uncertainty=uncertainty)


def overrule_unsure(labels: Tensor, marginals: Tensor, contradictions: Sequence[Contradiction]) -> Tensor:
    """Return the labels of a tagger of one stage with those of the list where it is not sure of its own.

    Args:
        labels: shape ``(B, T)``, int64; those of an overlapping entity go with those of the match.
        marginals: shape ``(B, T, L)``.
    """
    overruled = [found for found in contradictions if _least_marginal(found, labels, marginals) < OVERRULED_BELOW]
    if not overruled:
        return labels
    labels = labels.clone()
    for found in overruled:
        labels[found.sentence, list(found.words)] = 0  # O
    for found in overruled:
        labels[found.sentence, found.match.start : found.match.end] = torch.tensor(found.labels, device=labels.device)
    return labels


def _least_marginal(found: Contradiction, labels: Tensor, marginals: Tensor) -> float:
    """Return the least probability that a tagger gives its own label of one of the words."""
    words = list(found.words)
    chosen = marginals[found.sentence, words].gather(-1, labels[found.sentence, words, None])
    return float(chosen.min())
