"""Slices: subsets of the entities of a corpus that a comparison tests separately.

A slice is written ``NAME=FIELD:PATTERN``, with a shell pattern, or ``NAME=FIELD>NUMBER`` (also ``>=``, ``<``, ``<=``,
``==``), as in ``long=sentence_words>30`` or ``news=doc_id:news*``. A field is one of ``FIELDS`` or the key of a comment
at the start of a CoNLL-U document, such as ``genre``.
"""

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import TypeAlias

from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError
from concord.models.evaluation.breakdown import Names
from concord.models.evaluation.consistency import name_key
from concord.models.labels.schemes import LabelScheme
from concord.models.labels.spans import Span
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.pipeline.errors import InputError
from concord.pipeline.names.language import language_of

SEEN, UNSEEN = "seen", "unseen"
NAME = "name"
_NUMBERS = ("mention_words", "sentence_words", "document_words")
LANGUAGE = "language"
FIELDS = (*_NUMBERS, "doc_id", "type", NAME, LANGUAGE)
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_NUMERIC = re.compile(rf"({'|'.join(_NUMBERS)})\s*({'|'.join(_COMPARISONS)})\s*(\d+)")

SliceFinder: TypeAlias = Callable[[int, int, Span], Iterable[str]]
"""Takes the indices of a document and of a sentence in it, and a span; returns the names of the span's slices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A subset of the entities of a corpus.

    Attributes:
        field: the field that decides.
        holds: takes the field's value and returns whether the entity is in the slice.
    """

    name: str
    field: str
    holds: Callable[[int | str], bool]


def parse_slice(text: str) -> Slice:
    """Parse a slice as a user writes it; raise ConfigError when it has another form."""
    name, equals, condition = (part.strip() for part in text.partition("="))
    numeric = _NUMERIC.fullmatch(condition)
    if name and equals and numeric:
        field, comparison, number = numeric.groups()
        compare = _COMPARISONS[comparison]
        return Slice(name=name, field=field, holds=lambda value: compare(int(value), int(number)))
    field, colon, pattern = (part.strip() for part in condition.partition(":"))
    if not (name and field and colon and pattern) or field in _NUMBERS:
        raise ConfigError(
            f"slice {text!r}: expected NAME=FIELD:PATTERN or NAME=FIELD>NUMBER, as in long=sentence_words>30 or "
            f"news=doc_id:news*; fields are {', '.join(FIELDS)} and the keys of the comments in the corpus"
        )
    if field == NAME and pattern not in (SEEN, UNSEEN):
        raise ConfigError(f"slice {text!r}: expected name:seen or name:unseen, got {pattern!r}")
    return Slice(name=name, field=field, holds=lambda value: fnmatchcase(str(value), pattern))


def slice_finder(slices: Sequence[Slice], documents: Sequence[GoldDocument], known: Names | None) -> SliceFinder:
    """Return the function that finds the slices of a span.

    Args:
        known: the names in the training corpora, for slices of seen or unseen names.

    Raises:
        InputError: when the corpus has no such field, ``known`` is missing, or two slices have the same name.
    """
    _check(slices, documents, known)
    lengths = [sum(len(sentence.words) for sentence in document.sentences) for document in documents]

    @cache
    def language(number: int) -> str:
        found = language_of(" ".join(word for sentence in documents[number].sentences for word in sentence.words))
        return found.code if found else "unknown"

    def value(field: str, number: int, sentence: Sentence, span: Span) -> int | str:
        match field:
            case "mention_words":
                return span.end - span.start
            case "sentence_words":
                return len(sentence.words)
            case "document_words":
                return lengths[number]
            case "doc_id":
                return documents[number].name or ""
            case "type":
                return span.label
            case "language":
                return documents[number].metadata.get(field) or language(number)
            case "name":
                return SEEN if name_key(sentence.words[span.start : span.end]) in (known or {}) else UNSEEN
            case _:
                return documents[number].metadata.get(field, "")

    def find_slices(number: int, position: int, span: Span) -> Iterable[str]:
        sentence = documents[number].sentences[position]
        return [part.name for part in slices if part.holds(value(part.field, number, sentence, span))]

    return find_slices


def check_not_empty(
    slices: Sequence[Slice], documents: Sequence[GoldDocument], find_slices: SliceFinder, *, scheme: LabelScheme
) -> None:
    """Raise InputError unless every slice has an entity of the gold corpus."""
    filled = {
        name
        for number, document in enumerate(documents)
        for position, sentence in enumerate(document.sentences)
        for span in scheme.scored_spans(sentence.labels or ())
        for name in find_slices(number, position, span)
    }
    empty = [part.name for part in slices if part.name not in filled]
    if empty:
        raise InputError(f"slice {', '.join(empty)}: expected an entity of the corpus in it, got none")


def _check(slices: Sequence[Slice], documents: Sequence[GoldDocument], known: Names | None) -> None:
    names = [part.name for part in slices]
    if len(set(names)) < len(names):
        raise InputError(f"slices: expected a different name for each, got {', '.join(names)}")
    keys = {key for document in documents for key in document.metadata}
    for part in slices:
        if part.field == NAME and known is None:
            raise InputError(
                f"slice {part.name}: expected --train, the corpora that decide which names were seen, got none"
            )
        if part.field not in FIELDS and part.field not in keys:
            raise InputError(
                f"slice {part.name}: expected a field of {', '.join(FIELDS)} or a key of the comments in the corpus "
                f"({', '.join(sorted(keys)) or 'it has none'}), got {part.field!r}"
            )
