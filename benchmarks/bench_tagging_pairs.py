"""Tag the same documents with this checkout and with another one, in turns, and compare speed and labels.

Command: python benchmarks/bench_tagging_pairs.py --other ../old --annotated out/presidents out/factbook

Each checkout runs its own bundled taggers, each in a process of its own, which loads it once. A tagger with a first
pass is also run with a gate of 0, by which both stages read every sentence. Seconds are processor time on one thread.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from environment import environment, quartiles

CHECKOUT = Path(__file__).parents[1]
WITH_FIRST_PASS = "entities_en"


class Worker:
    """A process that tags with a bundled tagger of one checkout."""

    def __init__(self, checkout: Path, model: str, stack: ExitStack) -> None:
        """Start the process; it ends with the stack."""
        surroundings = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--worker", model]
        self._process = stack.enter_context(
            subprocess.Popen(command, env=surroundings, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        stack.callback(self.close)

    def ask(self, question: Mapping[str, object]) -> dict[str, Any]:
        """Send a question and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()


def work(model: str) -> None:
    """Answer questions: tag documents and report processor seconds and labels."""
    import torch

    from concord.models.checkpoint import load_tagger
    from concord.models.data.sentence import Sentence
    from concord.models.options import PredictOptions
    from concord.workflows.registry.resolve_tagger import find_tagger

    torch.set_num_threads(1)
    tagger = load_tagger(find_tagger(model).folder)
    for line in sys.stdin:
        question = json.loads(line)
        documents = [[Sentence(words=tuple(words)) for words in document] for document in question["documents"]]
        started = time.process_time()
        predictions = list(
            chain.from_iterable(tagger.predict_documents(documents, PredictOptions(**question["options"])))
        )
        seconds = time.process_time() - started
        labels = list(chain.from_iterable(prediction.labels for prediction in predictions))
        print(json.dumps({"seconds": seconds, "labels": labels}), flush=True)


def first_sentences(documents: Sequence[Sequence[Any]], *, words: int) -> list[list[tuple[str, ...]]]:
    """Return the words of the first sentences of documents, so many in all."""
    chosen: list[list[tuple[str, ...]]] = []
    for document in documents:
        chosen.append([])
        for sentence in document:
            if words <= 0:
                return chosen
            chosen[-1].append(sentence.words)
            words -= len(sentence.words)
    return chosen


def compare(
    other: Worker,
    own: Worker,
    documents: Sequence[Sequence[Sequence[str]]],
    *,
    options: Mapping[str, object],
    pairs: int,
) -> dict[str, object]:
    """Tag in turns and return the ratio of speeds, words a second and changed labels; the options are our own."""
    words = sum(len(sentence) for document in documents for sentence in document)
    before, after = [], []
    for _ in range(pairs + 1):
        before.append(other.ask({"documents": documents, "options": {}}))
        after.append(own.ask({"documents": documents, "options": options}))
    ratios = [left["seconds"] / right["seconds"] for left, right in zip(before[1:], after[1:], strict=True)]
    changed = sum(one != two for one, two in zip(before[0]["labels"], after[0]["labels"], strict=True))
    return {
        "words": words,
        "pairs": pairs,
        "times_as_fast": quartiles(ratios, digits=2),
        "words_per_second": {
            name: round(words / statistics.median(run["seconds"] for run in runs[1:]))
            for name, runs in (("other", before), ("own", after))
        },
        "labels_changed": changed,
    }


def main() -> None:
    """Compare each tagger on each collection and print."""
    from bench_tagging import choose_documents  # not in a worker, whose checkout may be an older one

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="root of the other checkout")
    parser.add_argument("--annotated", type=Path, nargs="+", required=True, help="output folders of finished runs")
    parser.add_argument("--words", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=[WITH_FIRST_PASS, "entities_en_small"])
    arguments = parser.parse_args()
    commit = ["git", "-C", str(arguments.other), "rev-parse", "--short", "HEAD"]
    report: dict[str, object] = {
        **environment("bench_tagging_pairs.py"),
        "other": subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip(),
    }
    for folder in arguments.annotated:
        chosen = choose_documents(folder, words=arguments.words)
        documents = first_sentences(chosen, words=arguments.words)
        for model in arguments.models:
            runs: dict[str, dict[str, float]] = {model: {}}
            if model == WITH_FIRST_PASS:
                runs[f"{model}, gate 0"] = {"gate": 0.0}
            with ExitStack() as stack:
                other, own = (Worker(root, model, stack) for root in (arguments.other, CHECKOUT))
                for name, options in runs.items():
                    found = compare(other, own, documents, options=options, pairs=arguments.pairs)
                    report[f"{name}: {folder.name}"] = found
                    print(name, folder.name, json.dumps(found), file=sys.stderr, flush=True)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    work(sys.argv[2]) if sys.argv[1:2] == ["--worker"] else main()
