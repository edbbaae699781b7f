"""Paired significance tests of the labels of two taggers, A and B: overall, by entity type, and by slice.

All scores are percentages: strict span F1, or accuracy for token labels and for the words of names that occur again in
their document (Co-Acc). Differences are B minus A.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np

from concord.models.evaluation import significance
from concord.models.evaluation.breakdown import co_occurrence_scores
from concord.models.evaluation.metrics import group_counts_by_document
from concord.models.evaluation.significance import Difference, UnitCounts
from concord.models.labels.schemes import BIO, LabelScheme
from concord.models.labels.spans import Span
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.workflows.evaluation.slices import SliceFinder

Kind = Literal["all", "type", "co_occurrence", "slice"]
Verdict = Literal["better", "worse", "undecided"]
DocumentLabels = Sequence[Sequence[Sequence[str]]]
"""Labels of the sentences of each document, in BIO2 or token labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Procedure:
    """Parameters of the tests.

    Attributes:
        alpha: significance level, for all lines of a comparison together.
    """

    alpha: float = 0.05
    rounds: int = 10_000
    resamples: int = 2000
    seed: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a comparison, in percent and percentage points.

    Attributes:
        name: the entity type or the slice; otherwise the kind.
        first, second: scores of A and B.
        difference: B minus A, with its bootstrap interval.
        p: of the randomisation test.
        corrected: p after Holm's correction over all lines.
        detectable: the smallest difference that this data detects at level alpha with a power of 80 %; None if the
            variance of the difference is unknown.
        differing: documents in which the counts of A and B differ.
        verdict: ``better`` or ``worse`` if ``corrected`` is below alpha.
    """

    kind: Kind
    name: str
    first: float
    second: float
    difference: Difference
    p: float
    corrected: float
    detectable: float | None
    differing: int
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentChange:
    """A document in which one tagger is correct where the other is wrong, counted in entities or words.

    Attributes:
        number: index of the document.
        fixed: what is correct only in B.
        broken: what is correct only in A.
    """

    number: int
    fixed: int
    broken: int


def compare_labels(
    documents: Sequence[GoldDocument],
    first: DocumentLabels,
    second: DocumentLabels,
    *,
    procedure: Procedure,
    find_slices: SliceFinder | None = None,
    scheme: LabelScheme = BIO,
) -> list[Line]:
    """Test two taggers' labels overall, by entity type, for words that occur again and by slice, in this order.

    Args:
        scheme: of the labels; token labels have neither types nor names.
    """
    gold = _gold(documents)
    kinds = {span.label for labels in gold for sentence in labels for span in scheme.scored_spans(sentence)}

    def groups(number: int, position: int, span: Span) -> Iterable[tuple[Kind, str]]:
        yield "all", "all"
        if scheme.has_entities and len(kinds) > 1 and span.label in kinds:
            yield "type", span.label
        for name in find_slices(number, position, span) if find_slices else ():
            yield "slice", name

    counts = [group_counts_by_document(gold, labels, groups, scheme=scheme) for labels in (first, second)]
    if scheme.has_entities:
        for groups_of_tagger, labels in zip(counts, (first, second), strict=True):
            words = _co_occurrences(documents, labels)
            if words.any():
                groups_of_tagger["co_occurrence", "Co-Acc"] = words
    zeros = np.zeros((len(documents), 3), dtype=np.int64)
    keys = sorted(counts[0].keys() | counts[1].keys(), key=lambda key: (get_args(Kind).index(key[0]), key[1]))
    pairs = {key: (counts[0].get(key, zeros), counts[1].get(key, zeros)) for key in keys}
    test = partial(significance.randomisation_test, rounds=procedure.rounds, seed=procedure.seed)
    p_values = [test(*pair) for pair in pairs.values()]
    return [
        _line(*key, *pair, p=p, corrected=corrected, procedure=procedure)
        for (key, pair), p, corrected in zip(pairs.items(), p_values, significance.holm(p_values), strict=True)
    ]


def changed_documents(
    documents: Sequence[GoldDocument], first: DocumentLabels, second: DocumentLabels, *, scheme: LabelScheme = BIO
) -> list[DocumentChange]:
    """Return the documents in which one tagger is correct where the other is wrong, most changes first.

    An entity that is missing, spurious, or has wrong boundaries or a wrong type is wrong.
    """
    changes = []
    for number, labels in enumerate(zip(_gold(documents), first, second, strict=True)):
        gold, *predicted = (_spans(predicted_labels, scheme) for predicted_labels in labels)
        wrong_first, wrong_second = (gold ^ spans for spans in predicted)
        fixed, broken = len(wrong_first - wrong_second), len(wrong_second - wrong_first)
        if fixed or broken:
            changes.append(DocumentChange(number=number, fixed=fixed, broken=broken))
    return sorted(changes, key=lambda change: (-change.fixed - change.broken, change.number))


def describe_line(line: Line, *, unit: str) -> str:
    """Return what a line shows as one sentence."""
    mean, low, high = line.difference.mean, line.difference.low, line.difference.high
    if line.detectable is None:
        exception = f" except {line.differing}" if line.differing else ""
        return f"A and B cannot be told apart: their scores are the same in every document{exception}."
    p = f"p = {line.p:.2g}" if line.p == line.corrected else f"p = {line.p:.2g} ({line.corrected:.2g} by Holm)"
    detectable = f"this data can detect {line.detectable:.1f}"
    if line.verdict == "undecided":
        return (
            f"A and B cannot be told apart: B - A is {mean:+.1f} {unit} ({low:+.1f} to {high:+.1f}), {p}; {detectable}."
        )
    if line.verdict == "worse":
        mean, low, high = -mean, -high, -low
    return f"B is {line.verdict} by {mean:.1f} {unit} ({low:.1f} to {high:.1f}), {p}; {detectable}."


def _gold(documents: Sequence[GoldDocument]) -> list[list[Sequence[str]]]:
    return [[sentence.labels or () for sentence in document.sentences] for document in documents]


def _co_occurrences(documents: Sequence[GoldDocument], predicted: DocumentLabels) -> UnitCounts:
    """Count the words of ``co_occurrence_scores`` twice, and those that are right: their F1 is the accuracy."""
    pairs = zip(documents, predicted, strict=True)
    scores = [co_occurrence_scores([document.sentences], labels) for document, labels in pairs]
    return np.array([(found.words, found.words, found.correct) for found in scores], dtype=np.int64).reshape(-1, 3)


def _spans(labels: Sequence[Sequence[str]], scheme: LabelScheme) -> set[tuple[int, Span]]:
    return {(position, span) for position, sentence in enumerate(labels) for span in scheme.scored_spans(sentence)}


def _line(
    kind: Kind, name: str, first: UnitCounts, second: UnitCounts, *, p: float, corrected: float, procedure: Procedure
) -> Line:
    difference = significance.paired_bootstrap(
        second[None], first[None], resamples=procedure.resamples, seed=procedure.seed, alpha=procedure.alpha
    )
    return Line(
        kind=kind,
        name=name,
        first=float(significance.f1(first.sum(axis=0))),
        second=float(significance.f1(second.sum(axis=0))),
        difference=difference,
        p=p,
        corrected=corrected,
        detectable=significance.detectable_difference(first, second, alpha=procedure.alpha),
        differing=int((first != second).any(axis=1).sum()),
        verdict="undecided" if corrected >= procedure.alpha else "better" if difference.mean > 0 else "worse",
    )
