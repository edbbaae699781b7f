"""Gold, predicted and correct counts of each document: what tests and intervals over documents start from."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from concord.models.data.sentence import Sentence
from concord.models.evaluation.breakdown import name_of, recurring_names
from concord.models.evaluation.consistency import consistency, name_labels
from concord.models.evaluation.metrics import Labels, gold_sequences, paired_spans
from concord.models.labels import Span
from concord.models.schemes import BIO, TOKENS, LabelScheme

MEASURES = ("all", "multi_word", "recurring", "once")
Group = TypeVar("Group", bound=Hashable)


def group_counts_by_document(
    gold: Sequence[Labels],
    predicted: Sequence[Labels],
    groups: Callable[[int, int, Span], Iterable[Group]],
    *,
    scheme: LabelScheme = BIO,
) -> dict[Group, np.ndarray]:
    """Count gold, predicted and correct spans of each document for every group: shape ``(documents, 3)``, int64.

    Args:
        gold, predicted: the labels of each document's sentences; ValueError if they differ in number.
        groups: maps the index of a document, the index of a sentence in it and a span of that to the span's groups.
    """
    counts: defaultdict[Group, np.ndarray] = defaultdict(lambda: np.zeros((len(gold), 3), dtype=np.int64))
    for document, sides in enumerate(zip(gold, predicted, strict=True)):
        for sentence, (wanted, found) in enumerate(paired_spans(*sides, scheme=scheme)):
            for span in wanted | found:
                for group in groups(document, sentence, span):
                    counts[group][document] += (span in wanted, span in found, span in wanted & found)
    return dict(counts)


def counts_by_document(
    documents: Sequence[Sequence[Sentence]], predicted: Sequence[Labels]
) -> dict[str, list[list[int]]]:
    """Count gold, predicted and correct entities of each document, a triple per document for each measure.

    The measures are ``all``, ``multi_word`` for names of two words or more, ``recurring`` for the ``recurring_names``
    of the document, and ``once`` for its other names.
    """
    recurring = [recurring_names(document) for document in documents]

    def measures(document: int, sentence: int, span: Span) -> Iterable[str]:
        name = name_of(documents[document][sentence], span)
        return "all", *(["multi_word"] if len(name) > 1 else []), "recurring" if name in recurring[document] else "once"

    counts = group_counts_by_document([gold_sequences([document]) for document in documents], predicted, measures)
    return {measure: _triples(counts.get(measure), documents) for measure in MEASURES}


def label_counts_by_document(
    documents: Sequence[Sequence[Sentence]], predicted: Sequence[Labels]
) -> dict[str, list[list[int]]]:
    """Count the words of each document twice and its correct labels, so that the F1 of the counts is the accuracy."""
    gold = [gold_sequences([document]) for document in documents]
    counts = group_counts_by_document(gold, predicted, lambda *_: ("all",), scheme=TOKENS)
    return {"all": _triples(counts.get("all"), documents)}


def consistency_counts_by_document(documents: Sequence[Sequence[Sentence]], predicted: Sequence[Labels]) -> np.ndarray:
    """Count the occurrences of recurring gold names twice, and those that agree, by document, shape ``(documents, 3)``.

    The F1 of the counts is the share of occurrences that agree, in percent (``evaluation.consistency``).
    """
    rows = []
    for document, labels in zip(documents, predicted, strict=True):
        labelled = [(sentence.words, own) for sentence, own in zip(document, labels, strict=True)]
        found = consistency(name_labels(labelled, naming=gold_sequences([document])))
        rows.append((found.occurrences, found.occurrences, found.agreeing))
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _triples(counts: np.ndarray | None, documents: Sequence[object]) -> list[list[int]]:
    triples: list[list[int]] = [[0, 0, 0]] * len(documents) if counts is None else counts.tolist()
    return triples
