"""Measure how much one draw of weight samples moves the F1 of a tagger of two stages, by the number of samples.

Command: python benchmarks/bench_draws.py --corpora ../shared/data/labelled

A tagger draws its weight samples once, from the seed in its configuration; here other seeds take its place. Both stages
read every sentence with samples: the gate of a first pass is 0, and no sentence is left to the mean weights. Types are
as in bench_calibration.py.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from bench_samples import Documents, load_two_stages, read_dev
from environment import environment, spread

from concord.models.evaluation.metrics import gold_sequences, span_scores
from concord.models.options import PredictOptions
from concord.models.two_stage.tagger import TwoStageTagger


def scores(tagger: TwoStageTagger, documents: Documents, *, samples: int, seed: int) -> list[float]:
    """Return the F1 of final labels and of drafts with the samples of a seed."""
    tagger.config = tagger.config.model_copy(update={"sample_seed": seed})
    tagger._drawn = None
    predictions = tagger.predict_documents(documents, PredictOptions(samples=samples, gate=0.0))
    found = [sentence for document in predictions for sentence in document]
    gold = gold_sequences(documents)
    return [
        span_scores(gold, labels)["all"].f1
        for labels in ([one.labels for one in found], [one.draft_labels for one in found])
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--part", default="ewt_uner")
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--model", default="entities_en")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tagger, digest = load_two_stages(arguments.model)
    tagger.set_samples_above(None)
    documents = read_dev(arguments.corpora, arguments.part)
    tagger.keep_features(documents)
    measured = {}
    for samples in arguments.samples:
        drawn = []
        for seed in range(1, arguments.draws + 1):
            drawn.append(scores(tagger, documents, samples=samples, seed=seed))
            print(samples, seed, *drawn[-1], file=sys.stderr, flush=True)
        final, draft = (spread(column, digits=3) for column in zip(*drawn, strict=True))
        measured[str(samples)] = {"final": final, "draft": draft}
    report = {
        **environment("bench_draws.py"),
        "tagger": arguments.model,
        "digest": digest,
        "data": f"{arguments.part}, dev",
        "draws": arguments.draws,
        "samples": measured,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
