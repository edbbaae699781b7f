"""Drive up to a thousand simulated workers, read plans of many shards, and finish and rerun a run of many shards.

Command: python benchmarks/bench_cluster.py > benchmarks/results/cluster_cpu_202611.json

The scheduler is that of Ray's executor; its actors are simulated: they do nothing for as long as a shard takes. So this
measures the driver, not Ray, whose own calls cost about 0.25 ms each. Files that hold the progress of a shard take a
while to be read, as on a slow network file system. Processor time is that of the driver's thread.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from bench_planning import PARSER, build, write_documents
from concord_testing.simulated_ray import SimulatedRay
from environment import environment

from concord.pipeline.annotate import annotate
from concord.pipeline.config import AnnotateConfig, ExecutorConfig
from concord.pipeline.executors import ray_scheduler
from concord.pipeline.executors.base import StopRequest
from concord.pipeline.executors.ray_actors import SharedStorage
from concord.pipeline.executors.ray_scheduler import RayScheduler, Workers
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Plan
from concord.pipeline.run_report import RunReport, RunTally
from concord.pipeline.worker.crash_log import CrashLog
from concord.pipeline.worker.shard_progress import ShardProgress

SHARDS_PER_WORKER = 10
PROGRESS_SECONDS = 1.0


def run(folder: Path, documents: int) -> tuple[RunReport, float, float]:
    """Annotate documents of one word, a shard each; return the report and the seconds of all and after the shards."""
    source = folder / "tiny.jsonl"
    write_documents(source, documents, revision=0)
    config = AnnotateConfig.from_mapping(
        {
            "input": str(source),
            "output": str(folder / "out"),
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


def drive(plan: Plan, *, workers: int, shard_seconds: float, latency: float) -> dict[str, Any]:
    """Run ten shards a worker; storage answers after ``latency`` seconds."""
    shard = plan.shards[0]
    shards = [replace(shard, index=index) for index in range(workers * SHARDS_PER_WORKER)]
    large = plan.model_copy(update={"shards": tuple(shards)})
    kind = Workers(count=workers, cpus=1, gpus=0, build=build)
    tally = RunTally(large, [], lambda _: None)

    def read(_log: CrashLog, shard: Any) -> ShardProgress:
        time.sleep(latency)
        return ShardProgress(shard=shard.index, stage="tag", share=0.5)

    with (
        SimulatedRay(seconds=shard_seconds).used(),
        SharedStorage.of(large, shards).marked() as storage,
        mock.patch.object(CrashLog, "read_progress", read),
        mock.patch.object(ray_scheduler, "PROGRESS_SECONDS", PROGRESS_SECONDS),
    ):
        wall, thread = time.perf_counter(), time.thread_time()
        scheduler = RayScheduler(large, ExecutorConfig(kind="ray"), kind, storage)
        try:
            scheduler.run(shards, on_report=tally.add, on_progress=tally.update, stop=StopRequest())
        finally:
            scheduler.shutdown()
        wall, thread = time.perf_counter() - wall, time.thread_time() - thread
    return {
        "workers": workers,
        "shards": len(shards),
        "wall_seconds": round(wall, 2),
        "seconds_of_the_workers": shard_seconds * (SHARDS_PER_WORKER + 1),
        "driver_ms_a_shard": round(1000 * thread / len(shards), 3),
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
    parser.add_argument("--shard-seconds", type=float, default=2.0)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds of a request to the storage")
    parser.add_argument("--plans", type=int, nargs="+", default=[1000, 10_000, 200_000], help="their shards")
    parser.add_argument(
        "--shards", type=int, nargs="*", default=[100, 1000, 5000], help="of the runs that are finished"
    )
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cluster-"))
    try:
        run(folder, 10)
        plan = OutputFolder(str(folder / "out")).plan()
        drivers = [
            drive(plan, workers=workers, shard_seconds=arguments.shard_seconds, latency=arguments.latency)
            for workers in arguments.workers
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
        "latency_seconds": arguments.latency,
        "drivers": drivers,
        "plans": plans,
        "local_executor": finished,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
