"""Claims about the taggers, answered by resampling documents and seeds of two rows, and corrected for their number.

The answers to one question on several corpora are pooled.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from statistics import NormalDist

import numpy as np

from concord.models.evaluation.significance import Difference, f1, holm, resampled_differences
from research.grid.config import ClaimConfig, GridConfig, TableConfig
from research.grid.records import Record
from research.grid.rows import RowRecords, row_records
from research.grid.scores import bootstrap_p

NOT_RUN = "not run"
RESAMPLES = 10_000
FINE_RESAMPLES = 100_000
"""For a small p, of which 10,000 resamples have few on the rarer side of 0: correction multiplies the error."""
FEWEST_SEEDS = 3
ALPHA = 0.05
_QUANTILE = NormalDist().inv_cdf(1 - ALPHA / 2)
EARLIER = "†"
"""Marks what comes from records of an earlier configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A claim with its figure and, if it could be tested, its p-value alone and among all claims."""

    claim: ClaimConfig
    place: str
    """Title of the table."""
    corpus: str
    """Folder of its corpus."""
    figure: str = ""
    answer: str = ""
    p: float | None = None
    corrected: float | None = None
    difference: Difference | None = None
    is_earlier: bool = False


def answer_claims(grid: GridConfig, records: Mapping[str, Record]) -> list[Answer]:
    """Answer every claim for each of its tables; p-values are corrected over all that could be tested (Holm, 1979)."""
    answers = [_examine(claim, grid.tables[name], grid, records) for claim in grid.claims for name in claim.tables]
    corrected = iter(holm([answer.p for answer in answers if answer.p is not None]))
    return [
        answer
        if answer.p is None or answer.difference is None
        else replace(answer, corrected=(own := next(corrected)), answer=_decide(answer.difference, answer.p, own))
        for answer in answers
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class PooledAnswer:
    """The answer to one question over all corpora on which it could be tested."""

    question: str
    corpora: Mapping[str, Difference]
    """Folder of a corpus -> the difference there."""
    difference: Difference
    p: float
    corrected: float
    """The p-value among those of all questions."""
    answer: str
    is_earlier: bool


def pool_answers(answers: Sequence[Answer]) -> list[PooledAnswer]:
    """Pool the tested answers to each question by the inverse of their variance, as of corpora with one true effect.

    The variance is that of a normal distribution with the answer's interval. Tables of one corpus share its documents,
    so their differences count as one: the mean, with the mean of the deviations, as if they were fully correlated.
    p-values are those of a normal distribution, corrected over the questions (Holm, 1979).
    """
    asked: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer.claim.question is not None and answer.p is not None:
            asked.setdefault(answer.claim.question, []).append(answer)
    pooled = [_pool(question, found) for question, found in asked.items()]
    return [
        replace(found, corrected=corrected, answer=_decide(found.difference, found.p, corrected))
        for found, corrected in zip(pooled, holm([found.p for found in pooled]), strict=True)
    ]


def _pool(question: str, answers: Sequence[Answer]) -> PooledAnswer:
    by_corpus: defaultdict[str, list[Difference]] = defaultdict(list)
    for answer in answers:
        if answer.difference is not None:
            by_corpus[answer.corpus].append(answer.difference)
    corpora = {corpus: _mean(differences) for corpus, differences in by_corpus.items()}
    weights = [_deviation(found) ** -2 for found in corpora.values()]
    mean = float(np.average([found.mean for found in corpora.values()], weights=weights))
    deviation = sum(weights) ** -0.5
    return PooledAnswer(
        question=question,
        corpora=corpora,
        difference=Difference(mean=mean, low=mean - _QUANTILE * deviation, high=mean + _QUANTILE * deviation),
        p=2 * NormalDist().cdf(-abs(mean) / deviation),
        corrected=1.0,
        answer="",
        is_earlier=any(answer.is_earlier for answer in answers),
    )


def _mean(differences: Sequence[Difference]) -> Difference:
    mean, low, high = (statistics.mean(values) for values in zip(*map(astuple, differences), strict=True))
    return Difference(mean=mean, low=low, high=high)


def _deviation(difference: Difference) -> float:
    return (difference.high - difference.low) / (2 * _QUANTILE)


def compare(better: RowRecords, worse: RowRecords, *, measure: str) -> tuple[Difference, float]:
    """Compare two rows on test, or on dev where a run has no test set; return the difference and its p-value.

    Args:
        measure: as in ClaimConfig; ``draft`` compares the final labels of `better` with the drafts of the same runs.

    Raises:
        ValueError: when the two were not scored on the same documents.
    """
    split = "test" if better.has("test") and worse.has("test") else "dev"
    if measure == "draft":
        first = _gains(better, split)
        second, score = np.zeros_like(first[:1]), _f1_difference
    elif measure == "refinement":
        first, second, score = _gains(better, split), _gains(worse, split), _f1_difference
    elif measure == "recurring_less_once":
        first, second = (
            np.concatenate([found.counts(split, "recurring"), found.counts(split, "once")], axis=-1)
            for found in (better, worse)
        )
        score = _f1_difference
    else:
        name, score = ("recurring", _recall) if measure == "recall" else (measure, f1)
        first, second = better.counts(split, name), worse.counts(split, name)
    drawn = resampled_differences(first, second, resamples=RESAMPLES, score=score)
    if bootstrap_p(drawn) < ALPHA:
        drawn = resampled_differences(first, second, resamples=FINE_RESAMPLES, score=score)
    low, high = np.percentile(drawn, [50 * ALPHA, 100 - 50 * ALPHA])
    mean = score(first.sum(axis=1)).mean() - score(second.sum(axis=1)).mean()
    return Difference(mean=float(mean), low=float(low), high=float(high)), bootstrap_p(drawn)


def _gains(found: RowRecords, split: str) -> np.ndarray:
    """Return the counts of final labels beside those of drafts, shape ``(seeds, units, 6)``."""
    return np.concatenate([found.counts(split, "all"), found.counts(split, "all", "draft")], axis=-1)


def _f1_difference(sums: np.ndarray) -> np.ndarray:
    difference: np.ndarray = f1(sums[..., :3]) - f1(sums[..., 3:])
    return difference


def _recall(sums: np.ndarray) -> np.ndarray:
    """Return the recall of summed counts in percent; 0 where there is no gold."""
    recall: np.ndarray = 100.0 * sums[..., 2] / np.maximum(sums[..., 0], 1)
    return recall


def _examine(claim: ClaimConfig, table: TableConfig, grid: GridConfig, records: Mapping[str, Record]) -> Answer:
    answer = Answer(claim=claim, place=table.title, corpus=grid.corpora[table.corpus].folder)
    if claim.untestable is not None:
        return replace(answer, answer=f"not testable: {claim.untestable}")
    rows = {row.own_key: row for row in table.rows}
    keys = [key for key in (claim.better, claim.worse) if key is not None]
    sides = [row_records(table, rows[key], records, grid) for key in keys]
    if not all(side.records for side in sides):
        return replace(answer, answer=NOT_RUN)
    answer = replace(answer, is_earlier=any(side.changes for side in sides))
    if claim.measure == "uncertainty":
        return _uncertainty_ratio(answer, sides[0])
    return _test(answer, sides[0], sides[-1])


def _test(answer: Answer, better: RowRecords, worse: RowRecords) -> Answer:
    try:
        difference, p = compare(better, worse, measure=answer.claim.measure)
    except ValueError:
        return replace(answer, answer="open: scored on different documents, one by an earlier configuration")
    sides = [better] if worse is better else [better, worse]
    seeds = " and ".join(str(len(side.records)) for side in sides)
    figure = f"{difference.mean:+.1f} ({difference.low:+.1f} to {difference.high:+.1f}), seeds {seeds}"
    answer = replace(answer, figure=figure, difference=difference)
    below = [side.row.title for side in sides if side.is_below_floor]
    if below and not answer.claim.about_inputs:
        return replace(answer, answer=f"not testable: {', '.join(below)} below the floor")
    if min(len(side.records) for side in sides) < FEWEST_SEEDS:
        return replace(answer, answer=f"open: fewer than {FEWEST_SEEDS} seeds")
    return replace(answer, p=p)


def _decide(difference: Difference, p: float, corrected: float) -> str:
    side = "yes" if difference.mean > 0 else "no"
    if corrected < ALPHA:
        return side
    return f"undecided; {side} if asked alone" if p < ALPHA else "undecided"


def _uncertainty_ratio(answer: Answer, found: RowRecords) -> Answer:
    split = "test" if found.has("test") else "dev"
    ratios: Sequence[float] = found.values(split, "uncertainty", "ratio")
    if not ratios:
        return replace(answer, answer=NOT_RUN)
    mean, paper = statistics.mean(ratios), answer.claim.paper
    figure = f"{mean:.1f} times ({min(ratios):.1f} to {max(ratios):.1f}), seeds {len(ratios)}"
    if paper is None:
        return replace(answer, figure=figure)
    figure += f"; {mean / paper:.2f} of the paper's {paper:g}"
    if len(ratios) < FEWEST_SEEDS:
        return replace(answer, figure=figure, answer=f"open: fewer than {FEWEST_SEEDS} seeds")
    inside = "yes" if min(ratios) >= paper else "more uncertain, by less" if min(ratios) > 1 else "no"
    return replace(answer, figure=figure, answer=inside)
