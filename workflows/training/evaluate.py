"""Scores of a tagger on a gold corpus: strict spans, whole and in parts; drafts, consistency, uncertainty, speed.

A tagger of token labels has its accuracy instead, whole and by label.
"""

import csv
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from concord.models.checkpoint import ModelLoadError, load_tagger, tagger_digest
from concord.models.data.sentence import Sentence
from concord.models.evaluation.breakdown import (
    OTHER_TYPE,
    SAME_TYPE,
    UNSEEN,
    known_names,
    recurring_scores,
    scores_by_mention_length,
    scores_by_novelty,
    scores_by_position,
    scores_by_sentence_length,
    uncertainty_by_outcome,
)
from concord.models.evaluation.consistency import collection_consistency
from concord.models.evaluation.metrics import (
    Scores,
    SpanScores,
    gold_sequences,
    seqeval_f1,
    span_scores,
    token_scores,
)
from concord.models.outputs import Prediction
from concord.models.schemes import BIO, TOKENS, LabelScheme
from concord.models.tagger import Tagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.errors import InputError, ModelError
from concord.workflows.console import Answer, counted, table, warn
from concord.workflows.training.corpora import (
    Documents,
    entity_types,
    gold_format,
    read_corpora,
    token_labels,
    tree_source,
    without_labels,
)

WARM_UP_DOCUMENTS = 3
SHOWN_LABELS = 60
NO_DRAFT = {"f1": 0.0}
BREAKDOWNS = (
    *("scores", "draft_scores", "label_scores", "by_mention_length", "by_sentence_length", "by_novelty"),
    "by_position",
)
SCORE_COLUMNS = ("precision", "recall", "f1", "gold", "predicted", "correct")
PART_NAMES = {
    SAME_TYPE: "  with this label",
    OTHER_TYPE: "  with other labels only",
    UNSEEN: "unseen",
    "O": "outside",
    "S": "single",
    "B": "first",
    "I": "inside",
    "E": "last",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateJob:
    """What to score on what.

    Attributes:
        folder: of the bundle.
        labels: entity type or token label of the corpus -> that of the tagger, None for no entity.
        form: where the corpora have their labels.
        train: corpora that the tagger was trained on, by which names are seen or unseen; their types are mapped too.
        samples, threshold: as in TaggerRunConfig.
    """

    folder: Path
    data: Sequence[str]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    form: GoldFormat = field(default_factory=GoldFormat)
    train: Sequence[str] = ()
    device: str = "cpu"
    samples: int | None = None
    threshold: float | None = None
    batch_words: int = 4096


def run(job: EvaluateJob) -> Answer:
    """Score a tagger.

    Raises:
        ConfigError: when the corpora have no labels for this tagger.
        ModelError: when it does not load.
        InputError: when a corpus cannot be read, or the gold corpora hold no word.
    """
    tagger = load(job.folder, device=job.device)
    values = {
        "tagger": tagger.name,
        "digest": tagger_digest(job.folder),
        "data": list(job.data),
        "train": list(job.train),
        "threshold": tagger.threshold if job.threshold is None else job.threshold,
        **score_tagger(tagger, read_gold_for(tagger, job.data, labels=job.labels, form=job.form), job),
    }
    return Answer(values=values, text=_describe(values))


def load(folder: Path, *, device: str) -> Tagger:
    """Load the tagger of a bundle.

    Raises:
        ModelError: when it does not load.
    """
    try:
        return load_tagger(folder, device=device)
    except ModelLoadError as error:
        raise ModelError(str(error)) from error


def read_gold_for(
    tagger: Tagger, paths: Sequence[str], *, labels: Mapping[str, str | None], form: GoldFormat | None = None
) -> Documents:
    """Read gold corpora and warn of what the tagger cannot get right in them.

    Raises:
        ConfigError: when the corpora have no labels for this tagger.
        InputError: when one cannot be read, there is no word in them, or no tree for a tagger that needs trees.
    """
    form = gold_format(form or GoldFormat(), tagger.vocabulary.scheme)
    documents = read_corpora(paths, labels=labels, form=form, trees=tagger.needs_trees)
    check_gold(tagger, documents, paths)
    return documents


def check_gold(tagger: Tagger, documents: Sequence[Sequence[Sentence]], paths: Sequence[str]) -> None:
    """Warn of what a tagger cannot get right in gold corpora that were read for it.

    Raises:
        InputError: when there is no word in them.
    """
    if not any(sentence.words for document in documents for sentence in document):
        raise InputError(f"{', '.join(paths)}: expected a gold corpus with one sentence or more, got none")
    if not tagger.vocabulary.scheme.has_entities:
        strange = token_labels(documents) - set(tagger.vocabulary.labels)
        if strange:
            warn(f"the tagger does not know {', '.join(sorted(strange))} of the corpus; these count as wrong.")
        return
    kinds = entity_types(documents)
    if not kinds:
        warn("the corpus holds no entity, so every F1 is 0.")
    unknown = kinds - set(tagger.entity_types)
    if unknown:
        warn(
            f"the tagger knows {', '.join(tagger.entity_types)}; every {', '.join(sorted(unknown))} "
            "of the corpus counts as missed. --labels GPE=LOC,MISC= maps or drops types."
        )
    for path in paths if tagger.needs_trees else ():
        source = tree_source(path)
        if source != tagger.trees:
            warn(f"the tagger learned from trees of {tagger.trees!r}, {path} has those of {source!r}.")


def score_tagger(tagger: Tagger, documents: Sequence[Sequence[Sentence]], job: EvaluateJob) -> dict[str, Any]:
    """Give the scores of a tagger as plain values, in percent; uncertainty in nats, speed in words a second.

    Raises:
        InputError: when a training corpus of the job cannot be read.
    """
    predicted, seconds = predict_timed(tagger, documents, job)
    return score_predictions(tagger, documents, predicted, seconds, job)


def predict_timed(
    tagger: Tagger, documents: Sequence[Sequence[Sentence]], job: EvaluateJob
) -> tuple[list[list[Prediction]], float]:
    """Label gold documents without looking at the gold, and give the seconds that it took after a warm-up."""
    plain = without_labels(documents)

    def predict(some: Documents) -> list[list[Prediction]]:
        return tagger.predict_documents(some, batch_words=job.batch_words, samples=job.samples, threshold=job.threshold)

    predict(plain[:WARM_UP_DOCUMENTS])
    started = time.perf_counter()
    predicted = predict(plain)
    return predicted, time.perf_counter() - started


def score_predictions(
    tagger: Tagger,
    documents: Sequence[Sequence[Sentence]],
    predicted: Sequence[Sequence[Prediction]],
    seconds: float,
    job: EvaluateJob,
) -> dict[str, Any]:
    """Give what ``score_tagger`` gives, from predictions that are there already.

    Raises:
        InputError: when a training corpus of the job cannot be read.
    """
    words = sum(len(sentence.words) for document in documents for sentence in document)
    sentences = sum(map(len, documents))
    score = _score_entities if tagger.vocabulary.scheme.has_entities else _score_token_labels
    return {
        "documents": len(documents),
        "sentences": sentences,
        "words": words,
        **score(documents, predicted, job),
        "refined_words": sum(sum(prediction.refined) for document in predicted for prediction in document),
        "seconds": seconds,
        "words_per_second": words / seconds,
        "sentences_per_second": sentences / seconds,
    }


def write_tables(values: Mapping[str, Any], folder: Path, *, name: str) -> None:
    """Write scores into a folder: all of them as NAME.json, the breakdowns as one table NAME.csv.

    Args:
        values: what ``score_tagger`` gives.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(
            stream, ["breakdown", "part", *SCORE_COLUMNS], extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        for breakdown in BREAKDOWNS:
            for part, found in (values.get(breakdown) or {}).items():
                writer.writerow({"breakdown": breakdown, "part": part, **found})


def _score_token_labels(
    documents: Sequence[Sequence[Sentence]], predicted: Sequence[Sequence[Prediction]], job: EvaluateJob
) -> dict[str, Any]:
    gold, final, draft = gold_sequences(documents), *_label_sequences(predicted)
    found = token_scores(gold, final)
    lengths = scores_by_sentence_length(gold, final, scheme=TOKENS)
    return {
        "accuracy": found.accuracy,
        "draft_accuracy": token_scores(gold, draft).accuracy,
        "label_scores": _score_values(found.by_label),
        "by_sentence_length": _score_values(lengths),
        "by_novelty": _novelty(documents, final, job, scheme=TOKENS) if job.train else None,
        "uncertainty": _uncertainty(gold, draft, predicted),
    }


def _label_sequences(
    predicted: Sequence[Sequence[Prediction]],
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Give the final and the drafted labels of every sentence."""
    sentences = [prediction for document in predicted for prediction in document]
    return [sentence.labels for sentence in sentences], [sentence.draft_labels for sentence in sentences]


def _score_entities(
    documents: Sequence[Sequence[Sentence]], predicted: Sequence[Sequence[Prediction]], job: EvaluateJob
) -> dict[str, Any]:
    gold, final, draft = gold_sequences(documents), *_label_sequences(predicted)
    return {
        "scores": _span_values(span_scores(gold, final)),
        "draft_scores": _span_values(span_scores(gold, draft)),
        "seqeval_f1": seqeval_f1(gold, final),
        "by_mention_length": _score_values(scores_by_mention_length(gold, final)),
        "by_sentence_length": _score_values(scores_by_sentence_length(gold, final)),
        "by_novelty": _novelty(documents, final, job, scheme=BIO) if job.train else None,
        "by_position": _score_values(scores_by_position(gold, final)),
        "consistency": _consistency(documents, predicted, draft=False),
        "draft_consistency": _consistency(documents, predicted, draft=True),
        "recurring_names": _values(recurring_scores(documents, final)),
        "draft_recurring_names": _values(recurring_scores(documents, draft)),
        "uncertainty": _uncertainty(gold, draft, predicted),
    }


def _span_values(scores: SpanScores) -> dict[str, Any]:
    return _score_values({"all": scores.overall, **scores.by_type})


def _score_values(scores: Mapping[str, Scores]) -> dict[str, Any]:
    return {name: _values(found) for name, found in scores.items()}


def _values(scores: Scores) -> dict[str, Any]:
    return {"precision": scores.precision, "recall": scores.recall, "f1": scores.f1, **asdict(scores)}


def _novelty(
    documents: Sequence[Sequence[Sentence]],
    predicted: Sequence[Sequence[str]],
    job: EvaluateJob,
    *,
    scheme: LabelScheme,
) -> dict[str, Any]:
    form = job.form if scheme.has_entities else gold_format(job.form, scheme)
    train = read_corpora(job.train, labels=job.labels, form=form)
    known = known_names((sentence for document in train for sentence in document), scheme=scheme)
    sentences = [sentence for document in documents for sentence in document]
    scores = scores_by_novelty(sentences, predicted, known, scheme=scheme)
    return _score_values({"seen": scores[SAME_TYPE] + scores[OTHER_TYPE], **scores})


def _uncertainty(
    gold: Sequence[Sequence[str]], draft: Sequence[Sequence[str]], predicted: Sequence[Sequence[Prediction]]
) -> dict[str, Any]:
    nats = [prediction.uncertainty for document in predicted for prediction in document]
    found = uncertainty_by_outcome(gold, draft, nats)
    return {
        "right_words": len(found.right),
        "wrong_words": len(found.wrong),
        "mean_right": found.mean_right,
        "mean_wrong": found.mean_wrong,
        "ratio": found.ratio,
    }


def _consistency(
    documents: Sequence[Sequence[Sentence]], predicted: Sequence[Sequence[Prediction]], *, draft: bool
) -> dict[str, Any]:
    """Measure how far the occurrences of a gold name within a document bear one label."""
    labelled = [
        [
            (sentence.words, prediction.draft_labels if draft else prediction.labels)
            for sentence, prediction in zip(document, predictions, strict=True)
        ]
        for document, predictions in zip(documents, predicted, strict=True)
    ]
    names = [[sentence.labels or () for sentence in document] for document in documents]
    found = collection_consistency(labelled, naming=names)
    return {"share": None if found.share is None else 100.0 * found.share, **asdict(found)}


def _describe(values: Mapping[str, Any]) -> str:
    size = ", ".join(counted(values[f"{noun}s"], noun) for noun in ("document", "sentence", "word"))
    speed = f"{values['words_per_second']:,.0f} words/s, {values['sentences_per_second']:,.1f} sentences/s"
    refined = f"stage two gave the label of {counted(values['refined_words'], 'word')}"
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
    rows = [
        (kind, found["precision"], found["recall"], found["f1"], found["gold"], drafts.get(kind, NO_DRAFT)["f1"])
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
        _describe_consistency(values["consistency"], values["draft_consistency"]),
        *_describe_recurring(values["recurring_names"], values["draft_recurring_names"]),
    ]


def _parts_table(values: Mapping[str, Any], titles: Mapping[str, str], columns: Mapping[str, str]) -> str:
    """Lay the parts of scores out in one table, so that their columns stand below each other.

    Args:
        titles: key of the values -> title of its parts.
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


def _describe_consistency(final: Mapping[str, Any], draft: Mapping[str, Any]) -> str:
    if final["share"] is None or draft["share"] is None:
        return "no name recurs within a document"
    return (
        f"recurring names that agree within their document: {final['share']:.2f} % of "
        f"{final['occurrences']:,} occurrences (drafts: {draft['share']:.2f} %)"
    )


def _describe_recurring(final: Mapping[str, Any], draft: Mapping[str, Any]) -> list[str]:
    if not final["gold"]:
        return []
    return [
        f"recurring names that are right: {final['recall']:.2f} % of {final['gold']:,} mentions "
        f"(drafts: {draft['recall']:.2f} %)"
    ]


def _describe_uncertainty(found: Mapping[str, Any]) -> str:
    means = [
        f"{mean:.3f} nats where {outcome}"
        for mean, outcome in ((found["mean_right"], "right"), (found["mean_wrong"], "wrong"))
        if mean is not None
    ]
    ratio = "" if found["ratio"] is None else f" ({found['ratio']:.1f} times)"
    return f"uncertainty of drafts: {', '.join(means)}{ratio}"
