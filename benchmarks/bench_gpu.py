"""Measure what tagging asks of a GPU: launches, copies and waits, and where there is a GPU, its words a second.

Command: python benchmarks/bench_gpu.py --gold $GOLD/ewt_uner/test.conllu.zst $GOLD/gum_ne_open/test.conllu.zst \
    $GOLD/litbank_prop/test.conll.zst --summary benchmarks/results/gpu_counts_cpu_202611.json

Without a GPU the operations are counted on a fake one, which computes on the CPU; `python_calls` are those of the host,
which the number of words decides as well. All is of a second call, after one that loads what a process keeps.
"""

import argparse
import cProfile
import json
import pstats
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from concord_testing.fake_device import FakeDevice
from environment import BUNDLES, environment, spread

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence, first_documents
from concord.pipeline.corpora.gold_corpus import read_gold

Documents = Sequence[Sequence[Sentence]]


def count(tagger: Any, documents: Documents, options: PredictOptions) -> dict[str, Any]:
    """Count on a fake GPU what a call launches, copies and waits for."""
    with FakeDevice() as device:
        tagger.move_to("cuda").predict_documents(documents[:1], options)
        device.clear()
        found = tagger.predict_documents(documents, options)
        counts = {
            "launches": device.launches.total(),
            "copies": dict(device.copies),
            "waits": dict(device.waits),
            "most_launched": dict(device.launches.most_common(8)),
        }
        tagger.move_to("cpu")
    return counts | {"labels": labels(found)}


def measure(tagger: Any, documents: Documents, options: PredictOptions, *, turns: int) -> dict[str, Any]:
    """Measure words a second on a GPU, the share of the time in which it computes, and its largest memory."""
    words = sum(len(sentence.words) for document in documents for sentence in document)
    tagger.move_to("cuda").predict_documents(documents, options)
    torch.cuda.reset_peak_memory_stats()
    speeds = [words / seconds(lambda: tagger.predict_documents(documents, options)) for _ in range(turns)]
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        whole = seconds(lambda: tagger.predict_documents(documents, options))
    busy = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6
    found = tagger.predict_documents(documents, options)
    tagger.move_to("cpu")
    return {
        "gpu": torch.cuda.get_device_name(),
        "words_per_second": spread(speeds, digits=0),
        "busy": round(busy / whole, 3),
        "peak_gigabytes": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "labels": labels(found),
    }


def seconds(run: Callable[[], object]) -> float:
    """Return the wall time of a call, with all that it asked of the GPU."""
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def python_calls(run: Callable[[], object]) -> int:
    """Return how many functions, of Python or C, the host calls."""
    profile = cProfile.Profile()
    profile.runcall(run)
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return calls


def labels(found: Sequence[Sequence[Any]]) -> list[str]:
    """Return the labels of all words."""
    return [label for document in found for prediction in document for label in prediction.labels]


def main() -> None:
    """Count or measure, and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gold", type=Path, nargs="+", required=True)
    parser.add_argument("--words", type=int, default=53218)
    parser.add_argument("--models", nargs="+", default=["entities_multi", "entities_en_small", "entities_bio"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--summary", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # Without the labels, which a tagger may not know.
    gold = [document for path in arguments.gold for document in read_gold(path)]
    plain = [[Sentence(words=sentence.words) for sentence in document] for document in gold]
    documents = first_documents(plain, arguments.words)
    report: dict[str, Any] = {**environment("bench_gpu.py"), "is_fake": not torch.cuda.is_available(), "models": {}}
    for name in arguments.models:
        tagger, options = load_tagger(BUNDLES / name), PredictOptions()
        expected = labels(tagger.predict_documents(documents, options))
        calls = python_calls(lambda: tagger.predict_documents(documents, options))  # noqa: B023
        found = (
            count(tagger, documents, options)
            if report["is_fake"]
            else measure(tagger, documents, options, turns=arguments.turns)
        )
        others = sum(one != other for one, other in zip(found.pop("labels"), expected, strict=True))
        report["models"][name] = {
            "words": len(expected),
            "documents": len(documents),
            "python_calls": calls,
            **found,
            "other_labels_than_the_cpu": others,
        }
        print(name, report["models"][name], flush=True)
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
