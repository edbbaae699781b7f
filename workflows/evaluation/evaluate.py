"""Evaluation of a tagger on a gold corpus, as values, as text and as tables in files.

Strict spans by type, length and novelty; drafts, consistency, uncertainty, speed. For a tagger of token labels,
accuracy as a whole and by label.
"""

import csv
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from concord.models.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.evaluation import breakdown
from concord.models.evaluation.consistency import collection_consistency
from concord.models.evaluation.metrics import Labels, Scores, gold_sequences, seqeval_f1, span_scores, token_scores
from concord.models.outputs import Prediction
from concord.models.saved_tagger import tagger_digest
from concord.models.schemes import LabelScheme
from concord.models.tagger import Tagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.workflows.console import Answer, counted, table
from concord.workflows.corpora.corpora import Documents, gold_format, read_corpora, read_gold_for, without_labels

WARM_UP_DOCUMENTS = 3
SHOWN_LABELS = 60
BREAKDOWNS = (
    *("scores", "draft_scores", "label_scores", "by_mention_length", "by_sentence_length", "by_novelty"),
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
        folder: of the bundle.
        labels: entity type or token label of the corpora -> that of the tagger, None for no entity.
        form: which column of the corpora has the labels.
        train: training corpora, which decide whether a name is seen or unseen; `labels` applies to them too.
        samples, threshold, gate: as in TaggerRunConfig.
    """

    folder: Path
    data: Sequence[str]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    form: GoldFormat = field(default_factory=GoldFormat)
    train: Sequence[str] = ()
    device: str = "cpu"
    samples: int | None = None
    threshold: float | None = None
    gate: float | None = None
    batch_words: int = 4096


def run(job: EvaluateJob) -> Answer:
    """Score a tagger.

    Raises:
        ConfigError: when the corpora have no labels for this tagger.
        ModelError: when it does not load.
        InputError: when a corpus cannot be read, or there is no sentence in them.
    """
    tagger = load_tagger(job.folder, device=job.device)
    values = {
        "tagger": tagger.name,
        "digest": tagger_digest(job.folder),
        "data": list(job.data),
        "train": list(job.train),
        "threshold": tagger.threshold if job.threshold is None else job.threshold,
        **score_tagger(tagger, read_gold_for(tagger, job.data, labels=job.labels, form=job.form), job),
    }
    return Answer(values=values, text=describe_scores(values))


def score_tagger(tagger: Tagger, documents: Documents, job: EvaluateJob) -> dict[str, Any]:
    """Return the scores of a tagger as plain values: percent, uncertainty in nats, speed in words a second."""
    predicted, seconds = predict_timed(tagger, documents, job)
    return score_predictions(tagger, documents, predicted, seconds, job)


def predict_timed(tagger: Tagger, documents: Documents, job: EvaluateJob) -> tuple[list[list[Prediction]], float]:
    """Label documents without their gold labels; return predictions and the seconds they took after a warm-up."""
    plain = without_labels(documents)
    predict = partial(
        tagger.predict_documents,
        batch_words=job.batch_words,
        samples=job.samples,
        threshold=job.threshold,
        gate=job.gate,
    )
    predict(plain[:WARM_UP_DOCUMENTS])
    started = time.perf_counter()
    predicted = predict(plain)
    return predicted, time.perf_counter() - started


def score_predictions(
    tagger: Tagger,
    documents: Documents,
    predicted: Sequence[Sequence[Prediction]],
    seconds: float,
    job: EvaluateJob,
) -> dict[str, Any]:
    """Return what ``score_tagger`` does, from existing predictions."""
    scheme = tagger.vocabulary.scheme
    sentences, flat = list(chain.from_iterable(documents)), list(chain.from_iterable(predicted))
    gold, (final, draft) = gold_sequences(documents), label_sequences(flat)
    words = sum(len(sentence.words) for sentence in sentences)
    uncertainty = breakdown.uncertainty_by_outcome(gold, draft, [prediction.uncertainty for prediction in flat])
    return {
        "documents": len(documents),
        "sentences": len(sentences),
        "words": words,
        **(_entity_scores if scheme.has_entities else _token_scores)(gold, final, draft),
        "by_sentence_length": _score_values(breakdown.scores_by_sentence_length(gold, final, scheme=scheme)),
        "by_novelty": _novelty(sentences, final, job, scheme=scheme) if job.train else None,
        **(_name_scores(documents, gold, final, draft) if scheme.has_entities else {}),
        "uncertainty": {
            "right_words": len(uncertainty.right),
            "wrong_words": len(uncertainty.wrong),
            "mean_right": uncertainty.mean_right,
            "mean_wrong": uncertainty.mean_wrong,
            "ratio": uncertainty.ratio,
        },
        "refined_words": sum(sum(prediction.refined) for prediction in flat),
        "seconds": seconds,
        "words_per_second": words / seconds,
        "sentences_per_second": len(sentences) / seconds,
    }


def label_sequences(predicted: Iterable[Prediction]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the final and the draft labels of sentences."""
    pairs = [(prediction.labels, prediction.draft_labels) for prediction in predicted]
    return [final for final, _ in pairs], [draft for _, draft in pairs]


def describe_scores(values: Mapping[str, Any]) -> str:
    """Return the answer of ``concord evaluate`` as text."""
    size = ", ".join(counted(values[f"{noun}s"], noun) for noun in ("document", "sentence", "word"))
    speed = f"{values['words_per_second']:,.0f} words/s, {values['sentences_per_second']:,.1f} sentences/s"
    refined = f"stage two decided the labels of {counted(values['refined_words'], 'word')}"
    return "\n".join(
        [
            f"{values['tagger']} {values['digest'][:12]} on {', '.join(values['data'])}",
            f"{size}; {speed}",
            "",
            *(_describe_token_labels(values) if "accuracy" in values else _describe_entities(values)),
            *([] if values["threshold"] is None else [refined]),
            _describe_uncertainty(values["uncertainty"]),
        ]
    )


def write_tables(values: Mapping[str, Any], folder: Path, *, name: str) -> None:
    """Write scores into a folder: all of them as NAME.json, the breakdowns as one table NAME.csv.

    Args:
        values: from ``score_tagger``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
        columns = ["breakdown", "part", *SCORE_COLUMNS]
        writer = csv.DictWriter(stream, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for group in BREAKDOWNS:
            for part, found in (values.get(group) or {}).items():
                writer.writerow({"breakdown": group, "part": part, **found})


def _entity_scores(gold: Labels, final: Labels, draft: Labels) -> dict[str, Any]:
    by_stage = {"scores": span_scores(gold, final), "draft_scores": span_scores(gold, draft)}
    return {
        **{name: _score_values({"all": found.overall, **found.by_type}) for name, found in by_stage.items()},
        "seqeval_f1": seqeval_f1(gold, final),
        "by_mention_length": _score_values(breakdown.scores_by_mention_length(gold, final)),
    }


def _token_scores(gold: Labels, final: Labels, draft: Labels) -> dict[str, Any]:
    found, drafts = token_scores(gold, final), token_scores(gold, draft)
    by_label = _score_values(found.by_label)
    return {"accuracy": found.accuracy, "draft_accuracy": drafts.accuracy, "label_scores": by_label}


def _name_scores(documents: Documents, gold: Labels, final: Labels, draft: Labels) -> dict[str, Any]:
    return {
        "by_position": _score_values(breakdown.scores_by_position(gold, final)),
        "consistency": _consistency(documents, final),
        "draft_consistency": _consistency(documents, draft),
        "recurring_names": _values(breakdown.recurring_scores(documents, final)),
        "draft_recurring_names": _values(breakdown.recurring_scores(documents, draft)),
        "co_occurrence": _co_occurrence(documents, final),
        "draft_co_occurrence": _co_occurrence(documents, draft),
    }


def _co_occurrence(documents: Documents, labels: Labels) -> dict[str, Any]:
    found = breakdown.co_occurrence_scores(documents, labels)
    return {"accuracy": found.accuracy, "words": found.words, "correct": found.correct}


def _consistency(documents: Documents, labels: Labels) -> dict[str, Any]:
    """Measure how far the mentions of a gold name within a document agree in their label."""
    remaining = iter(labels)
    labelled = [[(sentence.words, next(remaining)) for sentence in document] for document in documents]
    names = [[sentence.labels or () for sentence in document] for document in documents]
    found = collection_consistency(labelled, naming=names)
    return {"share": None if found.share is None else 100.0 * found.share, **asdict(found)}


def _novelty(sentences: Sequence[Sentence], final: Labels, job: EvaluateJob, *, scheme: LabelScheme) -> dict[str, Any]:
    form = job.form if scheme.has_entities else gold_format(job.form, scheme)
    train = read_corpora(job.train, labels=job.labels, form=form)
    known = breakdown.known_names(chain.from_iterable(train), scheme=scheme)
    scores = breakdown.scores_by_novelty(sentences, final, known, scheme=scheme)
    return _score_values({"seen": scores[breakdown.SAME_TYPE] + scores[breakdown.OTHER_TYPE], **scores})


def _score_values(scores: Mapping[str, Scores]) -> dict[str, Any]:
    return {name: _values(found) for name, found in scores.items()}


def _values(scores: Scores) -> dict[str, Any]:
    return {"precision": scores.precision, "recall": scores.recall, "f1": scores.f1, **asdict(scores)}


def _describe_token_labels(values: Mapping[str, Any]) -> list[str]:
    frequent = sorted(values["label_scores"].items(), key=lambda item: (-item[1]["gold"], item[0]))
    rows = [(label, found["recall"], found["precision"], found["gold"]) for label, found in frequent[:SHOWN_LABELS]]
    rest = [f"and {len(frequent) - SHOWN_LABELS:,} more labels: --json"] if len(frequent) > SHOWN_LABELS else []
    titles = {"by_sentence_length": "words by length of the sentence", "by_novelty": "words by training corpus"}
    return [
        f"accuracy {values['accuracy']:.2f} % (drafts: {values['draft_accuracy']:.2f} %)",
        "",
        table(rows, header=("label", "accuracy", "precision", "gold")),
        *rest,
        "",
        _parts_table(values, titles, {"accuracy": "recall", "gold": "gold"}),
        "",
    ]


def _describe_entities(values: Mapping[str, Any]) -> list[str]:
    scores, drafts = values["scores"], values["draft_scores"]
    keys = ("precision", "recall", "f1", "gold")
    rows = [
        (kind, *(found[key] for key in keys), drafts[kind]["f1"] if kind in drafts else 0.0)
        for kind, found in scores.items()
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
        _parts_table(values, titles, {"precision": "precision", "recall": "recall", "F1": "f1", "gold": "gold"}),
        "",
        f"seqeval, strict: F1 {values['seqeval_f1']:.2f}",
        *_describe_recurring(values),
    ]


def _parts_table(values: Mapping[str, Any], titles: Mapping[str, str], columns: Mapping[str, str]) -> str:
    """Lay out several breakdowns in one table with common columns.

    Args:
        titles: key of a breakdown -> its title.
        columns: header -> key of a score.
    """
    rows: list[Sequence[object]] = []
    for key, title in titles.items():
        parts = {name: part for name, part in (values[key] or {}).items() if part["gold"] or part["predicted"]}
        if parts:
            rows.append((title, *[""] * len(columns)))
        for name, part in parts.items():
            rows.append((f"  {PART_NAMES.get(name, name)}", *(part[score] for score in columns.values())))
    return table(rows, header=("", *columns), right=range(1, len(columns) + 1))


def _describe_recurring(values: Mapping[str, Any]) -> list[str]:
    lines = ["no name recurs within a document"]
    agreeing, drafts = values["consistency"], values["draft_consistency"]
    if agreeing["share"] is not None and drafts["share"] is not None:
        share = f"{agreeing['share']:.2f} % of {agreeing['occurrences']:,} occurrences"
        lines = [f"recurring names that agree within their document: {share} (drafts: {drafts['share']:.2f} %)"]
    right, drafts = values["recurring_names"], values["draft_recurring_names"]
    if right["gold"]:
        share = f"{right['recall']:.2f} % of {right['gold']:,} mentions"
        lines.append(f"recurring names that are right: {share} (drafts: {drafts['recall']:.2f} %)")
    right, drafts = values["co_occurrence"], values["draft_co_occurrence"]
    if right["words"]:
        share = f"{right['accuracy']:.2f} % of {right['words']:,} words"
        lines.append(f"words of names that occur again and are right: {share} (drafts: {drafts['accuracy']:.2f} %)")
    return lines


def _describe_uncertainty(found: Mapping[str, Any]) -> str:
    outcomes = ("right", "wrong")
    means = [f"{mean:.3f} nats where {name}" for name in outcomes if (mean := found[f"mean_{name}"]) is not None]
    ratio = "" if found["ratio"] is None else f" ({found['ratio']:.1f} times)"
    return f"uncertainty of drafts: {', '.join(means)}{ratio}"
