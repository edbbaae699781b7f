"""Evaluation of a tagger on a gold corpus: strict spans by type, length and novelty; drafts, consistency, uncertainty,
speed. For a tagger of token labels, accuracy as a whole and by label.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from concord.models.data.sentence import Sentence
from concord.models.evaluation.breakdown import (
    OTHER_TYPE,
    SAME_TYPE,
    known_names,
    recurring_scores,
    scores_by_mention_length,
    scores_by_novelty,
    scores_by_position,
    scores_by_sentence_length,
    uncertainty_by_outcome,
)
from concord.models.evaluation.consistency import collection_consistency
from concord.models.evaluation.metrics import Scores, gold_sequences, seqeval_f1, span_scores, token_scores
from concord.models.outputs import Prediction
from concord.models.schemes import BIO, TOKENS, LabelScheme
from concord.models.tagger import Tagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.saved_tagger import load_tagger, tagger_digest
from concord.workflows.console import Answer
from concord.workflows.training.corpora import Documents, gold_format, read_corpora, read_gold_for, without_labels
from concord.workflows.training.score_tables import describe_scores

WARM_UP_DOCUMENTS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateJob:
    """A tagger and the gold corpora to score it on.

    Attributes:
        folder: of the bundle.
        labels: entity type or token label of the corpora -> that of the tagger, None for no entity.
        form: which column of the corpora has the labels.
        train: training corpora, which decide whether a name is seen or unseen; `labels` applies to them too.
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


def score_tagger(tagger: Tagger, documents: Sequence[Sequence[Sentence]], job: EvaluateJob) -> dict[str, Any]:
    """Return the scores of a tagger as plain values: percent, uncertainty in nats, speed in words a second.

    Raises:
        InputError: when a training corpus of the job cannot be read.
    """
    predicted, seconds = predict_timed(tagger, documents, job)
    return score_predictions(tagger, documents, predicted, seconds, job)


def predict_timed(
    tagger: Tagger, documents: Sequence[Sequence[Sentence]], job: EvaluateJob
) -> tuple[list[list[Prediction]], float]:
    """Label documents without their gold labels; return predictions and the seconds they took after a warm-up."""
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
    """Return what ``score_tagger`` does, from existing predictions.

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


def _score_entities(
    documents: Sequence[Sequence[Sentence]], predicted: Sequence[Sequence[Prediction]], job: EvaluateJob
) -> dict[str, Any]:
    gold, final, draft = gold_sequences(documents), *_label_sequences(predicted)
    return {
        **{
            name: _score_values({"all": scores.overall, **scores.by_type})
            for name, scores in (("scores", span_scores(gold, final)), ("draft_scores", span_scores(gold, draft)))
        },
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


def _score_token_labels(
    documents: Sequence[Sequence[Sentence]], predicted: Sequence[Sequence[Prediction]], job: EvaluateJob
) -> dict[str, Any]:
    gold, final, draft = gold_sequences(documents), *_label_sequences(predicted)
    found = token_scores(gold, final)
    return {
        "accuracy": found.accuracy,
        "draft_accuracy": token_scores(gold, draft).accuracy,
        "label_scores": _score_values(found.by_label),
        "by_sentence_length": _score_values(scores_by_sentence_length(gold, final, scheme=TOKENS)),
        "by_novelty": _novelty(documents, final, job, scheme=TOKENS) if job.train else None,
        "uncertainty": _uncertainty(gold, draft, predicted),
    }


def _label_sequences(predicted: Sequence[Sequence[Prediction]]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the final and the draft labels of every sentence."""
    sentences = [prediction for document in predicted for prediction in document]
    return [sentence.labels for sentence in sentences], [sentence.draft_labels for sentence in sentences]


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
    """Measure how far the mentions of a gold name within a document agree in their label."""
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
