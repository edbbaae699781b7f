"""Read gold corpora for training and evaluation, with labels renamed as the job asks, and check them."""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from concord.models.data.sentence import Sentence, TreeError, allowed_labels, check_trees
from concord.models.errors import ConfigError
from concord.models.evaluation.metrics import gold_sequences
from concord.models.labels import LabelScheme, Span, decode_spans, encode_spans
from concord.models.layers.tree_lstm import grow_forest
from concord.models.taggers.base import Tagger
from concord.pipeline.corpora.conllu import PARSER_KEY, read_header
from concord.pipeline.corpora.corpus_format import TAG_COLUMNS, UNKNOWN_LABEL, GoldFormat
from concord.pipeline.corpora.read_corpus import GoldDocument, read_corpus
from concord.pipeline.errors import InputError
from concord.workflows.console import warn

Documents = Sequence[Sequence[Sentence]]
GOLD_TREES = "gold"


def gold_format(wanted: GoldFormat, scheme: LabelScheme) -> GoldFormat:
    """Return the format in which to read the corpora of a tagger, whose scheme decides what their labels are."""
    if not scheme.has_entities:
        return wanted.model_copy(update={"label_scheme": scheme.name})
    if not wanted.read_scheme.has_entities or wanted.label_column in TAG_COLUMNS:
        raise ConfigError(
            f"label_column: {wanted.label_column or 'the last'} holds token labels, the tagger is one of entities; "
            "train one with --set model.scheme=TOKENS"
        )
    return wanted


def read_gold_for(
    tagger: Tagger, paths: Sequence[str], *, labels: Mapping[str, str | None], form: GoldFormat | None = None
) -> Documents:
    """Read gold corpora to score a tagger on, and warn of what it cannot get right in them."""
    form = gold_format(form or GoldFormat(), tagger.vocabulary.scheme)
    documents = read_corpora(paths, labels=labels, form=form, trees=tagger.needs_trees)
    check_gold(tagger, documents, paths, labels=labels)
    return documents


def check_gold(tagger: Tagger, documents: Documents, paths: Sequence[str], *, labels: Mapping[str, str | None]) -> None:
    """Warn of what a tagger cannot get right in gold corpora that were read for it, and require a sentence in them.

    ``labels`` are those of the corpora's types and the tagger's.
    """
    require_sentences(documents, paths)
    require_known(documents, paths)
    found = label_types(documents, tagger.vocabulary.scheme)
    if not tagger.vocabulary.scheme.has_entities:
        if unknown := found - set(tagger.vocabulary.labels):
            warn(f"the tagger does not know {', '.join(sorted(unknown))} of the corpus; these count as wrong.")
        return
    if not found:
        warn("the corpus holds no entity, so every F1 is 0.")
    known = {labels.get(kind, kind) for kind in tagger.entity_types} - {None}
    if unknown := found - known:
        warn(
            f"the tagger knows {', '.join(tagger.entity_types)}; every {', '.join(sorted(unknown))} "
            "of the corpus counts as missed. --labels GPE=LOC,MISC= maps or drops types."
        )
    if found and (extra := sorted(kind for kind in known - found if kind is not None)):
        warn(
            f"the corpus has no {', '.join(extra)}; what the tagger finds of them counts as wrong. "
            f"--labels {','.join(f'{kind}=' for kind in extra)} leaves them out."
        )
    for path in paths if tagger.needs_trees else ():
        if (source := tree_source(path)) != tagger.trees:
            warn(f"the tagger learned from trees of {tagger.trees!r}, {path} has those of {source!r}.")


def require_sentences(documents: Iterable[Iterable[Sentence]], paths: Iterable[str]) -> None:
    """Raise an InputError unless corpora have at least one sentence."""
    if not any(sentence.words for document in documents for sentence in document):
        raise InputError(f"{', '.join(paths)}: expected a gold corpus with one sentence or more, got none")


def read_corpora(
    paths: Iterable[str], *, labels: Mapping[str, str | None], form: GoldFormat | None = None, trees: bool = False
) -> Documents:
    """Read the sentences of gold corpora; arguments and errors as in ``read_documents``."""
    return [document.sentences for document in read_documents(paths, labels=labels, form=form, trees=trees)]


def mark_incomplete(
    documents: Documents, lacks: Collection[str], *, types: Collection[str], scheme: LabelScheme
) -> Documents:
    """Leave open what a corpus does not say: the labels of words that are not known, and whether its outside words are
    of the entity types that it lacks; ``types`` are all that there are.
    """
    if lacks and (unknown := set(lacks) - (set(types) if scheme.has_entities else set())):
        raise ConfigError(
            f"data.train: lacks: expected entity types of the other corpora ({', '.join(sorted(types))}), "
            f"got {', '.join(sorted(unknown))}"
        )
    if not lacks and not has_unknown(documents):
        return documents
    names = scheme.label_set(types)

    def marked(sentence: Sentence) -> Sentence:
        if sentence.labels is None or not (lacks or sentence.known):
            return sentence
        soft = allowed_labels(sentence.labels, names, lacks=lacks, scheme=scheme, known=sentence.known)
        return replace(sentence, soft=soft)

    return [[marked(sentence) for sentence in document] for document in documents]


def has_unknown(documents: Documents) -> bool:
    """Return whether the gold label of a word is not known."""
    return any(sentence.known is not None for document in documents for sentence in document)


def require_entities(documents: Documents, paths: Iterable[str], scheme: LabelScheme) -> set[str]:
    """Return the entity types of gold corpora to compare taggers on; InputError if they have no entity."""
    found = label_types(documents, scheme)
    if not found:
        raise InputError(f"{', '.join(paths)}: expected a corpus with entities, got none")
    return found


def require_known(documents: Documents, paths: Iterable[str]) -> None:
    """Raise an InputError unless all gold labels of corpora are known, so that a tagger can be scored on them."""
    if has_unknown(documents):
        raise InputError(
            f"{', '.join(paths)}: expected the labels of all words, to score a tagger on them, got words labelled "
            f"{UNKNOWN_LABEL!r}, which are for training only"
        )


def check_dev_types(dev: Documents, paths: Sequence[str], known: set[str], *, scheme: LabelScheme) -> None:
    """Raise ConfigError for entity types, and warn of token labels, that a tagger cannot learn from its corpora."""
    where = ", ".join(paths)
    unseen = label_types(dev, scheme) - known
    if unseen and scheme.has_entities:
        raise ConfigError(
            f"{where}: holds entities of type {', '.join(sorted(unseen))}, the training corpora hold none; "
            f"map or drop them under data.labels (--set data.labels.{min(unseen)}=null)"
        )
    if unseen:
        warn(f"{where} holds {', '.join(sorted(unseen))}, the training corpora do not; these labels count as wrong.")


def read_documents(
    paths: Iterable[str], *, labels: Mapping[str, str | None], form: GoldFormat | None = None, trees: bool = False
) -> list[GoldDocument]:
    """Read gold corpora as one list of documents with their names.

    Args:
        labels: entity type or token label of the corpora -> the one to use, None for no entity; others stay.
        trees: whether every sentence must have a tree.

    Raises:
        ConfigError: when a token label is mapped to None.
        InputError: with file and line, when one cannot be read; with file and sentence, when a tree is missing.
    """
    form = form or GoldFormat()
    documents: list[GoldDocument] = []
    for path in paths:
        found = read_corpus(Path(path), form).documents
        if trees:
            _check_trees(found, path)
        documents += found
    if not labels:
        return documents
    return [
        replace(document, sentences=tuple(relabel(document.sentences, labels, scheme=form.read_scheme)))
        for document in documents
    ]


def weighted(documents: Documents, weight: float) -> Documents:
    """Repeat documents as often as the weight says, and a fixed random choice of them for its fraction.

    At least one is left of a corpus, however small the weight.
    """
    whole, fraction = divmod(weight, 1)
    number = max(round(fraction * len(documents)), 0 if whole else min(1, len(documents)))
    chosen = random.Random(0).sample(range(len(documents)), number)
    return [*(list(documents) * int(whole)), *(documents[index] for index in sorted(chosen))]


def relabel(sentences: Iterable[Sentence], labels: Mapping[str, str | None], *, scheme: LabelScheme) -> list[Sentence]:
    """Rename the entity types, or the token labels, of sentences; None removes the entities of a type."""
    return [
        sentence
        if sentence.labels is None
        else replace(sentence, labels=rename(sentence.labels, labels, scheme=scheme))
        for sentence in sentences
    ]


def rename(sequence: Sequence[str], labels: Mapping[str, str | None], *, scheme: LabelScheme) -> tuple[str, ...]:
    """Rename the entity types, or the token labels, of a sentence's labels; None removes the entities of a type."""
    return _rename_types(sequence, labels) if scheme.has_entities else _rename_labels(sequence, labels)


def tree_source(path: str) -> str:
    """Return the signature of the parser that made a corpus' trees; ``gold`` when no parser did."""
    return read_header(Path(path)).get(PARSER_KEY, GOLD_TREES)


def label_types(documents: Documents, scheme: LabelScheme) -> set[str]:
    """Return the entity types of gold labels, or the labels themselves where each word has one."""
    return {span.label for labels in gold_sequences(documents) for span in scheme.scored_spans(labels)}


def short_names(paths: Iterable[str]) -> str:
    """Return the names of files, each with its folder's, for a title."""
    return ", ".join("/".join(Path(path).parts[-2:]) for path in paths)


def without_labels(documents: Documents) -> Documents:
    """Remove the gold labels, since a tagger may not know all of their types."""
    return [[replace(sentence, labels=None) for sentence in document] for document in documents]


def _check_trees(documents: Iterable[GoldDocument], path: str) -> None:
    for document in documents:
        try:
            check_trees(document.sentences)
            grow_forest(document.sentences)
        except TreeError as error:
            raise InputError(f"{path}: {error}") from error


def _rename_types(sequence: Sequence[str], labels: Mapping[str, str | None]) -> tuple[str, ...]:
    wanted = [
        Span(span.start, span.end, kind)
        for span in decode_spans(sequence, "BIO")
        if (kind := labels.get(span.label, span.label)) is not None
    ]
    return encode_spans(wanted, len(sequence), "BIO")


def _rename_labels(sequence: Sequence[str], labels: Mapping[str, str | None]) -> tuple[str, ...]:
    renamed = []
    for label in sequence:
        wanted = labels.get(label, label)
        if wanted is None:
            raise ConfigError(f"labels.{label}: expected a label, since every word has one, got null")
        renamed.append(wanted)
    return tuple(renamed)
