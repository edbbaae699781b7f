"""Measure what Att-BiLSTM-CNN reads hidden states and contexts for: recall by position, with either of them zeroed.

Command: python benchmarks/bench_parts.py --corpus ../shared/data/labelled/ewt_uner --work /tmp/parts \
    --summary benchmarks/results/parts_cpu_202611.json

The measure of table 5 of Li et al. (2020), on the test set of a corpus whose epochs are chosen on its dev set, by the
profile ``small`` as in research/grid.yaml.
"""

import argparse
import json
from pathlib import Path

import torch
from environment import environment, spread

from concord.models.bundles.checkpoint import load_tagger
from concord.workflows.corpora import read_gold_for
from concord.workflows.training import train
from concord.workflows.training.job import read_train_job
from research.figures import FigureData


def recalls(corpus: Path, work: Path, *, seed: int) -> dict[str, dict[str, float]]:
    """Train a tagger, resuming an interrupted training, and return its recalls: what is zeroed -> position -> %."""
    files = {part: str(next(corpus.glob(f"{part}.*"))) for part in ("train", "dev", "test")}
    job = read_train_job(
        Path("conf/train/att_bilstm_cnn.yaml"),
        profile="small",
        overrides=[f'data.train=["{files["train"]}"]', f'data.dev="{files["dev"]}"', f"fit.seed={seed}"],
    )
    options = train.TrainOptions(folder=work / f"{corpus.name}.{seed}", resume=True, tracked=False, device="cpu")
    bundle = train.train(job, options).bundle
    tagger = load_tagger(bundle)
    documents = read_gold_for(tagger, [files["test"]], labels={})
    zeroed: dict[str, dict[str, float]] = FigureData(
        tagger, documents, folder=bundle, device="cpu", batch_words=4096
    ).parts()["zeroed"]
    return zeroed


def main() -> None:
    """Train, measure and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = [recalls(arguments.corpus, arguments.work, seed=seed) for seed in arguments.seeds]
    report = {
        **environment("bench_parts.py"),
        "corpus": f"{arguments.corpus.name}, test",
        "seeds": arguments.seeds,
        "recall": {
            zeroed: {place: spread([one[zeroed][place] for one in found], digits=2) for place in positions}
            for zeroed, positions in found[0].items()
        },
    }
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
