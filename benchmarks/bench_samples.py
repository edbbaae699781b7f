"""Compare weight samples for every sentence with samples only above an uncertainty of the mean weights: labels,
uncertainty, calibration and processor time.

Command: python benchmarks/bench_samples.py --corpora ../shared/data/labelled --limits 0.2 0.3

Both stages read every sentence: the gate of a first pass is 0. The encoder's features are computed before, so that
times are those of everything else. Types are as in bench_calibration.py. Errors of calibration are 0..1, uncertainty
is in nats, time in microseconds a word. Texts are tokenized by the bundled parser, and read in turns, ten thousand
words at a time, until there are enough words or the processor time for them is used up; all figures but the times are
of agreement.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from bench_calibration import PARTS
from bench_tagging import choose_documents, count_words
from corpora import read_texts
from english_types import TYPES, scored
from environment import environment

from concord.models.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import span_scores
from concord.models.evaluation.reliability import brier_score, expected_calibration_error
from concord.models.labels import decode_spans
from concord.models.options import PredictOptions
from concord.models.outputs import Prediction, known_numbers
from concord.models.two_stage.tagger import TwoStageTagger
from concord.pipeline.config import ParserConfig
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.pipeline.parsing.tokens import parser_view
from concord.workflows.corpora.corpora import read_corpora
from concord.workflows.registry.resolve_tagger import find_tagger

Documents = Sequence[Sequence[Sentence]]

_WORDS_AT_ONCE = 10_000


def load_two_stages(model: str) -> tuple[TwoStageTagger, str]:
    """Return a tagger of two stages, and the digest of its bundle."""
    resolved = find_tagger(model)
    tagger = load_tagger(resolved.folder)
    if not isinstance(tagger, TwoStageTagger):
        raise SystemExit(f"{model}: expected a tagger of two stages, got {tagger.name}")
    return tagger, resolved.digest


def read_dev(corpora: Path, part: str) -> Documents:
    """Read the dev set of a corpus."""
    return read_corpora([str(next((corpora / part).glob("dev.*")))], labels=TYPES)


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
    predictions = tagger.predict_documents(documents, PredictOptions(gate=0.0))
    return list(chain.from_iterable(predictions)), time.process_time() - started


def most_uncertain(tagger: TwoStageTagger, documents: Documents) -> list[tuple[int, float]]:
    """Return the words of each sentence, and the uncertainty of its most uncertain word under the mean weights."""
    tagger.set_samples_above(math.inf)
    predictions = chain.from_iterable(tagger.predict_documents(documents, PredictOptions(threshold=math.inf, gate=0.0)))
    return [(len(found.labels), max(known_numbers(found.uncertainty), default=0.0)) for found in predictions]


def measure_texts(
    tagger: TwoStageTagger, paths: Sequence[Path], limit: float, *, words: int, seconds: float
) -> dict[str, object]:
    """Compare samples for every sentence of texts with samples above a limit."""
    started, done, changed, refined, moved, largest = time.process_time(), 0, 0, 0, 0.0, 0.0
    spent = [0.0, 0.0]
    for documents in tokenized(paths, words=_WORDS_AT_ONCE):
        tagger.keep_features(documents)
        (every, first), (found, second) = (_predict(tagger, documents, one) for one in (None, limit))
        same, size = agreement(every, found), count_words(documents)
        done, changed = done + size, changed + int(same["labels_changed"])
        refined += int(same["refined_by_one_alone"])
        moved += size * same["uncertainty_mean_difference"]
        largest = max(largest, same["uncertainty_largest_difference"])
        spent = [spent[0] + first, spent[1] + second]
        print(done, changed, file=sys.stderr, flush=True)
        if done >= words or time.process_time() - started >= seconds:
            break
    return {
        "texts": [path.name for path in paths],
        "words": done,
        "limit": limit,
        "microseconds": [round(1e6 * value / done, 1) for value in spent],
        "labels_changed": changed,
        "refined_by_one_alone": refined,
        "uncertainty_mean_difference": round(moved / done, 5),
        "uncertainty_largest_difference": largest,
    }


def tokenized(paths: Sequence[Path], *, words: int) -> Iterator[list[list[Sentence]]]:
    """Yield the sentences of texts, about so many words at a time; one text of each file after the other."""
    stanza = StanzaParser(ParserConfig())._stanza
    documents: list[list[Sentence]] = []
    for _, text in chain.from_iterable(zip(*map(read_texts, paths), strict=False)):
        with torch.inference_mode():
            [found] = stanza.tokenize([parser_view(text)])
        documents.append(
            [Sentence(words=tuple(word.form for token in tokens for word in token.words)) for tokens in found]
        )
        if count_words(documents) >= words:
            yield documents
            documents = []
    if documents:
        yield documents


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
        "f1": round(span_scores(gold, scored([found.labels for found in predictions]))["all"].f1, 2),
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
    parser.add_argument("--words", type=int, default=100_000, help="of the collection, and of the texts")
    parser.add_argument("--texts", type=Path, nargs="*", default=[], help="JSON Lines files")
    parser.add_argument("--seconds", type=float, default=math.inf, help="processor time for the texts")
    parser.add_argument("--limits", nargs="+", type=float, default=[0.2, 0.3])
    parser.add_argument("--model", default="entities_en")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tagger, digest = load_two_stages(arguments.model)
    report: dict[str, object] = {**environment("bench_samples.py"), "digest": digest}
    for part in arguments.parts:
        report[part] = measure(tagger, read_dev(arguments.corpora, part), arguments.limits, gold=True)
        print(part, json.dumps(report[part]), file=sys.stderr, flush=True)
    if arguments.annotated is not None:
        chosen = choose_documents(arguments.annotated, words=arguments.words)
        report["collection"] = measure(tagger, chosen, arguments.limits, gold=False)
    if arguments.texts:
        limit = arguments.limits[-1]
        report["texts"] = measure_texts(
            tagger, arguments.texts, limit, words=arguments.words, seconds=arguments.seconds
        )
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
