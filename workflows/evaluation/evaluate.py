"""Evaluation of a tagger on a gold corpus: strict scores of entities, or of token labels, as a result and as text.

All lines are of the same spans: overall, by type, seen and unseen in training, and by language. With token labels each
word is a span by itself, so that F1, precision and recall over all words are the accuracy.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.data.outputs import DEFAULT_OPTIONS, Prediction, PredictOptions
from concord.models.evaluation.metrics import Scores, group_counts_by_document, known_names, name_of
from concord.models.labels import LabelScheme, Span
from concord.models.taggers.base import Tagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.names.language import language_of
from concord.workflows.console import INLINE, Answer, counted, table
from concord.workflows.corpora.corpora import (
    Documents,
    gold_format,
    read_corpora,
    read_gold_for,
    rename,
    without_labels,
)

WARM_UP_DOCUMENTS = 3
SHOWN_LABELS = 60

Kind = Literal["all", "type", "novelty", "language"]
Group: TypeAlias = tuple[Kind, str]
"""Such as ``("type", "PER")``, ``("novelty", "unseen")`` or ``("language", "language pt")``."""
GroupFinder: TypeAlias = Callable[[int, int, Span], Iterable[Group]]
"""Takes the indices of a document and of a sentence in it, and a span; returns the groups of the span."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateJob:
    """A tagger and the gold corpora to score it on.

    Attributes:
        labels: renames entity types, or token labels, of the corpora and of the tagger; None drops an entity type.
        form: which column of the corpora has the labels.
        train: training corpora, which decide whether a name is seen or unseen; `labels` applies to them too.
    """

    folder: Path
    data: Sequence[str]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    form: GoldFormat = field(default_factory=GoldFormat)
    train: Sequence[str] = ()
    device: str = "cpu"
    options: PredictOptions = DEFAULT_OPTIONS


Parts: TypeAlias = Mapping[str, Scores]
"""Name of a part of the spans -> its scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The scores of a tagger.

    Attributes:
        scores: for ``all``, and of each entity type or token label.
        by_novelty: of names that are ``seen`` or ``unseen`` in the training corpora; empty if none are given.
        by_language: empty unless the documents are in two languages or more.
        accuracy: of token labels, in percent; None for entities.
        draft_score: what ``score`` is, of the labels of stage one.
        refined_words: words whose label stage two decided.
    """

    documents: int
    sentences: int
    words: int
    scores: Parts
    by_novelty: Parts
    by_language: Parts
    accuracy: float | None
    draft_score: float
    refined_words: int
    seconds: float
    words_per_second: float

    @property
    def score(self) -> float:
        """The overall F1 of entities, or the accuracy of token labels, in percent."""
        return self.scores["all"].f1


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationReport:
    """The scores of a tagger and what they are of; the threshold is in nats."""

    tagger: str
    digest: str
    data: Sequence[str]
    train: Sequence[str]
    threshold: float | None
    evaluation: Evaluation = field(metadata=INLINE)


def evaluate_command(job: EvaluateJob) -> Answer:
    """Score a tagger.

    Raises:
        ConfigError: when the corpora have no labels for this tagger.
        ModelError: when it does not load.
        InputError: when a corpus cannot be read, or there is no sentence in them.
    """
    tagger = load_tagger(job.folder, device=job.device)
    report = EvaluationReport(
        tagger=tagger.name,
        digest=tagger_digest(job.folder),
        data=job.data,
        train=job.train,
        threshold=tagger.threshold if job.options.threshold is None else job.options.threshold,
        evaluation=score_tagger(tagger, read_gold_for(tagger, job.data, labels=job.labels, form=job.form), job),
    )
    return Answer.of(report, text=_describe(report))


def score_tagger(tagger: Tagger, documents: Documents, job: EvaluateJob) -> Evaluation:
    """Return the scores of a tagger in percent, and its speed in words a second."""
    predicted, seconds = predict_timed(tagger, documents, job.options)
    return score_predictions(tagger, documents, predicted, seconds, job)


def predict_timed(
    tagger: Tagger, documents: Documents, options: PredictOptions
) -> tuple[list[list[Prediction]], float]:
    """Label documents without their gold labels; return predictions and the seconds they took after a warm-up."""
    plain = without_labels(documents)
    tagger.predict_documents(plain[:WARM_UP_DOCUMENTS], options)
    started = time.perf_counter()
    predicted = tagger.predict_documents(plain, options)
    return predicted, time.perf_counter() - started


def score_predictions(
    tagger: Tagger, documents: Documents, predicted: Sequence[Sequence[Prediction]], seconds: float, job: EvaluateJob
) -> Evaluation:
    """Return what ``score_tagger`` does, from existing predictions."""
    scheme, words = tagger.vocabulary.scheme, sum(len(sentence.words) for sentence in chain.from_iterable(documents))
    form = job.form if scheme.has_entities else gold_format(job.form, scheme)
    groups = group_finder(documents, read_known_names(job.train, labels=job.labels, form=form, scheme=scheme))

    def scored(labels: Iterable[Iterable[Sequence[str]]], groups: GroupFinder) -> dict[Kind, dict[str, Scores]]:
        renamed = [[rename(sentence, job.labels, scheme=scheme) for sentence in document] for document in labels]
        return _scores(documents, renamed, groups, scheme=scheme)

    final = scored(([labelled.labels for labelled in document] for document in predicted), groups)
    draft = scored(([labelled.draft_labels for labelled in document] for document in predicted), _all)["all"]["all"]
    whole = final["all"]["all"]
    return Evaluation(
        documents=len(documents),
        sentences=sum(map(len, documents)),
        words=words,
        scores=final["all"] | final["type"],
        by_novelty=final["novelty"],
        by_language=final["language"],
        accuracy=None if scheme.has_entities else whole.f1,
        draft_score=draft.f1,
        refined_words=sum(sum(labelled.refined) for labelled in chain.from_iterable(predicted)),
        seconds=seconds,
        words_per_second=words / seconds,
    )


def read_known_names(
    train: Sequence[str], *, labels: Mapping[str, str | None], form: GoldFormat, scheme: LabelScheme
) -> frozenset[tuple[str, ...]] | None:
    """Return the names in training corpora, by which a name counts as seen; None if there are none."""
    if not train:
        return None
    return known_names(chain.from_iterable(read_corpora(train, labels=labels, form=form)), scheme=scheme)


def group_finder(documents: Documents, known: frozenset[tuple[str, ...]] | None) -> GroupFinder:
    """Return the function that finds the groups of a span: all, its type, whether it is seen, and its language.

    Args:
        known: the names in the training corpora; None leaves out whether a name is seen.
    """
    texts = (" ".join(word for sentence in document for word in sentence.words) for document in documents)
    languages = [found.code if (found := language_of(text)) is not None else None for text in texts]
    several = len(set(languages) - {None}) > 1

    def find_groups(number: int, position: int, span: Span) -> Iterable[Group]:
        yield "all", "all"
        yield "type", span.label
        if known is not None:
            yield "novelty", "seen" if name_of(documents[number][position], span) in known else "unseen"
        if several and languages[number] is not None:
            yield "language", f"language {languages[number]}"

    return find_groups


def _all(*_: object) -> Iterable[Group]:
    yield "all", "all"


def _scores(
    documents: Documents, predicted: Sequence[Sequence[Sequence[str]]], groups: GroupFinder, *, scheme: LabelScheme
) -> dict[Kind, dict[str, Scores]]:
    """Return the scores of the groups of each kind, by their names, which are sorted."""
    gold = [[sentence.labels or () for sentence in document] for document in documents]
    found: dict[Kind, dict[str, Scores]] = {kind: {} for kind in get_args(Kind)} | {"all": {"all": Scores()}}
    for (kind, name), counts in sorted(group_counts_by_document(gold, predicted, groups, scheme=scheme).items()):
        wanted, labelled, correct = map(int, counts.sum(axis=0))
        found[kind][name] = Scores(gold=wanted, predicted=labelled, correct=correct)
    return found


def _describe(report: EvaluationReport) -> str:
    evaluation = report.evaluation
    sizes = (counted(evaluation.documents, "document"), counted(evaluation.sentences, "sentence"))
    whole, *parts = evaluation.scores.items()
    frequent = sorted(parts, key=lambda item: -item[1].gold)[:SHOWN_LABELS]
    shown = [whole, *(part for part in parts if part in frequent)]
    others = [*evaluation.by_novelty.items(), *evaluation.by_language.items()]
    rows = [(name, part.precision, part.recall, part.f1, part.gold) for name, part in [*shown, *others]]
    lines = [
        f"{report.tagger} {report.digest[:12]} on {', '.join(report.data)}",
        f"{', '.join(sizes)}, {counted(evaluation.words, 'word')}; {evaluation.words_per_second:,.0f} words/s",
        "",
        table(rows, header=("", "precision", "recall", "F1", "gold")),
    ]
    if len(parts) > SHOWN_LABELS:
        lines.append(f"and {len(parts) - SHOWN_LABELS:,} less frequent labels: --json")
    if evaluation.accuracy is not None:
        lines.append(f"accuracy {evaluation.accuracy:.2f} %")
    if report.threshold is not None:
        decided = f"stage two decided the labels of {counted(evaluation.refined_words, 'word')}"
        lines.append(f"{decided}; stage one alone: {evaluation.draft_score:.2f}")
    return "\n".join(lines)
