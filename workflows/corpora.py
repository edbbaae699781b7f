"""Gold corpora as a training or an evaluation sees them: read, joined, and with the labels it wants."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from models.config import ConfigError
from models.data import Sentence
from models.labels import Scheme, Span, decode_spans, encode_spans
from pipeline.readers.conllu import TAG_COLUMNS
from pipeline.readers.gold import read_gold
from pipeline.readers.gold_lines import GoldFormat

Documents = list[list[Sentence]]


def gold_format(wanted: GoldFormat, scheme: Scheme) -> GoldFormat:
    """Give the format in which a tagger's corpora are read: its scheme says what their labels are.

    Raises:
        ConfigError: when a column of token labels is given to a tagger of entities.
    """
    if scheme == "TOKENS":
        return wanted.model_copy(update={"label_scheme": "TOKENS"})
    if wanted.label_scheme == "TOKENS" or wanted.label_column in TAG_COLUMNS:
        raise ConfigError(
            f"label_column: {wanted.label_column or 'the last'} holds token labels, the tagger is one of entities; "
            "train one with --set model.scheme=TOKENS"
        )
    return wanted


def read_corpora(
    paths: Iterable[str], *, labels: Mapping[str, str | None], form: GoldFormat | None = None
) -> Documents:
    """Read gold corpora one after the other.

    Args:
        labels: entity type or token label of the corpora -> wanted one, None for no entity; what is not named stays.

    Raises:
        ConfigError: when a token label is to become none.
        InputError: with file and line, when one cannot be read.
    """
    form = form or GoldFormat()
    documents = [document for path in paths for document in read_gold(Path(path), form)]
    if not labels:
        return documents
    if form.label_scheme == "TOKENS":
        return [[_renamed(sentence, labels) for sentence in document] for document in documents]
    return [[_relabelled(sentence, labels) for sentence in document] for document in documents]


def token_labels(documents: Sequence[Sequence[Sentence]]) -> set[str]:
    """Give the labels that words have."""
    return {label for labels in gold_labels(documents) for label in labels}


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


def _renamed(sentence: Sentence, labels: Mapping[str, str | None]) -> Sentence:
    renamed = []
    for label in sentence.labels or ():
        wanted = labels.get(label, label)
        if wanted is None:
            raise ConfigError(f"labels.{label}: expected a label, since every word has one, got null")
        renamed.append(wanted)
    return replace(sentence, labels=tuple(renamed))
