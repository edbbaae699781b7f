"""Tag parsed sentences with M weight samples, and measure stage one and stage two separately.

Command: python benchmarks/bench_tagging.py --annotated out/bench --samples 1 8 32

Whole documents are taken from an annotated collection at even distances until they have --words words. Every repeat
runs all numbers of samples, each with both stages and with stage one alone (a threshold no entropy reaches), so that
disturbances affect all of them; stage two is the difference. Labels in bfloat16 are compared
with those in fp32, and where there is a CUDA device its fp32 labels with the CPU's.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch
from concord_runs import read_sentences
from environment import environment, spread

from concord.models.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.options import Precision, PredictOptions
from concord.models.outputs import Prediction, known_numbers
from concord.models.tagger import Tagger
from concord.models.words.frozen_encoder import load_encoder
from concord.workflows.registry.resolve_tagger import find_tagger

NEAR = 1e-5
NO_CUDA = "no CUDA device on this machine"

Documents = Sequence[Sequence[Sentence]]
Predictions = list[list[Prediction]]


def choose_documents(annotated: Path, *, words: int) -> list[list[Sentence]]:
    """Take documents at even distances until they have `words` words, at least one."""
    documents = list(read_sentences(annotated).values())
    total = count_words(documents)
    step = max(1, total // words)
    chosen: list[list[Sentence]] = []
    # Further rounds, each shifted by one, fill up what is missing.
    for document in chain.from_iterable(documents[start::step] for start in range(step)):
        if chosen and count_words(chosen) >= words:
            break
        chosen.append(document)
    return chosen


def count_words(documents: Documents) -> int:
    """Return the number of words."""
    return sum(len(sentence.words) for document in documents for sentence in document)


def timed(
    tagger: Tagger,
    documents: Documents,
    *,
    samples: int,
    stages: int = 2,
    precision: Precision = "fp32",
) -> tuple[float, Predictions]:
    """Tag once; return seconds and predictions."""
    options = PredictOptions(samples=samples, threshold=None if stages == 2 else math.inf, precision=precision)
    started = time.perf_counter()
    predictions = tagger.predict_documents(documents, options)
    return time.perf_counter() - started, predictions


def measure_speed(
    tagger: Tagger, documents: Documents, *, samples: Sequence[int], repeats: int
) -> list[dict[str, object]]:
    """Return a row for each number of samples."""
    words = count_words(documents)
    timed(tagger, documents[:1], samples=1)
    both: dict[int, list[float]] = {number: [] for number in samples}
    drafts: dict[int, list[float]] = {number: [] for number in samples}
    rows: list[dict[str, object]] = []
    for _ in range(repeats):
        for number in samples:
            both[number].append(timed(tagger, documents, samples=number)[0])
            drafts[number].append(timed(tagger, documents, samples=number, stages=1)[0])
    for number in samples:
        differences = [whole - draft for whole, draft in zip(both[number], drafts[number], strict=True)]
        rows.append(
            {
                "samples": number,
                "tokens_per_second": rates(words, both[number]),
                "stage_one_tokens_per_second": rates(words, drafts[number]),
                "stage_two_seconds": spread(differences, digits=3),
                "stage_two_share_of_time": round(sum(differences) / sum(both[number]), 4),
            }
        )
    return rows


def measure_encoder(tagger: Tagger, documents: Documents, *, repeats: int) -> dict[str, object] | None:
    """Time the encoder alone, which runs once for both stages; None for a tagger without one."""
    if tagger.config.encoder is None:
        return None
    encoder = load_encoder(tagger.config.encoder, tagger.device.type)
    sentences = [sentence.words for document in documents for sentence in document if sentence.words]
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        for first in range(0, len(sentences), 100):
            encoder.features(sentences[first : first + 100])
        seconds.append(time.perf_counter() - started)
    return {"tokens_per_second": rates(count_words(documents), seconds)}


def count_stage_two(predictions: Predictions) -> dict[str, object]:
    """Count the sentences and tokens that stage two refined."""
    sentences = [prediction for document in predictions for prediction in document]
    refined = [sum(prediction.refined) for prediction in sentences]
    words = sum(len(prediction.labels) for prediction in sentences)
    return {
        "sentences": len(sentences),
        "sentences_refined": sum(map(bool, refined)),
        "sentences_refined_share": round(sum(map(bool, refined)) / len(sentences), 4),
        "tokens_refined": sum(refined),
        "tokens_refined_share": round(sum(refined) / words, 5),
    }


def compare_labels(expected: Predictions, found: Predictions, *, threshold: float | None) -> dict[str, object]:
    """Count words with other labels, and how many of these are near ties."""
    words = changed = near_ties = 0
    limit = math.inf if threshold is None else threshold
    pairs = zip(chain.from_iterable(expected), chain.from_iterable(found), strict=True)
    for one, other in pairs:
        words += len(one.labels)
        margins, uncertainty = known_numbers(one.margins), known_numbers(one.uncertainty)
        for place in (place for place in range(len(one.labels)) if one.labels[place] != other.labels[place]):
            changed += 1
            near_ties += margins[place] < NEAR or abs(uncertainty[place] - limit) < NEAR
    return {
        "words": words,
        "changed": changed,
        "changed_share": round(changed / words, 6),
        "near_ties_among_them": near_ties,
    }


def measure_bf16(tagger: Tagger, documents: Documents, *, samples: int) -> dict[str, object]:
    """Compare labels and speed of bfloat16 with those of fp32, on the same device, one run each."""
    full, expected = timed(tagger, documents, samples=samples)
    half, found = timed(tagger, documents, samples=samples, precision="bf16")
    return {
        "samples": samples,
        "labels": compare_labels(expected, found, threshold=tagger.threshold),
        "times_the_speed_of_fp32": round(full / half, 3),
    }


def measure_tagger(model: str, documents: Documents, arguments: argparse.Namespace) -> dict[str, object]:
    """Measure one tagger, on the CPU and, where there is one, on a CUDA device."""
    resolved = find_tagger(model)
    tagger = load_tagger(resolved.folder)
    samples = arguments.samples if tagger.threshold is not None else arguments.samples[:1]
    middle = samples[len(samples) // 2]
    _, on_cpu = timed(tagger, documents, samples=middle)
    row: dict[str, object] = {
        "model": resolved.name,
        "digest": resolved.digest,
        "tagger": tagger.name,
        "threshold": tagger.threshold,
        "parameters": sum(parameter.numel() for parameter in tagger.parameters()),
        "stage_two": {"samples": middle, **count_stage_two(on_cpu)},
        "cpu": measure_speed(tagger, documents, samples=samples, repeats=arguments.repeats),
        "cpu_encoder_alone": measure_encoder(tagger, documents, repeats=arguments.repeats),
        "cpu_bf16": measure_bf16(tagger, documents, samples=middle),
        "cuda": None,
    }
    if torch.cuda.is_available():
        tagger = load_tagger(resolved.folder, device="cuda")
        _, on_cuda = timed(tagger, documents, samples=middle)
        row["cuda"] = measure_speed(tagger, documents, samples=samples, repeats=arguments.repeats)
        row["cuda_labels_against_cpu"] = compare_labels(on_cpu, on_cuda, threshold=tagger.threshold)
        row["cuda_bf16"] = measure_bf16(tagger, documents, samples=middle)
    return row


def rates(words: int, seconds: Sequence[float]) -> dict[str, float]:
    """Return words a second from the seconds of the repeats."""
    return spread([words / taken for taken in seconds], digits=0)


def main() -> None:
    """Measure every tagger and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--annotated", type=Path, required=True, help="output folder of a finished run")
    parser.add_argument("--models", nargs="+", default=["entities_en", "entities_en_small"])
    parser.add_argument("--samples", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--words", type=int, default=40_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    documents = choose_documents(arguments.annotated, words=arguments.words)
    taggers = []
    for model in arguments.models:
        taggers.append(measure_tagger(model, documents, arguments))
        print(json.dumps(taggers[-1]), file=sys.stderr, flush=True)
    report = {
        **environment("bench_tagging.py"),
        "config": {
            "threads": arguments.threads,
            "repeats": arguments.repeats,
            "documents": len(documents),
            "words": count_words(documents),
        },
        "cuda_device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "note": None if torch.cuda.is_available() else NO_CUDA,
        "taggers": taggers,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
