"""Score the trees that ``concord parse`` adds to each part of a gold corpus, on which the grid trains and tests.

Command: python benchmarks/bench_trees.py --corpus ../shared/data/labelled/ewt_uner --work /tmp/trees \
    --summary benchmarks/results/trees_cpu_202611.json

Percent of words with the gold part of speech, head, and head and relation without its subtype. A parser that was
trained on the train part has better trees there than a tagger meets later.
"""

import argparse
import json
from itertools import chain
from pathlib import Path

import torch
from bench_peers import tree_scores
from environment import environment

from concord.pipeline.corpora.gold_corpus import read_gold
from concord.workflows import prepare
from concord.workflows.prepare import ParseConfig


def score_part(gold: Path, parsed: Path) -> dict[str, float]:
    """Parse one part and score it."""
    prepare.parse_command(ParseConfig(input=str(gold), output=str(parsed)))
    wanted, found = (list(chain.from_iterable(read_gold(path))) for path in (gold, parsed))
    rows = [
        list(zip(sentence.tags or (), sentence.heads or (), sentence.relations or (), strict=True))
        for sentence in found
    ]
    return {"words": sum(len(sentence.words) for sentence in wanted), **tree_scores(wanted, rows)}


def main() -> None:
    """Parse, score and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    parts = {
        part: score_part(next(arguments.corpus.glob(f"{part}.conllu*")), arguments.work / f"{part}.conllu.zst")
        for part in ("train", "dev", "test")
    }
    report = {**environment("bench_trees.py"), "corpus": arguments.corpus.name, "parts": parts}
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
