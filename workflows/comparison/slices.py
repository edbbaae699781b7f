"""Slices: parts of the names of a corpus that a comparison looks at by themselves.

A slice is written ``NAME=FIELD:PATTERN``, with the pattern of a shell, or ``NAME=FIELD>NUMBER`` (also ``>=``, ``<``,
``<=``, ``==``), as in ``long=sentence_words>30`` or ``news=doc_id:news*``. The fields are those of ``FIELDS``, or a key
of the comments at the head of a CoNLL-U document, such as ``genre``.
"""

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from concord.models.config import ConfigError
from concord.models.data.sentence import Sentence
from concord.models.evaluation.breakdown import Names
from concord.models.evaluation.consistency import name_key
from concord.models.labels import Span
from concord.models.schemes import LabelScheme
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.pipeline.errors import InputError

SEEN, UNSEEN = "seen", "unseen"
NAME = "name"
_NUMBERS = ("mention_words", "sentence_words", "document_words")
FIELDS = (*_NUMBERS, "doc_id", "type", NAME)
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
SlicesOf = Callable[[int, int, Span], Iterable[str]]
"""Names the slices of a span, given the numbers of its document and of its sentence within it."""
_NUMERIC = re.compile(rf"({'|'.join(_NUMBERS)})\s*({'|'.join(_COMPARISONS)})\s*(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A part of the names of a corpus.

    Attributes:
        field: whose value decides.
        holds: says of a value whether the name is in the slice.
    """

    name: str
    field: str
    holds: Callable[[int | str], bool]


def parse_slice(text: str) -> Slice:
    """Read a slice as a user writes it.

    Raises:
        ConfigError: when it has no such form.
    """
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
            f"news=doc_id:news*; fields are {', '.join(FIELDS)} and the keys of the corpus' comments"
        )
    if field == NAME and pattern not in (SEEN, UNSEEN):
        raise ConfigError(f"slice {text!r}: expected name:seen or name:unseen, got {pattern!r}")
    return Slice(name=name, field=field, holds=lambda value: fnmatchcase(str(value), pattern))


def slices_by_span(slices: Sequence[Slice], documents: Sequence[GoldDocument], known: Names | None) -> SlicesOf:
    """Give what names the slices of each span.

    Args:
        known: the names of training, for slices of seen or unseen names.

    Raises:
        InputError: when a slice asks for what the corpus or the job has not, or two have one name.
    """
    _check(slices, documents, known)
    lengths = [sum(len(sentence.words) for sentence in document.sentences) for document in documents]

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
            case "name":
                return SEEN if name_key(sentence.words[span.start : span.end]) in (known or {}) else UNSEEN
            case _:
                return documents[number].metadata.get(field, "")

    def slices_of(number: int, place: int, span: Span) -> Iterable[str]:
        sentence = documents[number].sentences[place]
        return [part.name for part in slices if part.holds(value(part.field, number, sentence, span))]

    return slices_of


def check_filled(
    slices: Sequence[Slice], documents: Sequence[GoldDocument], slices_of: SlicesOf, *, scheme: LabelScheme
) -> None:
    """Check that every slice has a name of the gold corpus.

    Raises:
        InputError: naming the slices that have none.
    """
    filled = {
        name
        for number, document in enumerate(documents)
        for place, sentence in enumerate(document.sentences)
        for span in scheme.scored_spans(sentence.labels or ())
        for name in slices_of(number, place, span)
    }
    empty = [part.name for part in slices if part.name not in filled]
    if empty:
        raise InputError(f"slice {', '.join(empty)}: expected a name of the corpus in it, got none")


def _check(slices: Sequence[Slice], documents: Sequence[GoldDocument], known: Names | None) -> None:
    names = [part.name for part in slices]
    if len(set(names)) < len(names):
        raise InputError(f"slices: expected a name of its own for each, got {', '.join(names)}")
    keys = {key for document in documents for key in document.metadata}
    for part in slices:
        if part.field == NAME and known is None:
            raise InputError(f"slice {part.name}: which names are seen is told by --train, the training corpora")
        if part.field not in FIELDS and part.field not in keys:
            raise InputError(
                f"slice {part.name}: expected a field of {', '.join(FIELDS)} or a key of the corpus' comments "
                f"({', '.join(sorted(keys)) or 'it has none'}), got {part.field!r}"
            )
