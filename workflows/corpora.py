"""Gold corpora as a training or an evaluation sees them: read, joined, and with the labels it wants."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from models.data import Sentence
from models.labels import Span, decode_spans, encode_spans
from pipeline.readers.gold import read_gold

Documents = list[list[Sentence]]


def read_corpora(paths: Iterable[str], *, labels: Mapping[str, str | None]) -> Documents:
    """Read gold corpora one after the other.

    Args:
        labels: entity type of the corpora -> wanted type, None for no entity; types not named stay.

    Raises:
        InputError: with file and line, when one cannot be read.
    """
    documents = [document for path in paths for document in read_gold(Path(path))]
    if not labels:
        return documents
    return [[_relabelled(sentence, labels) for sentence in document] for document in documents]


def entity_types(documents: Sequence[Sequence[Sentence]]) -> set[str]:
    """Give the entity types of gold labels."""
    return {span.label for labels in gold_labels(documents) for span in decode_spans(labels, "BIO")}


def gold_labels(documents: Sequence[Sequence[Sentence]]) -> list[tuple[str, ...]]:
    """Give the gold labels of every sentence."""
    return [sentence.labels or () for document in documents for sentence in document]


def without_labels(documents: Sequence[Sequence[Sentence]]) -> Documents:
    """Take the gold labels away, so that a tagger can be given types it does not know."""
    return [[replace(sentence, labels=None) for sentence in document] for document in documents]


def _relabelled(sentence: Sentence, labels: Mapping[str, str | None]) -> Sentence:
    if sentence.labels is None:
        return sentence
    wanted = [
        Span(span.start, span.end, kind)
        for span in decode_spans(sentence.labels, "BIO")
        if (kind := labels.get(span.label, span.label)) is not None
    ]
    return replace(sentence, labels=encode_spans(wanted, len(sentence.words), "BIO"))
