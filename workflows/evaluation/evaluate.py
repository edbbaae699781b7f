"""Evaluation of a tagger on a gold corpus, as a result, as text and as tables in files.

Strict spans by type, length and novelty; drafts, recurring names, uncertainty, speed. For a tagger of token labels,
accuracy as a whole and by label.
"""

import csv
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.data.options import DEFAULT_OPTIONS, PredictOptions
from concord.models.data.outputs import Prediction
from concord.models.data.sentence import Sentence
from concord.models.evaluation import breakdown
from concord.models.evaluation.metrics import (
    Labels,
    Scores,
    TokenScores,
    gold_sequences,
    seqeval_f1,
    span_scores,
    token_scores,
)
from concord.models.labels.schemes import LabelScheme
from concord.models.taggers.base import Tagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.workflows.console import INLINE, Answer, counted, plain, table
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
BREAKDOWNS = (
    "scores",
    "draft_scores",
    "label_scores",
    "by_mention_length",
    "by_sentence_length",
    "by_novelty",
    "by_position",
)
SCORE_COLUMNS = ("precision", "recall", "f1", "gold", "predicted", "correct")
PART_NAMES = {
    breakdown.SAME_TYPE: "  with this label",
    breakdown.OTHER_TYPE: "  with other labels only",
    breakdown.UNSEEN: "unseen",
    "O": "outside",
    "S": "single",
    "B": "first",
    "I": "inside",
    "E": "last",
}


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
"""Name of a part of the names or words -> its scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What the scores of all taggers have in common.

    Attributes:
        by_novelty: by whether a name is in the training corpora; None if these are not named.
        refined_words: words whose label stage two decided.
    """

    documents: int
    sentences: int
    words: int
    by_sentence_length: Parts
    by_novelty: Parts | None
    uncertainty: breakdown.UncertaintyByOutcome
    refined_words: int
    seconds: float
    words_per_second: float
    sentences_per_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EntityEvaluation(Evaluation):
    """The scores of a tagger of entities, by type and for ``all``."""

    scores: Parts
    draft_scores: Parts
    seqeval_f1: float
    by_mention_length: Parts
    by_position: Parts
    recurring_names: Scores
    draft_recurring_names: Scores
    co_occurrence: TokenScores
    draft_co_occurrence: TokenScores

    measure: ClassVar[str] = "f1"

    @property
    def score(self) -> float:
        """The overall F1, in percent."""
        return self.scores["all"].f1


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEvaluation(Evaluation):
    """The scores of a tagger of token labels; accuracy in percent."""

    accuracy: float
    draft_accuracy: float
    label_scores: Parts

    measure: ClassVar[str] = "accuracy"

    @property
    def score(self) -> float:
        """The accuracy, in percent."""
        return self.accuracy


AnyEvaluation: TypeAlias = EntityEvaluation | TokenEvaluation


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationReport:
    """The scores of a tagger and what they are of; the threshold is in nats."""

    tagger: str
    digest: str
    data: Sequence[str]
    train: Sequence[str]
    threshold: float | None
    evaluation: AnyEvaluation = field(metadata=INLINE)


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


def score_tagger(tagger: Tagger, documents: Documents, job: EvaluateJob) -> AnyEvaluation:
    """Return the scores of a tagger: percent, uncertainty in nats, speed in words a second."""
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
) -> AnyEvaluation:
    """Return what ``score_tagger`` does, from existing predictions."""
    scheme = tagger.vocabulary.scheme
    sentences, flat = list(chain.from_iterable(documents)), list(chain.from_iterable(predicted))
    gold, (final, draft) = gold_sequences(documents), label_sequences(flat)
    final, draft = ([rename(one, job.labels, scheme=scheme) for one in labels] for labels in (final, draft))
    words = sum(len(sentence.words) for sentence in sentences)
    common = Evaluation(
        documents=len(documents),
        sentences=len(sentences),
        words=words,
        by_sentence_length=breakdown.scores_by_sentence_length(gold, final, scheme=scheme),
        by_novelty=_novelty(sentences, final, job, scheme=scheme) if job.train else None,
        uncertainty=breakdown.uncertainty_by_outcome(gold, draft, [labelled.uncertainty for labelled in flat]),
        refined_words=sum(sum(prediction.refined) for prediction in flat),
        seconds=seconds,
        words_per_second=words / seconds,
        sentences_per_second=len(sentences) / seconds,
    )
    if scheme.has_entities:
        return _entity_evaluation(common, documents, gold, final, draft)
    tokens, drafts = token_scores(gold, final), token_scores(gold, draft)
    return TokenEvaluation(
        **_fields(common), accuracy=tokens.accuracy, draft_accuracy=drafts.accuracy, label_scores=tokens.by_label
    )


def label_sequences(predicted: Iterable[Prediction]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the final and the draft labels of sentences."""
    pairs = [(prediction.labels, prediction.draft_labels) for prediction in predicted]
    return [final for final, _ in pairs], [draft for _, draft in pairs]


def write_tables(evaluation: AnyEvaluation, folder: Path, *, name: str) -> None:
    """Write scores into a folder: all of them as NAME.json, the breakdowns as one table NAME.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(plain(evaluation), indent=2, sort_keys=True)
    (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
        columns = ["breakdown", "part", *SCORE_COLUMNS]
        writer = csv.DictWriter(stream, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for group in BREAKDOWNS:
            for part, scores in (getattr(evaluation, group, None) or {}).items():
                writer.writerow({"breakdown": group, "part": part, **plain(scores)})


def _entity_evaluation(
    common: Evaluation, documents: Documents, gold: Labels, final: Labels, draft: Labels
) -> EntityEvaluation:
    return EntityEvaluation(
        **_fields(common),
        scores=span_scores(gold, final),
        draft_scores=span_scores(gold, draft),
        seqeval_f1=seqeval_f1(gold, final),
        by_mention_length=breakdown.scores_by_mention_length(gold, final),
        by_position=breakdown.scores_by_position(gold, final),
        recurring_names=breakdown.recurring_scores(documents, final),
        draft_recurring_names=breakdown.recurring_scores(documents, draft),
        co_occurrence=breakdown.co_occurrence_scores(documents, final),
        draft_co_occurrence=breakdown.co_occurrence_scores(documents, draft),
    )


def _fields(common: Evaluation) -> dict[str, Any]:
    return {entry.name: getattr(common, entry.name) for entry in fields(common)}


def _novelty(sentences: Sequence[Sentence], final: Labels, job: EvaluateJob, *, scheme: LabelScheme) -> Parts:
    form = job.form if scheme.has_entities else gold_format(job.form, scheme)
    train = read_corpora(job.train, labels=job.labels, form=form)
    known = breakdown.known_names(chain.from_iterable(train), scheme=scheme)
    scores = breakdown.scores_by_novelty(sentences, final, known, scheme=scheme)
    return {"seen": scores[breakdown.SAME_TYPE] + scores[breakdown.OTHER_TYPE], **scores}


def _describe(report: EvaluationReport) -> str:
    evaluation = report.evaluation
    sizes = (counted(evaluation.documents, "document"), counted(evaluation.sentences, "sentence"))
    speed = f"{evaluation.words_per_second:,.0f} words/s, {evaluation.sentences_per_second:,.1f} sentences/s"
    if isinstance(evaluation, TokenEvaluation):
        lines = _describe_token_labels(evaluation)
    else:
        lines = _describe_entities(evaluation)
    if report.threshold is not None:
        lines.append(f"stage two decided the labels of {counted(evaluation.refined_words, 'word')}")
    return "\n".join(
        [
            f"{report.tagger} {report.digest[:12]} on {', '.join(report.data)}",
            f"{', '.join(sizes)}, {counted(evaluation.words, 'word')}; {speed}",
            "",
            *lines,
            _describe_uncertainty(evaluation.uncertainty),
        ]
    )


def _describe_token_labels(evaluation: TokenEvaluation) -> list[str]:
    frequent = sorted(evaluation.label_scores.items(), key=lambda item: (-item[1].gold, item[0]))
    rows = [(label, scores.recall, scores.precision, scores.gold) for label, scores in frequent[:SHOWN_LABELS]]
    rest = [f"and {len(frequent) - SHOWN_LABELS:,} more labels: --json"] if len(frequent) > SHOWN_LABELS else []
    titles = {"by_sentence_length": "words by length of the sentence", "by_novelty": "words by training corpus"}
    return [
        f"accuracy {evaluation.accuracy:.2f} % (drafts: {evaluation.draft_accuracy:.2f} %)",
        "",
        table(rows, header=("label", "accuracy", "precision", "gold")),
        *rest,
        "",
        _parts_table(evaluation, titles, {"accuracy": "recall", "gold": "gold"}),
        "",
    ]


def _describe_entities(evaluation: EntityEvaluation) -> list[str]:
    drafts = evaluation.draft_scores
    rows = [
        (kind, part.precision, part.recall, part.f1, part.gold, drafts[kind].f1 if kind in drafts else 0.0)
        for kind, part in evaluation.scores.items()
    ]
    titles = {
        "by_mention_length": "names by words",
        "by_sentence_length": "names by words of the sentence",
        "by_novelty": "names by training corpus",
        "by_position": "words by place in the name",
    }
    return [
        table(rows, header=("type", "precision", "recall", "F1", "gold", "draft F1")),
        "",
        _parts_table(evaluation, titles, {"precision": "precision", "recall": "recall", "F1": "f1", "gold": "gold"}),
        "",
        f"seqeval, strict: F1 {evaluation.seqeval_f1:.2f}",
        *_describe_recurring(evaluation),
    ]


def _parts_table(evaluation: AnyEvaluation, titles: Mapping[str, str], columns: Mapping[str, str]) -> str:
    """Lay out several breakdowns in one table with common columns.

    Args:
        titles: attribute of a breakdown -> its title.
        columns: header -> attribute of a score.
    """
    rows: list[Sequence[object]] = []
    for attribute, title in titles.items():
        breakdown_parts: Parts = getattr(evaluation, attribute) or {}
        parts = {name: part for name, part in breakdown_parts.items() if part.gold or part.predicted}
        if parts:
            rows.append((title, *[""] * len(columns)))
        for name, part in parts.items():
            rows.append((f"  {PART_NAMES.get(name, name)}", *(getattr(part, score) for score in columns.values())))
    return table(rows, header=("", *columns), right=range(1, len(columns) + 1))


def _describe_recurring(evaluation: EntityEvaluation) -> list[str]:
    lines = []
    names, draft_names = evaluation.recurring_names, evaluation.draft_recurring_names
    if names.gold:
        share = f"{names.recall:.2f} % of {names.gold:,} mentions"
        lines.append(f"recurring names that are right: {share} (drafts: {draft_names.recall:.2f} %)")
    words, draft_words = evaluation.co_occurrence, evaluation.draft_co_occurrence
    if words.words:
        share = f"{words.accuracy:.2f} % of {words.words:,} words"
        drafts = f"drafts: {draft_words.accuracy:.2f} %"
        lines.append(f"words of names that occur again and are right (Co-Acc): {share} ({drafts})")
    return lines or ["no name recurs within a document"]


def _describe_uncertainty(uncertainty: breakdown.UncertaintyByOutcome) -> str:
    means = (("right", uncertainty.mean_right), ("wrong", uncertainty.mean_wrong))
    described = [f"{mean:.3f} nats where {outcome}" for outcome, mean in means if mean is not None]
    ratio = "" if uncertainty.ratio is None else f" ({uncertainty.ratio:.1f} times)"
    return f"uncertainty of drafts: {', '.join(described)}{ratio}"
