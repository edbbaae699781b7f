"""Compare weight samples for every sentence with samples only above an uncertainty of the mean weights: labels,
uncertainty, calibration and processor time.

Command: python tests/benchmarks/bench_samples.py --corpora ../shared/data/labelled --limits 0.2 0.3

The encoder's features are computed before, so that times are those of everything else. Types are as in
bench_calibration.py. Errors of calibration are 0..1, uncertainty is in nats, time in microseconds a word.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from bench_calibration import PARTS, TYPES
from bench_tagging import choose_documents, count_words
from environment import environment

from concord.models.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import span_scores
from concord.models.evaluation.reliability import brier_score, expected_calibration_error
from concord.models.labels import decode_spans
from concord.models.outputs import Prediction
from concord.models.two_stage.tagger import TwoStageTagger
from concord.workflows.registry.resolve_tagger import find_tagger
from concord.workflows.training.corpora import read_corpora

Documents = Sequence[Sequence[Sentence]]


def measure(tagger: TwoStageTagger, documents: Documents, limits: Sequence[float], *, gold: bool) -> dict[str, object]:
    """Label documents with samples for every sentence, then above each limit."""
    tagger.keep_features(documents)
    words = count_words(documents)
    _predict(tagger, documents[:1], None)
    every, seconds = _predict(tagger, documents, None)
    most = most_uncertain(tagger, documents)
    report: dict[str, object] = {
        "words": words,
        "every_sentence": {"microseconds": round(1e6 * seconds / words, 1)}
        | (quality(documents, every) if gold else {}),
    }
    for limit in limits:
        found, seconds = _predict(tagger, documents, limit)
        without = sum(length for length, value in most if value <= limit)
        report[f"above_{limit}"] = {
            "words_without_samples": round(without / words, 4),
            "microseconds": round(1e6 * seconds / words, 1),
            **agreement(every, found),
            **(quality(documents, found) if gold else {}),
        }
    return report


def _predict(tagger: TwoStageTagger, documents: Documents, limit: float | None) -> tuple[list[Prediction], float]:
    """Return the predictions of all sentences, and the processor time in seconds."""
    tagger.set_samples_above(limit)
    started = time.process_time()
    predictions = tagger.predict_documents(documents)
    return list(chain.from_iterable(predictions)), time.process_time() - started


def most_uncertain(tagger: TwoStageTagger, documents: Documents) -> list[tuple[int, float]]:
    """Return the words of each sentence, and the uncertainty of its most uncertain word under the mean weights."""
    tagger.set_samples_above(math.inf)
    predictions = chain.from_iterable(tagger.predict_documents(documents, threshold=math.inf))
    return [(len(found.labels), max(found.uncertainty, default=0.0)) for found in predictions]


def agreement(expected: Sequence[Prediction], found: Sequence[Prediction]) -> dict[str, float]:
    """Compare the predictions of the same sentences."""
    pairs = list(zip(expected, found, strict=True))
    labels = sum(one != other for left, right in pairs for one, other in zip(left.labels, right.labels, strict=True))
    refined = sum(one != other for left, right in pairs for one, other in zip(left.refined, right.refined, strict=True))
    moved = np.abs(_column(expected, "uncertainty") - _column(found, "uncertainty"))
    return {
        "labels_changed": labels,
        "refined_by_one_alone": refined,
        "uncertainty_mean_difference": round(float(moved.mean()), 5),
        "uncertainty_largest_difference": round(float(moved.max()), 3),
    }


def quality(documents: Documents, predictions: Sequence[Prediction]) -> dict[str, float]:
    """Return the score, and the calibration of words and of entities."""
    gold = [sentence.labels or () for document in documents for sentence in document]
    right = [
        one == other
        for labels, found in zip(gold, predictions, strict=True)
        for one, other in zip(labels, found.labels, strict=True)
    ]
    hits = [
        span in set(decode_spans(labels, "BIO"))
        for labels, found in zip(gold, predictions, strict=True)
        for span in found.spans
    ]
    probabilities, confidences = _column(predictions, "probabilities"), _column(predictions, "confidences")
    return {
        "f1": round(span_scores(gold, [found.labels for found in predictions]).overall.f1, 2),
        "word_ece": round(expected_calibration_error(probabilities, np.array(right)), 5),
        "word_brier": round(brier_score(probabilities, np.array(right)), 6),
        "entity_ece": round(expected_calibration_error(confidences, np.array(hits)), 4),
        "entity_brier": round(brier_score(confidences, np.array(hits)), 5),
    }


def _column(predictions: Sequence[Prediction], name: str) -> np.ndarray:
    return np.array([value for found in predictions for value in getattr(found, name)])


def main() -> None:
    """Measure on dev sets, and on a collection where one is named, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--parts", nargs="*", default=PARTS)
    parser.add_argument("--annotated", type=Path, help="output folder of a finished run")
    parser.add_argument("--words", type=int, default=100_000, help="of the collection")
    parser.add_argument("--limits", nargs="+", type=float, default=[0.2, 0.3])
    parser.add_argument("--model", default="entities_en")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    resolved = find_tagger(arguments.model)
    tagger = load_tagger(resolved.folder)
    if not isinstance(tagger, TwoStageTagger):
        parser.error(f"{arguments.model}: expected a tagger of two stages")
    report: dict[str, object] = {**environment("bench_samples.py"), "digest": resolved.digest}
    for part in arguments.parts:
        documents = read_corpora([str(next((arguments.corpora / part).glob("dev.*")))], labels=TYPES)
        report[part] = measure(tagger, documents, arguments.limits, gold=True)
        print(part, json.dumps(report[part]), file=sys.stderr, flush=True)
    if arguments.annotated is not None:
        chosen = choose_documents(arguments.annotated, words=arguments.words)
        report["collection"] = measure(tagger, chosen, arguments.limits, gold=False)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
