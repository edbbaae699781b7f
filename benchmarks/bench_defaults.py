"""Score embedded taggers on gold corpora, as `concord evaluate` does: by type, drafts, speed.

The selection suite of the English taggers is the dev parts of five corpora; its score is the mean of their F1. Every
choice was made on it. Test parts are scored beside it.

Command: python benchmarks/bench_defaults.py --corpora ../shared/data/labelled \
    --summary benchmarks/results/defaults_cpu_202611.json

Of the English corpora, types other than PER, LOC and ORG are left out, geopolitical entities and facilities count as
LOC, as in training.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from english_types import TYPES
from environment import environment

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.workflows.console import plain
from concord.workflows.corpora import read_gold_for
from concord.workflows.evaluation import EvaluateJob, score_tagger
from research.grid.records import rounded

SUITE = ("ewt_uner", "gum_ne_open", "wikigold", "litbank_prop", "btc")


def summarise(scores: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean F1 of the labels, of the drafts and of each type over the corpora that have entities of it."""
    found: dict[str, list[float]] = {}
    for one in scores:
        found.setdefault("drafts", []).append(one["draft_score"])
        for kind, score in one["scores"].items():
            if score["gold"]:
                found.setdefault(kind, []).append(score["f1"])
    return {kind: round(statistics.mean(values), 2) for kind, values in found.items()}


def main() -> None:
    """Score every tagger on every part and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["entities_multi", "entities_en_small", "entities_bio"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report: dict[str, object] = {**environment("bench_defaults.py"), "threads": arguments.threads}
    for name in arguments.models:
        folder = Path("models/pretrained") / name
        tagger = load_tagger(folder)
        english = name != "entities_bio"
        parts = [(corpus, split) for split in ("dev", "test") for corpus in SUITE] if english else [("bc5cdr", "test")]
        types = TYPES if english else {}
        scores: dict[str, dict[str, Any]] = {}
        for corpus, split in parts:
            data = [str(next((arguments.corpora / corpus).glob(f"{split}.*")))]
            job = EvaluateJob(folder=folder, data=data, labels=types)
            documents = read_gold_for(tagger, data, labels=types)
            scores[f"{corpus} {split}"] = rounded(plain(score_tagger(tagger, documents, job)))
        report[name] = {
            "digest": tagger_digest(folder),
            "parameters": sum(parameter.numel() for parameter in tagger.parameters()),
            "threshold": tagger.threshold,
            **({"suite": summarise([scores[f"{corpus} dev"] for corpus in SUITE])} if english else {}),
            "scores": scores,
        }
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
