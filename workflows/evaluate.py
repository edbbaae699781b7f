"""Scores of a tagger on a gold corpus: strict spans, stage one against the final labels, consistency, speed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from models.base import Tagger
from models.checkpoint import ModelLoadError, load_tagger, tagger_digest
from models.consistency import collection_consistency
from models.data import Sentence
from models.outputs import Prediction
from models.training.metrics import SpanScores, seqeval_f1, span_scores
from pipeline.errors import ModelError
from workflows.console import Answer, note, table
from workflows.corpora import entity_types, gold_labels, read_corpora, without_labels

WARM_UP_DOCUMENTS = 3
NO_DRAFT = {"f1": 0.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateJob:
    """What to score on what.

    Attributes:
        folder: of the bundle.
        labels: entity type of the corpus -> type of the tagger, None for no entity.
        samples, threshold: as in TaggerRunConfig.
    """

    folder: Path
    data: Sequence[str]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    device: str = "cpu"
    samples: int | None = None
    threshold: float | None = None
    batch_words: int = 4096


def run(job: EvaluateJob) -> Answer:
    """Score a tagger.

    Raises:
        ModelError: when it does not load.
        InputError: when a corpus cannot be read.
    """
    try:
        tagger = load_tagger(job.folder, device=job.device)
        digest = tagger_digest(job.folder)
    except ModelLoadError as error:
        raise ModelError(str(error)) from error
    documents = read_corpora(job.data, labels=job.labels)
    unknown = entity_types(documents) - set(tagger.entity_types)
    if unknown:
        note(
            f"Warning: the tagger knows {', '.join(tagger.entity_types)}; every {', '.join(sorted(unknown))} "
            "of the corpus counts as missed. --labels GPE=LOC,MISC= maps or drops types."
        )
    values = {
        "tagger": tagger.name,
        "digest": digest,
        "data": list(job.data),
        "threshold": tagger.threshold if job.threshold is None else job.threshold,
        **score_tagger(tagger, documents, job),
    }
    return Answer(values=values, text=_describe(values))


def score_tagger(tagger: Tagger, documents: Sequence[Sequence[Sentence]], job: EvaluateJob) -> dict[str, Any]:
    """Give the scores of a tagger as plain values, in percent; speed in words a second."""
    plain = without_labels(documents)
    tagger.predict_documents(plain[:WARM_UP_DOCUMENTS], batch_words=job.batch_words, samples=job.samples)
    started = time.perf_counter()
    predicted = tagger.predict_documents(
        plain, batch_words=job.batch_words, samples=job.samples, threshold=job.threshold
    )
    seconds = time.perf_counter() - started
    words = sum(len(sentence.words) for document in documents for sentence in document)
    gold = gold_labels(documents)
    final = [prediction.labels for document in predicted for prediction in document]
    draft = [prediction.draft_labels for document in predicted for prediction in document]
    return {
        "documents": len(documents),
        "sentences": len(gold),
        "words": words,
        "scores": _score_values(span_scores(gold, final)),
        "draft_scores": _score_values(span_scores(gold, draft)),
        "seqeval_f1": seqeval_f1(gold, final),
        "refined_words": sum(sum(prediction.refined) for document in predicted for prediction in document),
        "consistency": _consistency(documents, predicted, draft=False),
        "draft_consistency": _consistency(documents, predicted, draft=True),
        "seconds": seconds,
        "words_per_second": words / seconds if seconds else 0.0,
    }


def _score_values(scores: SpanScores) -> dict[str, Any]:
    return {
        kind: {"precision": found.precision, "recall": found.recall, "f1": found.f1, **asdict(found)}
        for kind, found in {"all": scores.overall, **scores.by_type}.items()
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
    scores, drafts = values["scores"], values["draft_scores"]
    rows = [
        (kind, found["precision"], found["recall"], found["f1"], found["gold"], drafts.get(kind, NO_DRAFT)["f1"])
        for kind, found in scores.items()
    ]
    size = f"{values['documents']:,} documents, {values['sentences']:,} sentences, {values['words']:,} words"
    return "\n".join(
        [
            f"{values['tagger']} {values['digest'][:12]} on {', '.join(values['data'])}",
            f"{size}, {values['words_per_second']:,.0f} words/s",
            "",
            table(rows, header=("type", "precision", "recall", "F1", "gold", "draft F1")),
            "",
            f"seqeval, strict: F1 {values['seqeval_f1']:.2f}",
            f"stage two gave the label of {values['refined_words']:,} words",
            _describe_consistency(values["consistency"], values["draft_consistency"]),
        ]
    )


def _describe_consistency(final: Mapping[str, Any], draft: Mapping[str, Any]) -> str:
    if final["share"] is None or draft["share"] is None:
        return "no name recurs within a document"
    return (
        f"recurring names that agree within their document: {final['share']:.2f} % of "
        f"{final['occurrences']:,} occurrences (drafts: {draft['share']:.2f} %)"
    )
