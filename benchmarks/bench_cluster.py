"""Drive up to a thousand simulated workers of Ray, read plans of many shards, and finish and rerun a run of many.

Command: python benchmarks/bench_cluster.py > benchmarks/results/cluster_cpu_202611.json

The driver of Ray's executor has one call in flight for each worker, and waits for the next that ends. Here all calls
are to one actor, in which they sleep for as long as a shard takes. All but ``wall_seconds`` is processor time, of the
driver's thread or of the process.
"""

import argparse
import asyncio
import json
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ray
from bench_planning import PARSER, build, write_documents
from environment import environment

from concord.pipeline.annotate import annotate
from concord.pipeline.config import AnnotateConfig, ExecutorConfig
from concord.pipeline.executors import ray_actors
from concord.pipeline.executors.base import StopRequest
from concord.pipeline.executors.ray_actors import ShardActors, ShardResult, runtime_env
from concord.pipeline.executors.ray_cluster import connected
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.run_report import RunReport, RunTally
from concord.pipeline.worker.shard_progress import Timings
from concord.pipeline.worker.shard_worker import build_worker

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
    ticks = [time.process_time()]
    report = annotate(job, build=build, progress=lambda _: ticks.append(time.process_time()))
    end = time.process_time()
    return report, end - ticks[0], end - ticks[-1]


def start_actor(calls: int, *, shard_seconds: float) -> Any:
    """Start an actor that does nothing, for many calls at once."""

    # A class of this module could not be imported by the actor's process.
    class ManyWorkers:
        async def load(self, *_: object) -> None:
            pass

        async def run(self, shard: Shard) -> ShardResult:
            await asyncio.sleep(shard_seconds)
            done, index = shard.records, shard.index
            record = CommitRecord(shard=index, generation=0, read=done, annotated=done, unchanged=0, dead_letters=0)
            return record, Timings(), 0

    options: dict[str, Any] = {"num_cpus": 1, "max_concurrency": calls, "runtime_env": runtime_env(threads=1)}
    return ray.remote(**options)(ManyWorkers).remote()


def drive(actor: Any, plan: Plan, *, workers: int, shard_seconds: float) -> dict[str, Any]:
    """Run ten shards a worker, with one actor in place of all workers."""
    many = with_shards(plan, workers * SHARDS_PER_WORKER)
    tally = RunTally(many, ())
    kind = SimpleNamespace(remote=lambda: actor)
    simulated = SimpleNamespace(remote=lambda **_: lambda _class: kind, put=ray.put, kill=lambda _: None)
    with OutputFolder(plan.config.output.path).writing(), mock.patch.object(ray_actors, "ray", simulated):
        actors = ShardActors(many, ExecutorConfig(kind="ray"), count=workers, build=build_worker)
        wall, thread = time.perf_counter(), time.thread_time()
        actors.run(many.shards, on_report=tally.add, on_progress=tally.update, stop=StopRequest())
        wall, thread = time.perf_counter() - wall, time.thread_time() - thread
    return {
        "workers": workers,
        "shards": len(many.shards),
        "wall_seconds": round(wall, 2),
        "seconds_of_the_workers": shard_seconds * SHARDS_PER_WORKER,
        "driver_ms_a_shard": round(1000 * thread / len(many.shards), 3),
    }


def with_shards(plan: Plan, shards: int) -> Plan:
    """Return a plan of so many shards, all like the first."""
    return plan.model_copy(update={"shards": tuple(replace(plan.shards[0], index=index) for index in range(shards))})


def read_plan(plan: Plan, shards: int) -> dict[str, Any]:
    """Measure the plan of many shards, and the part of it that a worker gets."""
    large = with_shards(plan, shards)
    whole, part = large.to_json(), pickle.dumps(large.for_workers())
    return {
        "shards": shards,
        "plan_bytes": len(whole),
        "plan_seconds": round(_seconds(lambda: Plan.from_json(whole)), 4),
        "bytes_a_worker_gets": len(part),
        "seconds_a_worker_takes": round(_seconds(lambda: pickle.loads(part)), 4),
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
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--shard-seconds", type=float, default=5.0)
    parser.add_argument("--plans", type=int, nargs="+", default=[1000, 10_000, 200_000], help="their shards")
    parser.add_argument("--shards", type=int, nargs="*", default=[100, 1000], help="of the runs that are finished")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cluster-"))
    try:
        run(folder, 10)
        plan = OutputFolder(str(folder / "out")).plan()
        with connected(cpus=1):
            seconds = arguments.shard_seconds
            actor = start_actor(max(arguments.workers), shard_seconds=seconds)
            ray.get(actor.load.remote())
            drivers = [drive(actor, plan, workers=workers, shard_seconds=seconds) for workers in arguments.workers]
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
