"""Say where the processor time of a run goes, with this checkout and with another one, or without trees and tags.

Commands:
python benchmarks/bench_profile.py --other ../old --input $TEXT/us_presidents.jsonl.zst --documents 14
python benchmarks/bench_profile.py --model entities_en_small --input $TEXT/us_presidents.jsonl.zst --documents 2

Each run is ``annotate`` in a process of its own, in one thread. Without ``--other`` this checkout takes turns with
itself: with trees, without them, and without tags as well. A part's time is without that of parts that run within
it; what a checkout does not have takes no time. Times are microseconds of processor time a word, medians over the
rounds. What happens once, such as loading models and planning, is reported apart, in seconds.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
PARTS = {
    "reading": ("pipeline.worker.read_stage", "ReadStage", "run"),
    "parse: tokenizer": ("pipeline.parsing.stanza_fast", "FastStanza", "tokenize"),
    "parse: tokenizer alone": ("pipeline.parsing.stanza_fast", "FastTokenizer", "tokenize"),
    "parse: tagger": ("pipeline.parsing.stanza_fast", "FastStanza", "_tag"),
    "parse: lemmas": ("pipeline.parsing.stanza_fast", "FastStanza", "_lemmatize"),
    "parse: parser": ("pipeline.parsing.stanza_fast", "FastStanza", "_attach"),
    "parse: word forms": ("pipeline.parsing.stanza_networks", "FormTable", "look_up"),
    "parse: the rest": ("pipeline.worker.parse_stage", "ParseStage", "run"),
    "tag: first pass": ("models.two_stage.tagger", "TwoStageTagger", "_pass_first"),
    "tag: encoder": ("models.words.frozen_encoder", "FrozenEncoder", "features"),
    "tag: stage one": ("models.two_stage.tagger", "TwoStageTagger", "_draft_windows"),
    "tag: stage two": ("models.two_stage.tagger", "TwoStageTagger", "_refine_windows"),
    "tag: the rest": ("pipeline.worker.tag_stage", "TagStage", "run"),
    "writing": ("pipeline.worker.commit_stage", "CommitStage", "run"),
}
ONCE = "once"
VARIANTS = {"with_trees": {}, "without_trees": {"trees": False}, "without_tags": {"trees": False, "tags": False}}


class Stopwatch:
    """Processor time by part; the time of a part excludes that of parts that run within it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._running = [ONCE]
        self._last = time.process_time()

    def _charge(self) -> None:
        now = time.process_time()
        self.seconds[self._running[-1]] += now - self._last  # type: ignore[assignment]
        self._last = now

    def measured(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time charged to a part."""

        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            self._charge()
            self._running.append(part)
            try:
                return function(*arguments, **options)
            finally:
                self._charge()
                self._running.pop()

        return call


def work(source: str, model: str, parser: str) -> None:
    """Annotate once in this process and print the words and the seconds of each part."""
    from concord.pipeline.annotate import annotate
    from concord.pipeline.config import AnnotateConfig
    from concord.workflows.registry.resolve_tagger import find_tagger

    watch = Stopwatch()
    for part, (module, owner, name) in PARTS.items():
        try:
            found = getattr(importlib.import_module(f"concord.{module}"), owner)
        except (ImportError, AttributeError):
            continue
        if hasattr(found, name):
            setattr(found, name, watch.measured(part, getattr(found, name)))
    with tempfile.TemporaryDirectory() as folder:
        config = AnnotateConfig.from_mapping(
            {
                "input": source,
                "output": str(Path(folder, "output")),
                "executor": {"kind": "local", "threads": 1},
                "tagger": {"model": model},
                "parser": json.loads(parser),
                "report": False,
            }
        )
        report = annotate(config, tagger=find_tagger(model))
        watch.measured(ONCE, int)()
    print(json.dumps({"words": report.words, "seconds": watch.seconds}))


def run(checkout: Path, source: Path, model: str, parser: dict[str, bool]) -> dict[str, Any]:
    """Annotate with a checkout and settings of the parser; return the words and the seconds of each part."""
    surroundings = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker", str(source), model, json.dumps(parser)]
    ended = subprocess.run(command, env=surroundings, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def describe(runs: list[dict[str, Any]]) -> dict[str, object]:
    """Return microseconds a word and the share of each part of runs over the same documents."""
    words = runs[0]["words"]
    parts = [part for part in PARTS if any(one["seconds"].get(part) for one in runs)]
    times = {part: 1e6 / words * statistics.median(one["seconds"].get(part, 0.0) for one in runs) for part in parts}
    total = sum(times.values())
    return {
        "words": words,
        "microseconds_a_word": round(total, 1),
        "words_per_second": round(1e6 / total),
        "seconds_once": round(statistics.median(one["seconds"][ONCE] for one in runs), 1),
        "parts": {
            part: {"microseconds_a_word": round(value, 1), "share": round(value / total, 3)}
            for part, value in times.items()
        },
    }


def main() -> None:
    """Run both in turns and print."""
    from corpora import read_texts  # not in a worker, whose checkout may be an older one
    from environment import environment, quartiles

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--other", type=Path, help="root of the other checkout")
    parser.add_argument("--documents", type=int, default=14, help="the first so many of the input")
    parser.add_argument("--model", default="entities_en")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    compared: dict[str, tuple[Path, dict[str, bool]]] = {name: (CHECKOUT, own) for name, own in VARIANTS.items()}
    other = {}
    if arguments.other is not None:
        compared = {"before": (arguments.other.resolve(), {}), "after": (CHECKOUT, {})}
        commit = ["git", "-C", str(arguments.other), "rev-parse", "--short", "HEAD"]
        other = {"other": subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip()}
    first, *later = compared
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in compared}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "documents.jsonl")
        with source.open("w", encoding="utf-8") as lines:
            for doc_id, text in islice(read_texts(arguments.input), arguments.documents):
                lines.write(json.dumps({"id": doc_id, "text": text}) + "\n")
        for number in range(arguments.rounds):
            for name in reversed(runs) if number % 2 else runs:
                root, settings = compared[name]
                runs[name].append(run(root, source, arguments.model, settings))
                print(name, json.dumps(describe(runs[name][-1:])), file=sys.stderr, flush=True)
    totals = {
        name: [sum(one["seconds"].values()) - one["seconds"][ONCE] for one in found] for name, found in runs.items()
    }
    report = {
        **environment("bench_profile.py"),
        **other,
        "config": {"input": arguments.input.name, "documents": arguments.documents, "model": arguments.model},
        "rounds": arguments.rounds,
        "times_as_fast": {
            name: quartiles([slow / fast for slow, fast in zip(totals[first], totals[name], strict=True)], digits=2)
            for name in later
        },
        **{name: describe(found) for name, found in runs.items()},
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    work(*sys.argv[2:]) if sys.argv[1:2] == ["--worker"] else main()
