"""Find the terms of a list in sentences, as spaCy's EntityRuler does."""

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from concord.models.data.sentence import Sentence
from concord.models.data.visible import visible
from concord.models.labels.spans import Span, encode_spans
from concord.models.terms.token_pattern import PatternError, TokenPattern, match_ends, read_token_pattern

_PIECE = re.compile(r"\d+|[^\W\d_]+|[^\s]")
_REMEMBERED_WORDS = 200_000
_KEYS = ("label", "pattern", "phrase_matcher_attr", "id")
_ATTRIBUTES = ("ORTH", "TEXT", "LOWER")


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """A line of a list of terms."""

    label: str
    """The entity type of a match."""
    pattern: str | tuple[TokenPattern, ...]
    """A text, or a condition for each word."""
    ignores_case: bool = False
    """Whether a text matches in any case."""

    @property
    def needs_tags(self) -> bool:
        """Whether it asks for parts of speech."""
        return not isinstance(self.pattern, str) and any(token.on_tag is not None for token in self.pattern)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Match:
    start: int
    end: int
    number: int
    """Number of the term in the list, from 0."""


class TermMatcher:
    """The terms of a list, ready to be found: of overlapping matches the longest counts, then the first.

    Of several terms for the same words, the first of the list counts.
    """

    def __init__(self, terms: Sequence[Term], *, name: str = "terms") -> None:
        """Index the terms; ``name`` is what messages call the list."""
        self.name = name
        self._terms = tuple(terms)
        self.needs_tags = any(term.needs_tags for term in terms)
        """Whether a pattern asks for parts of speech."""
        texts = [(number, term) for number, term in enumerate(terms) if isinstance(term.pattern, str)]
        self._texts = [
            _TextIndex(((number, str(term.pattern)) for number, term in texts if term.ignores_case is fold), fold=fold)
            for fold in (False, True)
            if any(term.ignores_case is fold for _, term in texts)
        ]
        self._patterns = {
            number: term.pattern for number, term in enumerate(terms) if not isinstance(term.pattern, str)
        }
        self._by_word: defaultdict[str, list[int]] = defaultdict(list)
        self._anywhere: list[int] = []
        for number, pattern in self._patterns.items():
            self._index_pattern(number, pattern)

    @property
    def labels(self) -> frozenset[str]:
        """The entity types of the list."""
        return frozenset(term.label for term in self._terms)

    def spans(self, sentence: Sentence) -> tuple[Span, ...]:
        """Return the matches in a sentence, in order and without overlaps.

        Raises:
            PatternError: when a pattern asks for parts of speech, which the sentence lacks.
        """
        if self.needs_tags and sentence.tags is None:
            raise PatternError(
                f"{self.name}: a pattern with POS needs parts of speech, which a sentence lacks: "
                f"{' '.join(sentence.words[:12])!r}; parse the corpus first (concord parse), or leave out POS"
            )
        matches = sorted(
            self._matches(sentence.words, sentence.tags),
            key=lambda match: (match.start - match.end, match.start, match.number),
        )
        taken: set[int] = set()
        chosen = []
        for match in matches:
            places = range(match.start, match.end)
            if taken.isdisjoint(places):
                taken.update(places)
                chosen.append(Span(match.start, match.end, self._terms[match.number].label))
        return tuple(sorted(chosen))

    def mark(self, sentence: Sentence) -> Sentence:
        """Return a sentence with its matches as ``Sentence.terms``; the sentence itself if there is none."""
        spans = self.spans(sentence)
        return replace(sentence, terms=encode_spans(spans, len(sentence.words), "BIO")) if spans else sentence

    def _index_pattern(self, number: int, pattern: tuple[TokenPattern, ...]) -> None:
        first = pattern[0]
        if first.words is None or first.operator not in ("once", "+"):
            self._anywhere.append(number)
            return
        for word in first.words:
            self._by_word[word].append(number)

    def _matches(self, words: Sequence[str], tags: Sequence[str] | None) -> Iterator[_Match]:
        for index in self._texts:
            yield from index.matches(words)
        if not self._patterns:
            return
        for start, word in enumerate(words):
            for number in (*self._by_word.get(word.lower(), ()), *self._anywhere):
                for end in match_ends(self._patterns[number], words, tags, start):
                    yield _Match(start=start, end=end, number=number)


class _TextIndex:
    """The texts of a list, which match whole words however a text is cut into words.

    Texts and words are compared by their runs of letters, runs of digits and single other characters: "beta-blocker"
    is found whether it is one word or three, and "information" is not found in "in formation".
    """

    def __init__(self, texts: Iterable[tuple[int, str]], *, fold: bool) -> None:
        self._fold = fold
        self._numbers: dict[str, int] = {}
        for number, text in texts:
            self._numbers.setdefault(self._key(text), number)
        self._keys = sorted(self._numbers)
        self._known: dict[str, tuple[str, bool]] = {}

    def matches(self, words: Sequence[str]) -> Iterator[_Match]:
        """Yield all matches."""
        for start, word in enumerate(words):
            key, begins = self._look_up(word)
            end = start + 1
            while begins:
                number = self._numbers.get(key)
                if number is not None:
                    yield _Match(start=start, end=end, number=number)
                if end == len(words):
                    break
                key += self._look_up(words[end])[0]
                begins, end = self._begins(key), end + 1

    def _look_up(self, word: str) -> tuple[str, bool]:
        """Return the key of a word and whether a text begins with it."""
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
        # Every piece ends with a space, so that a key begins another only with whole pieces.
        pieces = _PIECE.findall(text.lower() if self._fold else text)
        return "".join(f"{piece} " for piece in pieces)


def read_term(values: Mapping[str, Any]) -> Term:
    """Read a term from the values of a line.

    Raises:
        PatternError: when it is not of the documented form.
    """
    if unknown := [key for key in values if key not in _KEYS]:
        raise PatternError(f"expected the keys {', '.join(_KEYS)}, got {unknown[0]!r}")
    # The words with which it is compared have no invisible characters either.
    values = json.loads(visible(json.dumps(values, ensure_ascii=False)))
    label, pattern, attribute = (values.get(key) for key in ("label", "pattern", "phrase_matcher_attr"))
    if not isinstance(label, str) or not label:
        raise PatternError(f"label: expected an entity type, got {label!r}")
    if attribute is not None and (attribute not in _ATTRIBUTES or not isinstance(pattern, str)):
        raise PatternError(
            f"phrase_matcher_attr: expected one of {', '.join(_ATTRIBUTES)} beside a pattern that is a string, "
            f"got {attribute!r}"
        )
    if isinstance(pattern, str) and pattern.strip():
        return Term(label=label, pattern=pattern, ignores_case=attribute == "LOWER")
    if not isinstance(pattern, list) or not pattern:
        raise PatternError(f"pattern: expected a text, or a list of one word's description or more, got {pattern!r}")
    tokens = tuple(map(read_token_pattern, pattern))
    if all(token.operator in ("?", "*") for token in tokens):
        raise PatternError("pattern: expected a word that must be there, got only such with OP ? or *")
    return Term(label=label, pattern=tokens)
