"""The corpora of a training: gold and unlabelled ones, with what their labels leave open."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from concord.models.bundles.registry import tagger_class
from concord.models.data.sentence import Sentence, allowed_labels
from concord.models.errors import ConfigError
from concord.models.labels import OUTSIDE, LabelScheme, encode_spans
from concord.models.taggers.base import Tagger
from concord.pipeline.corpora.read_terms import read_terms
from concord.workflows.console import info
from concord.workflows.corpora import (
    Documents,
    check_dev_types,
    gold_format,
    label_types,
    mark_incomplete,
    read_corpora,
    require_known,
    require_sentences,
    tree_source,
    weighted,
)
from concord.workflows.training.job import DataConfig, TrainJob

PARTS: tuple[Literal["train", "dev", "test"], ...] = ("train", "dev", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainCorpora:
    """The documents of a training.

    Attributes:
        parts: of train, dev and, if there is one, test.
        dev: the documents of each dev corpus.
        types: what the tagger is to distinguish.
        unscored: types that may occur in train without a label, and that dev has no entity of.
    """

    parts: Mapping[str, Documents]
    dev: Sequence[Documents]
    types: set[str]
    unscored: set[str]


def read_train_corpora(job: TrainJob, scheme: LabelScheme, start: Tagger | None) -> TrainCorpora:
    """Read the corpora of a training, which continues that of ``start`` if this is given.

    Raises:
        ConfigError: when dev has entities of types that nothing teaches, or the corpora have further labels of words
            than the tagger that learns from them.
    """
    data, trees = job.data, tagger_class(job.tagger).needs_trees
    form = gold_format(data, scheme)
    read = partial(read_corpora, labels=data.labels, form=form, trees=trees)
    files = {part: [read([path]) for path in data.paths(part)] for part in PARTS if part != "test" or data.test}
    weak, term_types = read_weak_corpora(data, scheme=scheme, trees=trees)
    types = set(term_types).union(*(label_types(documents, scheme) for documents in files["train"]))
    known = set[str]() if start is None else scheme.types(start.vocabulary.labels)
    further, types = types - known, types | known
    if start is not None and further:
        if not scheme.has_entities:
            raise ConfigError(
                f"data.train: expected labels that the tagger knows ({', '.join(sorted(known))}), got "
                f"{', '.join(sorted(further))}; rename them under data.labels"
            )
        info(f"new types: {', '.join(sorted(further))}; data.labels.{min(further)}=null leaves one out")
    files["train"] = [
        weighted(mark_incomplete(documents, corpus.lacks, types=types, scheme=scheme), corpus.weight)
        for documents, corpus in zip(files["train"], data.train, strict=True)
    ]
    parts: dict[str, Documents] = {part: list(chain.from_iterable(documents)) for part, documents in files.items()}
    open_weak = open_outside(weak, outside=data.outside, types=types, scheme=scheme)
    parts["train"] = [*parts["train"], *open_weak]
    require_sentences(parts["train"], data.paths("train"))
    for path, documents in zip(data.paths("dev"), files["dev"], strict=True):
        require_sentences(documents, [path])
    require_known([*parts["dev"], *parts.get("test", ())], [*data.paths("dev"), *data.paths("test")])
    check_dev_types(parts["dev"], data.paths("dev"), types, scheme=scheme)
    lacking = further.union(*(corpus.lacks for corpus in data.train)) if start is not None else set()
    unscored = lacking - label_types(parts["dev"], scheme)
    return TrainCorpora(parts=parts, dev=files["dev"], types=types, unscored=unscored)


def trees_of(job: TrainJob) -> str:
    """Return the source of the trees, which must be the same for all corpora."""
    sources = {path: tree_source(path) for part in PARTS for path in job.data.paths(part)}
    if len(set(sources.values())) > 1:
        listed = "; ".join(f"{path}: {source}" for path, source in sources.items())
        raise ConfigError(f"data: expected trees of one parser in all corpora (concord parse), got {listed}")
    return next(iter(sources.values()))


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
    matches = words = 0
    marked: list[list[Sentence]] = []
    for document in documents:
        marked.append([])
        for sentence in document:
            spans = terms.spans(sentence)
            matches, words = matches + len(spans), words + len(sentence.words)
            marked[-1].append(replace(sentence, labels=encode_spans(spans, len(sentence.words), "BIO")))
    info(f"{matches:,} matches of the list of terms in {words:,} words")
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

    def opened(sentence: Sentence) -> Sentence:
        labels = sentence.labels or ()
        soft = allowed_labels(labels, names, lacks=types, scheme=scheme)
        closed = np.array([label == OUTSIDE and chooser.random() < outside for label in labels], dtype=bool)
        kept = ~closed[soft.words] | (soft.labels == names.index(OUTSIDE))
        return replace(sentence, soft=replace(soft, words=soft.words[kept], labels=soft.labels[kept]))

    return [[opened(sentence) for sentence in document] for document in documents]
