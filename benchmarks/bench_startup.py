"""Measure `concord annotate` to its first shard, `concord.load` to an Nlp, and a warm Nlp with one sentence.

Command: python benchmarks/bench_startup.py --rounds 5

Every measurement is a process of its own, with one thread. Wall time counts from the start of the process; processor
time is that of the process. With ``--against``, the folder of another checkout, both are measured in turns, and the
ratios are of the two runs of a round.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from environment import environment, quartiles

CHECKOUT = Path(__file__).resolve().parents[1]
SENTENCES = (
    "Ada met Charles in London.",
    "The ferry from Harwich leaves at noon.",
    "Nobody at Cascade Hydro knew why the lights had gone out again.",
    "Maria Gonzalez flew to Geneva on Tuesday, and her brother followed by train a week later.",
    "It rained.",
    "According to the mayor of Bergen, the new harbour will not be finished before the end of next year.",
)
ANNOTATE = """
import json, os, sys, time
from concord._environment import set_environment
set_environment()
from concord.pipeline.worker.shard_worker import ShardWorker
run = ShardWorker.run
def timed(*arguments, **options):
    found = {"seconds": time.monotonic() - float(os.environ["STARTED"]), "cpu_seconds": time.process_time()}
    print(json.dumps({name: round(value, 3) for name, value in found.items()}), file=sys.stderr)
    return run(*arguments, **options)
ShardWorker.run = timed
from concord.workflows.cli.main import main
main()
"""
LOAD = """
import json, os, sys, time
import concord
model, calls, *sentences = sys.argv[1:]
nlp = concord.load(model)
found = {"seconds": time.monotonic() - float(os.environ["STARTED"]), "cpu_seconds": time.process_time()}
for sentence in sentences:
    nlp(sentence)
walls, cpus = [], []
for number in range(int(calls)):
    wall, cpu = time.perf_counter(), time.process_time()
    nlp(sentences[number % len(sentences)])
    walls.append(1000 * (time.perf_counter() - wall))
    cpus.append(1000 * (time.process_time() - cpu))
found |= {"sentence_ms": sorted(walls)[len(walls) // 2], "sentence_cpu_ms": sorted(cpus)[len(cpus) // 2]}
print(json.dumps({name: round(value, 3) for name, value in found.items()}), file=sys.stderr)
"""


def run(checkout: Path, code: str, *arguments: str) -> dict[str, float]:
    """Run code that imports a checkout in a process of its own; return what it prints to stderr as JSON."""
    variables = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "STARTED": str(time.monotonic())}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=checkout,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = next(json.loads(line) for line in done.stderr.splitlines() if line.startswith("{"))
    return found


def measure(checkout: Path, arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Measure a checkout once."""
    source = folder / "one.jsonl"
    source.write_text(json.dumps({"id": "one", "text": SENTENCES[0]}) + "\n", encoding="utf-8")
    output = Path(tempfile.mkdtemp(dir=folder)) / "out"
    options = ["--set", "executor.threads=1", "--model", arguments.model, "--json"]
    return {
        "first_shard": run(checkout, ANNOTATE, "annotate", str(source), "--output", str(output), *options),
        "load": run(checkout, LOAD, arguments.model, str(arguments.calls), *SENTENCES),
    }


def compare(
    rounds: Sequence[Mapping[str, Any]], pick: Callable[[Mapping[str, Any], str, str], float]
) -> dict[str, Any]:
    """Summarize each figure over all rounds: of one checkout, or the ratio of two."""
    first = rounds[0]["this"]
    return {
        kind: {name: quartiles([pick(found, kind, name) for found in rounds], digits=3) for name in first[kind]}
        for kind in first
    }


def main() -> None:
    """Measure in turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="entities_en")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=100, help="warm calls with a sentence, in each round")
    parser.add_argument("--against", type=Path, help="the folder of another checkout")
    arguments = parser.parse_args()
    checkouts = {"this": CHECKOUT} | ({"other": arguments.against.resolve()} if arguments.against else {})
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            load = round(os.getloadavg()[0], 2)
            order = list(checkouts)[:: 1 if number % 2 else -1]
            found = {name: measure(checkouts[name], arguments, Path(folder)) for name in order}
            rounds.append({"load_before": load, **{name: found[name] for name in checkouts}})
    result = {
        **environment("bench_startup.py"),
        "config": {"model": arguments.model, "calls": arguments.calls, "threads": 1},
        "this": compare(rounds, lambda found, kind, name: found["this"][kind][name]),
    }
    if arguments.against:
        result["other_commit"] = subprocess.run(
            ["git", "-C", arguments.against, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        result["other_over_this"] = compare(
            rounds, lambda found, kind, name: found["other"][kind][name] / found["this"][kind][name]
        )
    print(json.dumps(result | {"rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
