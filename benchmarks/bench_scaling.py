"""Annotate the same shards locally, on Ray with one worker, and with two, in turns, and compare their speed.

Command: python benchmarks/bench_scaling.py --input ../shared/data/text/factbook.jsonl.zst

Every worker uses one thread. Speed is measured from the report at which each worker has finished its first shard to the
last report, which excludes starting Ray and loading models; how long these take is reported too. Other processes affect
wall times: the load before each round is in the result.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ.pop("RAY_ADDRESS", None)

from corpora import write_chunks
from environment import environment, spread

from concord.pipeline.annotate import annotate
from concord.pipeline.run_report import Progress
from concord.workflows.annotation.job import read_annotate_job, resolve_job
from research.grid.records import rounded

OVERHEAD_GOAL = 1.05
SPEED_UP_GOAL = 1.8
WAYS: dict[str, dict[str, Any]] = {
    "local": {"kind": "local"},
    "ray_1": {"kind": "ray", "actors": 1},
    "ray_2": {"kind": "ray", "actors": 2},
}


def measure(source: Path, output: Path, *, model: str, shard_bytes: int, executor: dict[str, Any]) -> dict[str, float]:
    """Annotate once; return words a second of steady work, and the seconds before the first report."""
    config = read_annotate_job(
        None,
        values={
            "input": str(source),
            "output": str(output),
            "planning": {"shard_bytes": shard_bytes},
            "executor": {"threads": 1, **executor},
            "tagger": {"model": model},
            "report": False,
        },
    )
    ticks: list[tuple[float, int]] = []

    def record(progress: Progress) -> None:
        ticks.append((time.perf_counter(), progress.read_done))

    report = annotate(resolve_job(config), progress=record)
    workers = executor.get("actors", 1)
    (start, _), (warm, read_warm), (ended, read) = ticks[0], ticks[workers], ticks[-1]
    shutil.rmtree(output)
    return {
        "words_per_second": (read - read_warm) / report.read * report.words / (ended - warm),
        "seconds_to_first_shards": warm - start,
        "seconds": ended - start,
        "shards": report.shards,
        "words": report.words,
    }


def main() -> None:
    """Run all ways in turns, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, nargs="+", required=True)
    parser.add_argument("--model", default="entities_en_small")
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--words", type=int, default=100, help="words of a document")
    parser.add_argument("--shard-bytes", type=int, default=15_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "documents.jsonl")
        written = write_chunks(arguments.input, source, words=arguments.words, count=arguments.documents)
        for number in range(arguments.rounds):
            load = os.getloadavg()[0]
            # Rotate the order, so that no way always has the quieter machine.
            order = [*WAYS][number % 3 :] + [*WAYS][: number % 3]
            runs = {
                way: measure(
                    source,
                    Path(folder, way),
                    model=arguments.model,
                    shard_bytes=arguments.shard_bytes,
                    executor=WAYS[way],
                )
                for way in order
            }
            rounds.append({"load_before": round(load, 2), **{way: runs[way] for way in WAYS}})
    overhead = [run["local"]["words_per_second"] / run["ray_1"]["words_per_second"] for run in rounds]
    speed_up = [run["ray_2"]["words_per_second"] / run["ray_1"]["words_per_second"] for run in rounds]
    result = {
        **environment("bench_scaling.py"),
        "config": {
            "input": [path.name for path in arguments.input],
            "documents": written,
            "words_a_document": arguments.words,
            "model": arguments.model,
            "threads_a_worker": 1,
        },
        "ray_over_local": {
            **spread(overhead, digits=3),
            "median": round(statistics.median(overhead), 3),
            "goal": OVERHEAD_GOAL,
        },
        "two_actors_over_one": {
            **spread(speed_up, digits=3),
            "median": round(statistics.median(speed_up), 3),
            "goal": SPEED_UP_GOAL,
        },
        "rounds": rounded(rounds, digits=2),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
