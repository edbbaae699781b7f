"""The labels of two taggers, A and B, tested against each other over documents, for the whole and for its parts.

Everything stands in percentage points of strict span F1, of the share of recurring names' mentions that agree, or of
the accuracy of token labels. Differences are B less A.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from concord.models.evaluation.document_counts import consistency_counts_by_document, group_counts_by_document
from concord.models.evaluation.significance import (
    Difference,
    UnitCounts,
    detectable_difference,
    f1,
    holm,
    paired_bootstrap,
    randomisation_test,
)
from concord.models.labels import Span
from concord.models.schemes import BIO, LabelScheme
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.workflows.comparison.slices import SlicesOf

Kind = Literal["all", "type", "consistency", "slice"]
Verdict = Literal["better", "worse", "undecided"]
DocumentLabels = Sequence[Sequence[Sequence[str]]]
"""Labels of each document's sentences, in BIO2 or token labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Procedure:
    """How to test.

    Attributes:
        alpha: share of false alarms over all lines of a comparison together.
        rounds: of the randomisation test.
        resamples: of the bootstrap.
    """

    alpha: float = 0.05
    rounds: int = 10_000
    resamples: int = 2000
    seed: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a comparison, in percent and percentage points.

    Attributes:
        name: of the entity type or the slice, else that of the kind.
        first, second: scores of A and B.
        difference: B less A, with its bootstrap interval.
        p: of the randomisation test.
        corrected: p by Holm's correction over all lines.
        detectable: the least difference that this data shows in four of five cases at the level alpha; None where
            nothing says how the difference varies.
        differing: documents on which A and B have other counts.
        verdict: better or worse where ``corrected`` is below alpha.
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
    """What B has right in a document and A wrong, and the other way about, in names or words.

    Attributes:
        number: of the document among those compared, from 0 on.
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
    slices: SlicesOf | None = None,
    scheme: LabelScheme = BIO,
) -> list[Line]:
    """Test two taggers' labels: all names, each entity type, recurring names, each slice; the whole comes first.

    Args:
        documents: with gold labels.
        slices: names the slices of a span.
        scheme: of the labels; word labels have neither types nor recurring names.
    """
    gold = _gold(documents)
    kinds = {span.label for labels in gold for sentence in labels for span in scheme.scored_spans(sentence)}

    def groups(number: int, place: int, span: Span) -> Iterable[tuple[Kind, str]]:
        yield "all", "all"
        if scheme.has_entities and len(kinds) > 1 and span.label in kinds:
            yield "type", span.label
        for name in slices(number, place, span) if slices else ():
            yield "slice", name

    counts = [group_counts_by_document(gold, labels, groups, scheme=scheme) for labels in (first, second)]
    if scheme.has_entities:
        sentences = [document.sentences for document in documents]
        recurring = [consistency_counts_by_document(sentences, labels) for labels in (first, second)]
        if all(found.any() for found in recurring):
            for found, own in zip(counts, recurring, strict=True):
                found["consistency", "consistency"] = own
    nothing = np.zeros((len(documents), 3), dtype=np.int64)
    pairs = {key: (counts[0].get(key, nothing), counts[1].get(key, nothing)) for key in _in_order(counts)}
    p_values = [randomisation_test(*pair, rounds=procedure.rounds, seed=procedure.seed) for pair in pairs.values()]
    return [
        _line(*key, *pair, p=p, corrected=corrected, procedure=procedure)
        for (key, pair), p, corrected in zip(pairs.items(), p_values, holm(p_values), strict=True)
    ]


def changed_documents(
    documents: Sequence[GoldDocument], first: DocumentLabels, second: DocumentLabels, *, scheme: LabelScheme = BIO
) -> list[DocumentChange]:
    """Give the documents in which one tagger is right where the other is wrong, most such places first.

    A name that is missed, wrongly found, or found with another extent or type is wrong.
    """
    changes = []
    for number, labels in enumerate(zip(_gold(documents), first, second, strict=True)):
        gold, *both = (_places(own, scheme) for own in labels)
        wrong, wrong_now = (gold ^ found for found in both)
        change = DocumentChange(number=number, fixed=len(wrong - wrong_now), broken=len(wrong_now - wrong))
        if change.fixed or change.broken:
            changes.append(change)
    return sorted(changes, key=lambda change: (-change.fixed - change.broken, change.number))


def sentence_of(line: Line, *, unit: str) -> str:
    """Say in one sentence what a line shows."""
    mean, low, high = line.difference.mean, line.difference.low, line.difference.high
    if line.detectable is None:
        return f"A and B cannot be told apart: they score alike in every document but for {line.differing}."
    p = f"p = {line.p:.2g}" if line.p == line.corrected else f"p = {line.p:.2g} ({line.corrected:.2g} by Holm)"
    shown = f"this data could have shown {line.detectable:.1f}"
    if line.verdict == "undecided":
        return f"A and B cannot be told apart: B - A is {mean:+.1f} {unit} ({low:+.1f} to {high:+.1f}), {p}; {shown}."
    if line.verdict == "worse":
        mean, low, high = -mean, -high, -low
    return f"B is {line.verdict} by {mean:.1f} {unit} ({low:.1f} to {high:.1f}), {p}; {shown}."


def _gold(documents: Sequence[GoldDocument]) -> list[list[Sequence[str]]]:
    return [[sentence.labels or () for sentence in document.sentences] for document in documents]


def _places(labels: Sequence[Sequence[str]], scheme: LabelScheme) -> set[tuple[int, Span]]:
    return {(place, span) for place, sentence in enumerate(labels) for span in scheme.scored_spans(sentence)}


def _in_order(counts: Iterable[Iterable[tuple[Kind, str]]]) -> list[tuple[Kind, str]]:
    kinds = get_args(Kind)
    return sorted({key for found in counts for key in found}, key=lambda key: (kinds.index(key[0]), key[1]))


def _line(
    kind: Kind, name: str, first: UnitCounts, second: UnitCounts, *, p: float, corrected: float, procedure: Procedure
) -> Line:
    difference = paired_bootstrap(
        second[None], first[None], resamples=procedure.resamples, seed=procedure.seed, alpha=procedure.alpha
    )
    decided = corrected < procedure.alpha
    return Line(
        kind=kind,
        name=name,
        first=float(f1(first.sum(axis=0))),
        second=float(f1(second.sum(axis=0))),
        difference=difference,
        p=p,
        corrected=corrected,
        detectable=detectable_difference(first, second, alpha=procedure.alpha),
        differing=int((first != second).any(axis=1).sum()),
        verdict="undecided" if not decided else "better" if difference.mean > 0 else "worse",
    )
