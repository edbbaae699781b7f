"""The occurrences of a name in a document, and their labels."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence

from concord.models.evaluation.metrics import name_key
from concord.models.labels import OUTSIDE, Span, decode_spans

LabelledSentence = tuple[Sequence[str], Sequence[str]]
"""Words and BIO2 labels, one label per word."""


def count_unlabelled(labels_of_names: Mapping[str, Counter[str]], *, values: Container[str]) -> tuple[int, int]:
    """Count the occurrences of a document's recurring names of two words and more, and those that have no label.

    Shorter names are left out: "May" and "Reading" are not always names.

    Args:
        labels_of_names: as ``name_labels`` returns it; every name in it is an entity somewhere in the document.
        values: types of what is no name, such as dates: "a year" is not one everywhere.
    """
    recurring = [
        labels
        for name, labels in labels_of_names.items()
        if " " in name and labels.total() > 1 and any(label != OUTSIDE and label not in values for label in labels)
    ]
    return sum(labels.total() for labels in recurring), sum(labels[OUTSIDE] for labels in recurring)


def name_labels(document: Iterable[LabelledSentence]) -> dict[str, Counter[str]]:
    """Count the labels of the occurrences of every name in a document.

    A name is the lower-cased word sequence of an entity. Its occurrences are

    - the entities of exactly these words; their label is the entity's type;
    - other occurrences of the word sequence within a sentence, in any case; their label is ``O``.

    There are two exceptions. Words inside a longer entity belong to that name: the Lincoln of "Lincoln Freight" is not
    an occurrence of "lincoln". And words in lower case count only if some entity of the name is written in lower case,
    since "rose" is seldom the Rose of the sentence before.

    Args:
        document: its sentences. An entity may continue in the next one, whose labels then begin with ``I-``.

    Returns:
        Name, its words joined by spaces -> number of occurrences by label, in the order of first occurrence.
    """
    sentences = [(list(words), list(labels)) for words, labels in document]
    words = [word for sentence, _ in sentences for word in sentence]
    spans = decode_spans([label for _, labels in sentences for label in labels], "BIO")
    owners = _owners(spans, len(words))
    found = [
        (start, " ".join(name), OUTSIDE)
        for start, name in _occurrences([sentence for sentence, _ in sentences], _lower_case_names(words, spans))
        if not _within_an_entity(owners[start : start + len(name)])
    ]
    found += [(span.start, " ".join(name_key(words[span.start : span.end])), span.label) for span in spans]
    labels_of_names: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for _, name, label in sorted(found):
        labels_of_names[name][label] += 1
    return dict(labels_of_names)


def _owners(spans: Iterable[Span], length: int) -> list[Span | None]:
    """Return the entity that each word belongs to."""
    owners: list[Span | None] = [None] * length
    for span in spans:
        owners[span.start : span.end] = [span] * (span.end - span.start)
    return owners


def _within_an_entity(owners: Sequence[Span | None]) -> bool:
    """Return whether all of these words belong to the same entity."""
    return owners[0] is not None and all(owner == owners[0] for owner in owners)


def _lower_case_names(words: Sequence[str], spans: Iterable[Span]) -> dict[tuple[str, ...], bool]:
    """Map every name to whether one of its entities is written in lower case."""
    names: dict[tuple[str, ...], bool] = {}
    for span in spans:
        written = words[span.start : span.end]
        names[name_key(written)] = names.get(name_key(written), False) or _is_lower_case(written)
    return names


def _is_lower_case(words: Sequence[str]) -> bool:
    # False for scripts without case: islower() needs at least one cased letter.
    return " ".join(words).islower()


def _occurrences(
    sentences: Iterable[Sequence[str]], names: Mapping[tuple[str, ...], bool]
) -> Iterable[tuple[int, tuple[str, ...]]]:
    """Yield every occurrence of the words of a name, with the index of its first word in the document."""
    by_first: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name in names:
        by_first[name[0]].append(name)
    offset = 0
    for sentence in sentences:
        keys = name_key(sentence)
        # Most sentences hold no name.
        for position, first in enumerate(() if by_first.keys().isdisjoint(keys) else keys):
            for name in by_first.get(first, ()):
                end = position + len(name)
                if keys[position:end] == name and (names[name] or not _is_lower_case(sentence[position:end])):
                    yield offset + position, name
        offset += len(sentence)
