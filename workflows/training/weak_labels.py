"""Weak labels: unlabelled corpora in which a list of terms says what it can."""

import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from concord.models.config import ConfigError
from concord.models.data.sentence import Sentence
from concord.models.data.soft_labels import allowed_labels
from concord.models.labels import OUTSIDE, encode_spans
from concord.models.schemes import LabelScheme
from concord.models.terms.term_matcher import TermMatcher
from concord.models.terms.token_pattern import PatternError
from concord.pipeline.corpora.read_terms import read_terms
from concord.workflows.console import info
from concord.workflows.jobs import DataConfig
from concord.workflows.training.corpora import Documents, gold_format, read_corpora, require_sentences


def read_weak_corpora(data: DataConfig, *, scheme: LabelScheme, trees: bool) -> tuple[Documents, frozenset[str]]:
    """Read the unlabelled corpora of a training with the labels of its list of terms, and the types of the list.

    Words without a match are labelled ``O`` until ``open_outside`` says which of them may have other labels.

    Raises:
        ConfigError: when one of ``data.terms`` and ``data.unlabelled`` is missing, or the labels are no entities.
        InputError: when a file cannot be read, or the corpora have no sentence.
    """
    paths = data.paths("unlabelled")
    if data.terms is None and not paths:
        return [], frozenset()
    if data.terms is None or not paths:
        raise ConfigError(
            "data: expected both terms, a list of terms, and unlabelled, the corpora that it labels, got only "
            f"{'unlabelled' if data.terms is None else 'terms'}"
        )
    if not scheme.has_entities:
        raise ConfigError("data.terms: labels entities; expected another scheme than TOKENS")
    terms = read_terms(Path(data.terms))
    documents = read_corpora(paths, labels={}, form=gold_format(data, scheme), trees=trees)
    require_sentences(documents, paths)
    try:
        marked = [[_marked(sentence, terms) for sentence in document] for document in documents]
    except PatternError as error:
        raise ConfigError(str(error)) from error
    found = sum(label.startswith("B-") for document in marked for one in document for label in one.labels or ())
    words = sum(len(sentence.words) for document in marked for sentence in document)
    info(f"{found:,} matches of the list of terms in {words:,} words")
    return marked, terms.labels


def open_outside(
    documents: Documents, *, outside: float, types: Collection[str], scheme: LabelScheme
) -> list[list[Sentence]]:
    """Let the outside words of documents have any label, except for a random share of them; the same in every call.

    Args:
        outside: share of the words without a match that stay outside.
        types: all entity types of the training.
    """
    chooser, names = random.Random(0), scheme.label_set(types)
    return [[_opened(sentence, names, types, scheme, chooser, outside) for sentence in one] for one in documents]


def _marked(sentence: Sentence, terms: TermMatcher) -> Sentence:
    return replace(sentence, labels=encode_spans(terms.spans(sentence), len(sentence.words), "BIO"))


def _opened(
    sentence: Sentence,
    names: tuple[str, ...],
    types: Collection[str],
    scheme: LabelScheme,
    chooser: random.Random,
    outside: float,
) -> Sentence:
    labels = sentence.labels or ()
    soft = allowed_labels(labels, names, lacks=types, scheme=scheme)
    closed = np.array([label == OUTSIDE and chooser.random() < outside for label in labels], dtype=bool)
    kept = ~closed[soft.words] | (soft.labels == names.index(OUTSIDE))
    return replace(sentence, soft=replace(soft, words=soft.words[kept], labels=soft.labels[kept]))
