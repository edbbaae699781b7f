"""Gold, predicted and correct counts of each document: what tests and intervals over documents start from."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from concord.models.data.sentence import Sentence
from concord.models.evaluation.consistency import consistency, name_labels
from concord.models.evaluation.metrics import Labels, gold_sequences, paired_spans
from concord.models.labels import Span
from concord.models.schemes import BIO, LabelScheme

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
