"""Score embedded taggers on gold corpora, as `concord evaluate` does: by type, drafts, recurring names, speed.

Command: python tests/benchmarks/bench_defaults.py --corpora ../shared/data/labelled \
    --summary tests/benchmarks/results/defaults_cpu_202611.json

Types other than PER, LOC and ORG are left out, geopolitical entities and facilities count as LOC, as in training.
"""

import argparse
import json
from pathlib import Path

import torch
from environment import environment

from concord.models.checkpoint import load_tagger, tagger_digest
from concord.workflows.grid.records import rounded
from concord.workflows.training.corpora import read_gold_for
from concord.workflows.training.evaluate import EvaluateJob, score_tagger

PARTS = (
    ("ewt_uner", "dev"),
    ("ewt_uner", "test"),
    ("gum_ne_open", "test"),
    ("wikigold", "test"),
    ("btc", "test"),
    ("litbank_prop", "test"),
)
TYPES: dict[str, str | None] = {"GPE": "LOC", "FAC": "LOC", "VEH": None, "MISC": None}


def main() -> None:
    """Score every tagger on every part and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["entities_en", "entities_en_small"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report: dict[str, object] = {**environment("bench_defaults.py"), "threads": arguments.threads}
    for name in arguments.models:
        folder = Path("models/pretrained") / name
        tagger = load_tagger(folder)
        scores: dict[str, object] = {}
        for corpus, split in PARTS:
            data = [str(next((arguments.corpora / corpus).glob(f"{split}.*")))]
            job = EvaluateJob(folder=folder, data=data, labels=TYPES)
            documents = read_gold_for(tagger, data, labels=TYPES)
            scores[f"{corpus} {split}"] = rounded(score_tagger(tagger, documents, job))
        report[name] = {
            "digest": tagger_digest(folder),
            "parameters": sum(parameter.numel() for parameter in tagger.parameters()),
            "threshold": tagger.threshold,
            "scores": scores,
        }
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
