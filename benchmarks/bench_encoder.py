"""Compare the encoder in int8 with float32, and one kind of processor with another: scores, labels and speed.

Command: python benchmarks/bench_encoder.py --corpora ../shared/data/labelled --rounds 3 \
    --summary benchmarks/results/encoder_cpu_202611.json

- `precision`: the dev parts of five corpora are tagged with one thread, by each precision in turns. It replaces those
  that tagger.json names: that of the encoder, of form vectors, or both. Types are those of bench_calibration.py, scores
  F1 in percent, times microseconds of processor time a word.
- `encoder`: words a second of the encoder alone, on 600 sentences of the first part, in the same turns.
- `processors`: the labels and probabilities of the first part by child processes that are held to fewer vector
  instructions (torch's ATEN_CPU_CAPABILITY, oneDNN's ONEDNN_MAX_CPU_ISA), against those of this processor.

With --before another checkout is measured against this one instead: the processor time of the encoder alone by child
processes that take turns, and the labels of the first part, on this processor and on one with AVX2 alone.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from bench_calibration import PARTS
from english_types import TYPES, scored
from environment import environment, quartiles

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.outputs import Prediction
from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import span_scores
from concord.models.taggers.base import Tagger
from concord.models.words.bert import fastest_product
from concord.models.words.encoder import FrozenEncoder
from concord.models.words.encoder_config import EncoderConfig, Precision
from concord.workflows.corpora import read_corpora
from concord.workflows.registry import find_tagger

PRECISIONS: tuple[Precision, ...] = ("int8", "float32")
PROCESSORS: Mapping[str, Mapping[str, str]] = {
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "no vector instructions in torch": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
_SENTENCES = 600
_TURN_SENTENCES = 60
Way = TypeVar("Way", bound=str)


def predict(tagger: Tagger, documents: Sequence[Sequence[Sentence]]) -> list[Prediction]:
    """Return the predictions of all sentences."""
    return list(chain.from_iterable(tagger.predict_documents(documents)))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return a result and its seconds of processor time."""
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


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


def copy_with(precision: Precision, folder: Path, target: Path) -> Path:
    """Copy a tagger in which a precision replaces those that it names."""
    for path in shutil.copytree(folder, target).rglob("tagger.json"):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r'"precision": "\w+"', f'"precision": "{precision}"', text), encoding="utf-8")
    return target


def compare(folders: Mapping[Precision, Path], path: Path, *, rounds: int) -> dict[str, object]:
    """Tag one corpus in both precisions, in turns."""
    documents = read_corpora([str(path)], labels=TYPES)
    gold = [sentence.labels or () for sentence in chain.from_iterable(documents)]
    words = sum(map(len, gold))

    def tag(precision: Precision) -> tuple[list[tuple[str, ...]], float]:
        tagger = load_tagger(folders[precision])
        predict(tagger, documents[:1])
        found, seconds = timed(partial(predict, tagger, documents))
        return [one.labels for one in found], seconds

    labels, times = in_turns(PRECISIONS, tag, rounds=rounds, words=words)
    pairs = zip(chain.from_iterable(labels["int8"]), chain.from_iterable(labels["float32"]), strict=True)
    report: dict[str, object] = {"words": words, "labels_changed": sum(one != other for one, other in pairs)}
    ratios = [exact / rough for exact, rough in zip(times["float32"], times["int8"], strict=True)]
    for precision in PRECISIONS:
        report[precision] = {
            "f1": round(span_scores(gold, scored(labels[precision]))["all"].f1, 2),
            "microseconds_a_word": quartiles(times[precision], digits=1),
        }
    return report | {"int8_times_as_fast": quartiles(ratios, digits=2)}


def time_encoder(path: Path, *, rounds: int) -> dict[str, object]:
    """Return the words a second of the encoder alone."""
    sentences = [one.words for one in chain.from_iterable(read_corpora([str(path)], labels=TYPES))][:_SENTENCES]
    words = sum(map(len, sentences))
    encoders = {precision: FrozenEncoder(EncoderConfig(precision=precision)) for precision in PRECISIONS}
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds + 1):
        for precision, encoder in encoders.items():
            rates[precision].append(words / timed(partial(encoder.features, sentences))[1])
    return {precision: quartiles(found[1:], digits=0) for precision, found in rates.items()}


def of_child(model: str, path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the labels and probabilities of a corpus by a process with other instructions."""
    command = [sys.executable, __file__, "--child", "--model", model, "--corpora", str(path)]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def answer(model: str, path: Path) -> dict[str, Any]:
    """Return the labels and probabilities of a corpus, and what computed them."""
    found = predict(load_tagger(find_tagger(model).folder), read_corpora([str(path)], labels=TYPES))
    return {
        "product": fastest_product().__name__,
        "labels": [label for one in found for label in one.labels],
        "probabilities": [round(float(value or 0), 9) for one in found for value in one.probabilities],
    }


def compare_processors(model: str, path: Path) -> dict[str, object]:
    """Compare what this processor answers with what it does when it is held to fewer instructions."""
    own = of_child(model, path, {})
    report: dict[str, object] = {"words": len(own["labels"]), "product": own["product"]}
    for name, variables in PROCESSORS.items():
        found = of_child(model, path, variables)
        pairs = zip(own["labels"], found["labels"], strict=True)
        differences = [
            abs(one - other) for one, other in zip(own["probabilities"], found["probabilities"], strict=True)
        ]
        report[name] = {
            "product": found["product"],
            "labels_changed": sum(one != other for one, other in pairs),
            "probabilities_changed": sum(difference > 0 for difference in differences),
            "largest_change_of_a_probability": max(differences),
        }
    return report


class EncoderOf:
    """A process that encodes sentences with the encoder of a checkout."""

    def __init__(self, checkout: Path, path: Path, variables: Mapping[str, str]) -> None:
        """Start the process."""
        command = [sys.executable, __file__, "--turns", "--corpora", str(path)]
        environ = {**os.environ, **variables, "PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def turn(self) -> float:
        """Return the microseconds of processor time a word of one turn."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def take_turns(path: Path) -> None:
    """Encode the first sentences of a corpus for every line of stdin, and print the microseconds a word."""
    sentences = [one.words for one in chain.from_iterable(read_corpora([str(path)], labels=TYPES))][:_TURN_SENTENCES]
    encoder = FrozenEncoder(EncoderConfig(passage_words=190))
    for _ in sys.stdin:
        print(1e6 * timed(partial(encoder.features, sentences))[1] / sum(map(len, sentences)), flush=True)


def compare_checkouts(before: Path, model: str, path: Path, *, rounds: int) -> dict[str, object]:
    """Compare another checkout's encoder with this one's, by kinds of processors."""
    report: dict[str, object] = {}
    for name, variables in {"this processor": {}, "AVX2": PROCESSORS["AVX2"]}.items():
        pair = [EncoderOf(checkout, path, variables) for checkout in (before, Path.cwd())]
        turns = [[encoder.turn() for encoder in pair] for _ in range(rounds + 1)][1:]
        for encoder in pair:
            encoder.close()
        old, new = (of_child(model, path, {**variables, "PYTHONPATH": str(one)}) for one in (before, Path.cwd()))
        report[name] = {
            "product": {"before": old["product"], "now": new["product"]},
            "microseconds_a_word": {
                "before": quartiles([turn[0] for turn in turns], digits=1),
                "now": quartiles([turn[1] for turn in turns], digits=1),
            },
            "times_as_fast": quartiles([slow / fast for slow, fast in turns], digits=3),
            "words": len(new["labels"]),
            "labels_changed": sum(one != other for one, other in zip(old["labels"], new["labels"], strict=True)),
        }
    return report


def main() -> None:
    """Measure every corpus and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True, help="folder of the gold corpora")
    parser.add_argument("--model", default="entities_multi")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--summary", type=Path)
    parser.add_argument("--before", type=Path, help="root of another checkout, to measure against this one")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--turns", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.child:
        print(json.dumps(answer(arguments.model, arguments.corpora)))
        return
    if arguments.turns:
        take_turns(arguments.corpora)
        return
    found = find_tagger(arguments.model)
    paths = {part: next((arguments.corpora / part).glob("dev.*")) for part in PARTS}
    first = next(iter(paths.values()))
    report = environment("bench_encoder.py") | {"model": found.identity.model_dump()}
    if arguments.before is not None:
        report["before"] = compare_checkouts(arguments.before, arguments.model, first, rounds=arguments.rounds)
    else:
        report["processors"] = compare_processors(arguments.model, first)
        report["encoder"] = time_encoder(first, rounds=arguments.rounds)
        with TemporaryDirectory() as copies:
            folders = {one: copy_with(one, found.folder, Path(copies) / one) for one in PRECISIONS}
            report["precision"] = {
                part: compare(folders, path, rounds=arguments.rounds) for part, path in paths.items()
            }
    print(text := json.dumps(report, indent=1))
    if arguments.summary is not None:
        arguments.summary.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
