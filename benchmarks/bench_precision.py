"""Compare bf16, and float32 with products of medium precision, with fp32: scores, labels and processor time.

Command: python benchmarks/bench_precision.py --corpora ../shared/data/labelled --rounds 3

The dev parts of five corpora are tagged with one thread, by each in turns. Medium is torch's setting of that name,
which lets oneDNN round the factors of any product of matrices to bfloat16. Types are those of bench_calibration.py,
scores F1 in percent, times microseconds of processor time a word.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import torch
from bench_calibration import PARTS
from english_types import TYPES, scored
from environment import environment, quartiles

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.options import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import span_scores
from concord.models.taggers.base import Tagger
from concord.workflows.corpora.corpora import read_corpora
from concord.workflows.registry.resolve_tagger import find_tagger

WAYS = ("fp32", "bf16", "medium")
Way = TypeVar("Way", bound=str)


def label(tagger: Tagger, documents: Sequence[Sequence[Sentence]], way: str) -> tuple[list[tuple[str, ...]], float]:
    """Return the labels of all sentences and the seconds of processor time."""
    torch.set_float32_matmul_precision("medium" if way == "medium" else "highest")
    options = PredictOptions(precision="bf16" if way == "bf16" else "fp32")
    started = time.process_time()
    predictions = tagger.predict_documents(documents, options)
    return [found.labels for found in chain.from_iterable(predictions)], time.process_time() - started


def in_turns(
    ways: Sequence[Way], tag: Callable[[Way], tuple[list[tuple[str, ...]], float]], *, rounds: int, words: int
) -> tuple[dict[Way, list[tuple[str, ...]]], dict[Way, list[float]]]:
    """Tag in every way, in an order that is turned round each time; return labels, and microseconds a word."""
    labels: dict[Way, list[tuple[str, ...]]] = {}
    times: dict[Way, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            labels[way], seconds = tag(way)
            times[way].append(1e6 * seconds / words)
    return labels, times


def measure(tagger: Tagger, path: Path, *, rounds: int) -> dict[str, object]:
    """Tag one corpus in every way, in turns."""
    documents = read_corpora([str(path)], labels=TYPES)
    gold = [sentence.labels or () for sentence in chain.from_iterable(documents)]
    words = sum(map(len, gold))
    labels, times = in_turns(WAYS, partial(label, tagger, documents), rounds=rounds, words=words)
    report: dict[str, object] = {"words": words}
    for way in WAYS:
        changed = sum(
            one != other
            for expected, found in zip(labels["fp32"], labels[way], strict=True)
            for one, other in zip(expected, found, strict=True)
        )
        ratios = [exact / rough for exact, rough in zip(times["fp32"], times[way], strict=True)]
        report[way] = {
            "f1": round(span_scores(gold, scored(labels[way]))["all"].f1, 2),
            "labels_changed": changed,
            "microseconds_a_word": quartiles(times[way], digits=1),
            "times_as_fast": quartiles(ratios, digits=2),
        }
    return report


def main() -> None:
    """Measure every corpus and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True, help="folder of the gold corpora")
    parser.add_argument("--model", default="entities_en")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = find_tagger(arguments.model)
    tagger = load_tagger(found.folder)
    corpora = {}
    for part in PARTS:
        path = next((arguments.corpora / part).glob("dev.*"))
        corpora[part] = measure(tagger, path, rounds=arguments.rounds)
        print(part, json.dumps(corpora[part]), file=sys.stderr, flush=True)
    report = environment("bench_precision.py") | {"model": found.identity.model_dump(), "corpora": corpora}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
