"""Wait for up to a thousand calls of Ray, read plans of many shards, and finish and rerun a run of many shards.

Command: python benchmarks/bench_cluster.py > benchmarks/results/cluster_cpu_202611.json

The driver of Ray's executor has one call in flight for each worker, and waits for the next that ends. Here the calls
are those of one actor, which sleep for as long as a shard takes. Processor time is that of the driver's thread.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ray
from bench_planning import PARSER, build, write_documents
from environment import environment

from concord.pipeline.annotate import annotate
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.executors.ray_cluster import connected
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Plan
from concord.pipeline.run_report import RunReport

SHARDS_PER_WORKER = 10


def run(folder: Path, documents: int) -> tuple[RunReport, float, float]:
    """Annotate documents of one word, a shard each; return the report and the seconds of all and after the shards."""
    source = folder / "tiny.jsonl"
    write_documents(source, documents, revision=0)
    config = AnnotateConfig.from_mapping(
        {
            "input": str(source),
            "output": {"path": str(folder / "out")},
            "executor": {"threads": 1},
            "planning": {"shard_bytes": 1},
            "report": False,
        }
    )
    tagger = ResolvedTagger(name="no_tagger", version="1", digest="2" * 64, folder=folder, trees=None)
    job = ResolvedJob.of(config, OutputFolder(config.output.path), tagger, parser=PARSER)
    ticks = [time.perf_counter()]
    report = annotate(job, build=build, progress=lambda _: ticks.append(time.perf_counter()))
    end = time.perf_counter()
    return report, end - ticks[0], end - ticks[-1]


def start_actor(calls: int) -> Any:
    """Start an actor that does nothing, for many calls at once."""

    # A class of this module could not be imported by the actor's process.
    class Sleeper:
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    return ray.remote(num_cpus=1, max_concurrency=calls)(Sleeper).remote()


def drive(actor: Any, *, workers: int, shard_seconds: float) -> dict[str, Any]:
    """Wait for ten calls a worker, as many in flight as there are workers."""
    wall, thread = time.perf_counter(), time.thread_time()
    ended: SimpleQueue[Future[None]] = SimpleQueue()
    for number in range(workers * SHARDS_PER_WORKER):
        if number >= workers:
            ended.get().result()
        actor.sleep.remote(shard_seconds).future().add_done_callback(ended.put)
    for _ in range(workers):
        ended.get().result()
    wall, thread = time.perf_counter() - wall, time.thread_time() - thread
    return {
        "workers": workers,
        "shards": workers * SHARDS_PER_WORKER,
        "wall_seconds": round(wall, 2),
        "seconds_of_the_workers": shard_seconds * SHARDS_PER_WORKER,
        "driver_ms_a_shard": round(1000 * thread / (workers * SHARDS_PER_WORKER), 3),
    }


def read_plan(plan: Plan, shards: int) -> dict[str, Any]:
    """Measure the plan of many shards, and the part of it that a worker gets."""
    large = plan.model_copy(update={"shards": tuple(replace(plan.shards[0], index=index) for index in range(shards))})
    whole, part = large.to_json(), large.for_workers().to_json()
    return {
        "shards": shards,
        "plan_bytes": len(whole),
        "plan_seconds": round(_seconds(lambda: Plan.from_json(whole)), 4),
        "bytes_a_worker_gets": len(part),
        "seconds_a_worker_takes": round(_seconds(lambda: Plan.from_json(part)), 4),
    }


def finish(folder: Path, shards: int) -> dict[str, Any]:
    """Run shards of one word here, and then the same command again."""
    _, first, finishing = run(folder, shards)
    _, again, _ = run(folder, shards)
    return {
        "shards": shards,
        "first_seconds": round(first, 2),
        "finish_seconds": round(finishing, 2),
        "again_seconds": round(again, 2),
    }


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--shard-seconds", type=float, default=10.0)
    parser.add_argument("--plans", type=int, nargs="+", default=[1000, 10_000, 200_000], help="their shards")
    parser.add_argument(
        "--shards", type=int, nargs="*", default=[100, 1000, 5000], help="of the runs that are finished"
    )
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cluster-"))
    try:
        run(folder, 10)
        plan = OutputFolder(str(folder / "out")).plan()
        with connected(cpus=1):
            actor = start_actor(max(arguments.workers))
            drivers = [
                drive(actor, workers=workers, shard_seconds=arguments.shard_seconds) for workers in arguments.workers
            ]
        plans = [read_plan(plan, shards) for shards in arguments.plans]
        finished = []
        for shards in arguments.shards:
            (folder / str(shards)).mkdir()
            finished.append(finish(folder / str(shards), shards))
    finally:
        shutil.rmtree(folder)
    result = {
        **environment("bench_cluster.py"),
        "drivers": drivers,
        "plans": plans,
        "local_executor": finished,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
