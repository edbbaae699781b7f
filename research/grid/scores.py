"""Scores and counts that only the grid compares: entities by document, the score of NCRF++, p of the bootstrap."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import Labels, Scores, gold_sequences, group_counts_by_document, name_of
from concord.models.evaluation.significance import ROUNDING
from concord.models.labels import TOKENS, Span, split_label
from research.breakdown import recurring_names

MEASURES = ("all", "multi_word", "recurring", "once")


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


def lenient_scores(gold: Labels, predicted: Labels) -> Scores:
    """Score BIOES label sequences by NCRF++'s rules, by which Ye et al. and Cui and Zhang scored theirs.

    An entity has the type of its ``B-``. It ends with the next ``E-`` of whatever type, or before the next ``B-`` or
    ``S-``; other labels in between are skipped. One that is open at the end of the sentence is its first word alone. So
    malformed entities count, which the strict score drops. But one that ends after its first word, before a ``B-`` or
    ``S-``, is never right: NCRF++ writes it from ``i`` to ``i``, and an ``S-`` as ``i`` alone. Both scores are equal
    where no entity is malformed.
    """
    counts = Scores()
    for wanted, found in zip(gold, predicted, strict=True):
        right, guessed = set(_lenient_spans(wanted)), set(_lenient_spans(found))
        counts += Scores(gold=len(right), predicted=len(guessed), correct=len(right & guessed))
    return counts


def _lenient_spans(labels: Sequence[str]) -> Iterator[tuple[int, int | None, str]]:
    """Yield the first word, the last word and the type of each entity; no last word where NCRF++ writes none."""
    start, open_kind = 0, ""
    for place, label in enumerate(labels):
        prefix, kind = split_label(label)
        if open_kind and prefix in {"B", "S", "E"}:
            yield start, place if prefix == "E" else place - 1, open_kind
            open_kind = ""
        if prefix == "S":
            yield place, None, kind
        elif prefix == "B":
            start, open_kind = place, kind
    if open_kind:
        yield start, None, open_kind


def bootstrap_p(differences: np.ndarray) -> float:
    """Return the two-sided p-value of no difference, from resampled differences of shape ``(resamples,)``.

    It inverts the percentile interval (Efron and Tibshirani, 1993, chapter 15): twice the share of differences on the
    rarer side of 0, those that are 0 included. So it is below alpha where the interval of ``1 - alpha`` excludes 0. The
    observed difference counts as a resample, which keeps p above 0.
    """
    rarer = min(int((differences <= ROUNDING).sum()), int((differences >= -ROUNDING).sum()))
    return min(1.0, 2 * (rarer + 1) / (len(differences) + 1))


def _triples(counts: np.ndarray | None, documents: Sequence[object]) -> list[list[int]]:
    triples: list[list[int]] = [[0, 0, 0]] * len(documents) if counts is None else counts.tolist()
    return triples
