"""Gold corpora as a training or an evaluation sees them: read, joined, and with the labels it wants."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from concord.models.config import ConfigError
from concord.models.data.sentence import Sentence, TreeError, check_trees
from concord.models.evaluation.metrics import gold_sequences
from concord.models.labels import Span, decode_spans, encode_spans
from concord.models.layers.tree_lstm import grow_forest
from concord.models.schemes import LabelScheme
from concord.pipeline.corpora.conllu import PARSER_KEY, read_header
from concord.pipeline.corpora.corpus_format import TAG_COLUMNS, GoldFormat, refuse
from concord.pipeline.corpora.read_corpus import GoldDocument, read_corpus
from concord.pipeline.errors import InputError

Documents = list[list[Sentence]]
GOLD_TREES = "gold"


def gold_format(wanted: GoldFormat, scheme: LabelScheme) -> GoldFormat:
    """Give the format in which a tagger's corpora are read: its scheme says what their labels are.

    Raises:
        ConfigError: when a column of token labels is given to a tagger of entities.
    """
    if not scheme.has_entities:
        return wanted.model_copy(update={"label_scheme": scheme.name})
    if not wanted.read_scheme.has_entities or wanted.label_column in TAG_COLUMNS:
        raise ConfigError(
            f"label_column: {wanted.label_column or 'the last'} holds token labels, the tagger is one of entities; "
            "train one with --set model.scheme=TOKENS"
        )
    return wanted


def read_corpora(
    paths: Iterable[str], *, labels: Mapping[str, str | None], form: GoldFormat | None = None, trees: bool = False
) -> Documents:
    """Read the sentences of gold corpora; arguments and errors are those of ``read_documents``."""
    return [list(document.sentences) for document in read_documents(paths, labels=labels, form=form, trees=trees)]


def read_documents(
    paths: Iterable[str], *, labels: Mapping[str, str | None], form: GoldFormat | None = None, trees: bool = False
) -> list[GoldDocument]:
    """Read gold corpora one after the other, with the names of their documents.

    Args:
        labels: entity type or token label of the corpora -> wanted one, None for no entity; what is not named stays.
        trees: whether every sentence must have a tree.

    Raises:
        ConfigError: when a token label is to become none.
        InputError: with file and line, when one cannot be read; with file and sentence, when a tree is missing.
    """
    form = form or GoldFormat()
    documents: list[GoldDocument] = []
    for path in paths:
        found = read_corpus(Path(path), form, refuse).documents
        if trees:
            _check_trees(found, path)
        documents += found
    if not labels:
        return documents
    return [
        replace(document, sentences=tuple(relabelled(document.sentences, labels, scheme=form.read_scheme)))
        for document in documents
    ]


def relabelled(
    sentences: Iterable[Sentence], labels: Mapping[str, str | None], *, scheme: LabelScheme
) -> list[Sentence]:
    """Rename the entity types of sentences, or under ``TOKENS`` their labels; None makes a type no entity.

    Raises:
        ConfigError: when a token label is to become none.
    """
    rename = _relabelled if scheme.has_entities else _renamed
    return [rename(sentence, labels) for sentence in sentences]


def tree_source(path: str) -> str:
    """Give the signature of the parser that a corpus' trees are of; ``gold`` where they are no parser's."""
    return read_header(Path(path)).get(PARSER_KEY, GOLD_TREES)


def token_labels(documents: Sequence[Sequence[Sentence]]) -> set[str]:
    """Give the labels that words have."""
    return {label for labels in gold_sequences(documents) for label in labels}


def entity_types(documents: Sequence[Sequence[Sentence]]) -> set[str]:
    """Give the entity types of gold labels."""
    return {span.label for labels in gold_sequences(documents) for span in decode_spans(labels, "BIO")}


def without_labels(documents: Sequence[Sequence[Sentence]]) -> Documents:
    """Take the gold labels away, so that a tagger can be given types it does not know."""
    return [[replace(sentence, labels=None) for sentence in document] for document in documents]


def _check_trees(documents: Iterable[GoldDocument], path: str) -> None:
    for document in documents:
        try:
            check_trees(document.sentences)
            grow_forest(document.sentences)
        except TreeError as error:
            raise InputError(f"{path}: {error}") from error


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
