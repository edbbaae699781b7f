"""Do the occurrences of a name agree on their label within a document? The one definition, for scores and reports."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from concord.models.labels import OUTSIDE, Span, decode_spans

LabelledSentence = tuple[Sequence[str], Sequence[str]]
"""Words and BIO2 labels, one label a word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Consistency:
    """How far the occurrences of recurring names agree.

    Attributes:
        names: names that occur at least twice in their document, one count a document and name.
        occurrences: their occurrences.
        agreeing: occurrences that carry their name's most frequent label.
    """

    names: int = 0
    occurrences: int = 0
    agreeing: int = 0

    @property
    def share(self) -> float | None:
        """Share of the occurrences that agree, 0..1; None where no name recurs."""
        return self.agreeing / self.occurrences if self.occurrences else None

    def __add__(self, other: "Consistency") -> "Consistency":
        """Sum over documents, so that the share of a collection is the micro average."""
        return Consistency(
            names=self.names + other.names,
            occurrences=self.occurrences + other.occurrences,
            agreeing=self.agreeing + other.agreeing,
        )


def consistency(labels_of_names: Mapping[str, Counter[str]]) -> Consistency:
    """Measure one document from what ``name_labels`` gives for it; names that occur once do not count."""
    recurring = [labels for labels in labels_of_names.values() if labels.total() > 1]
    return Consistency(
        names=len(recurring),
        occurrences=sum(labels.total() for labels in recurring),
        agreeing=sum(max(labels.values()) for labels in recurring),
    )


def collection_consistency(
    documents: Iterable[Iterable[LabelledSentence]], *, naming: Iterable[Iterable[Sequence[str]]] | None = None
) -> Consistency:
    """Measure a collection; the arguments are those of ``name_labels``, a document each."""
    if naming is None:
        return sum((consistency(name_labels(document)) for document in documents), Consistency())
    pairs = zip(documents, naming, strict=True)
    return sum((consistency(name_labels(document, naming=names)) for document, names in pairs), Consistency())


def name_labels(
    document: Iterable[LabelledSentence], *, naming: Iterable[Sequence[str]] | None = None
) -> dict[str, Counter[str]]:
    """Count, for every name of a document, the labels of its occurrences.

    A name is the word sequence of an entity, lower-cased. Its occurrences are

    - the entities of just these words; their label is the entity's type;
    - the other places within a sentence where these words stand in a row, in whatever case; their label is ``O``.

    Two kinds of places are left out. Words that lie within a longer entity belong to that name: the Lincoln of
    "Lincoln Freight" is no occurrence of "lincoln". And words written all in small letters count only where some
    entity of the name is written so, since "rose" is seldom the Rose of the sentence before.

    Args:
        document: its sentences. An entity may run on into the next one, whose labels then begin with ``I-``.
        naming: BIO2 labels of the same sentences, whose entities say what a name is (gold labels, say); those of
            ``document`` if None.

    Returns:
        Name, its words parted by blanks, to the number of occurrences by label, in the order of first occurrence.
    """
    sentences = [(list(words), list(labels)) for words, labels in document]
    words = [word for sentence, _ in sentences for word in sentence]
    spans = decode_spans([label for _, labels in sentences for label in labels], "BIO")
    if naming is None:
        named = spans
    else:
        named = decode_spans([label for labels in naming for label in labels], "BIO")
    owners = _owners(spans, len(words))
    found = [
        (start, " ".join(name), OUTSIDE)
        for start, name in _stretches([sentence for sentence, _ in sentences], _written_names(words, named))
        if not _within_an_entity(owners[start : start + len(name)])
    ]
    known = {name_key(words[span.start : span.end]) for span in named}
    for span in spans:
        key = name_key(words[span.start : span.end])
        if key in known:
            found.append((span.start, " ".join(key), span.label))
    labels_of_names: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for _, name, label in sorted(found):
        labels_of_names[name][label] += 1
    return dict(labels_of_names)


def name_key(words: Sequence[str]) -> tuple[str, ...]:
    """Give what makes two names the same: their words, lower-cased."""
    return tuple(word.lower() for word in words)


def _owners(spans: Iterable[Span], length: int) -> list[Span | None]:
    owners: list[Span | None] = [None] * length
    for span in spans:
        owners[span.start : span.end] = [span] * (span.end - span.start)
    return owners


def _within_an_entity(owners: Sequence[Span | None]) -> bool:
    """Say whether one entity, of these words or more, covers all of a stretch."""
    return owners[0] is not None and all(owner == owners[0] for owner in owners)


def _written_names(words: Sequence[str], spans: Iterable[Span]) -> dict[tuple[str, ...], bool]:
    """Give every name and whether one of its entities is written all in small letters."""
    names: dict[tuple[str, ...], bool] = {}
    for span in spans:
        written = words[span.start : span.end]
        names[name_key(written)] = names.get(name_key(written), False) or _is_small(written)
    return names


def _is_small(words: Sequence[str]) -> bool:
    # Scripts without case are never "small": islower() wants at least one cased letter.
    return " ".join(words).islower()


def _stretches(
    sentences: Iterable[Sequence[str]], names: Mapping[tuple[str, ...], bool]
) -> Iterable[tuple[int, tuple[str, ...]]]:
    """Give where the words of a name stand in a row, as the number of the first word in the document."""
    by_first: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name in names:
        by_first[name[0]].append(name)
    offset = 0
    for sentence in sentences:
        keys = name_key(sentence)
        for position, first in enumerate(keys):
            for name in by_first.get(first, ()):
                end = position + len(name)
                if keys[position:end] == name and (names[name] or not _is_small(sentence[position:end])):
                    yield offset + position, name
        offset += len(sentence)
