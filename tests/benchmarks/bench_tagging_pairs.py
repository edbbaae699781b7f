"""Tag the same documents with this checkout and with another one, in turns, and compare speed and labels.

Command: python tests/benchmarks/bench_tagging_pairs.py --other ../old --annotated out/presidents out/factbook

Both checkouts run their own bundled tagger in a process of its own, which is loaded once. Every sentence is read by
the encoder and both stages, so that only the speed of these differs. Seconds are processor time on one thread.
"""

import argparse
import inspect
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

CHECKOUT = Path(__file__).parents[2]
MODEL = "entities_en"


class Worker:
    """A process that tags with one checkout."""

    def __init__(self, checkout: Path, stack: ExitStack) -> None:
        """Start the process; it ends with the stack."""
        environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--worker"]
        self._process = stack.enter_context(
            subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )

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


def work() -> None:
    """Answer questions: tag documents and report processor seconds and labels."""
    import torch

    from concord.models.checkpoint import load_tagger
    from concord.models.data.sentence import Sentence
    from concord.models.two_stage.tagger import TwoStageTagger
    from concord.workflows.registry.resolve_tagger import find_tagger

    torch.set_num_threads(1)
    tagger = load_tagger(find_tagger(MODEL).folder)
    assert isinstance(tagger, TwoStageTagger)
    # Older checkouts have no first pass.
    options: dict[str, Any] = {"gate": 0.0} if "gate" in inspect.signature(tagger.predict_documents).parameters else {}
    for line in sys.stdin:
        question = json.loads(line)
        documents = [[Sentence(words=tuple(words)) for words in document] for document in question["documents"]]
        if question["samples_above"] is not None:
            tagger.set_samples_above(question["samples_above"])
        started = time.process_time()
        predictions = list(chain.from_iterable(tagger.predict_documents(documents, **options)))
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
    other: Worker, own: Worker, documents: Sequence[Sequence[Sequence[str]]], *, limit: float | None, pairs: int
) -> dict[str, object]:
    """Tag in turns and return the ratio of speeds, words a second and changed labels."""
    words = sum(len(sentence) for document in documents for sentence in document)
    before, after = [], []
    for _ in range(pairs + 1):
        before.append(other.ask({"documents": documents, "samples_above": None}))
        after.append(own.ask({"documents": documents, "samples_above": limit}))
    ratios = [left["seconds"] / right["seconds"] for left, right in zip(before[1:], after[1:], strict=True)]
    lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    changed = sum(one != two for one, two in zip(before[0]["labels"], after[0]["labels"], strict=True))
    return {
        "words": words,
        "pairs": pairs,
        "samples_above": limit,
        "times_as_fast": {"median": round(median, 3), "quartiles": [round(lower, 3), round(upper, 3)]},
        "words_per_second": {
            name: round(words / statistics.median(run["seconds"] for run in runs[1:]))
            for name, runs in (("other", before), ("own", after))
        },
        "labels_changed": changed,
    }


def main() -> None:
    """Compare on each collection and print."""
    from bench_tagging import choose_documents
    from environment import environment

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="root of the other checkout")
    parser.add_argument("--annotated", type=Path, nargs="+", required=True, help="output folders of finished runs")
    parser.add_argument("--words", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=0.3, help="samples_above of this checkout, in nats")
    arguments = parser.parse_args()
    commit = ["git", "-C", str(arguments.other), "rev-parse", "--short", "HEAD"]
    report: dict[str, object] = {
        **environment("bench_tagging_pairs.py"),
        "other": subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip(),
    }
    with ExitStack() as stack:
        other, own = Worker(arguments.other, stack), Worker(CHECKOUT, stack)
        stack.callback(other.close)
        stack.callback(own.close)
        for folder in arguments.annotated:
            chosen = choose_documents(folder, words=arguments.words)
            documents = first_sentences(chosen, words=arguments.words)
            report[folder.name] = compare(other, own, documents, limit=arguments.limit, pairs=arguments.pairs)
            print(folder.name, json.dumps(report[folder.name]), file=sys.stderr, flush=True)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--worker"] else main()
