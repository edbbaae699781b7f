"""The story of a run, from a resolved job to a finished output folder.

1. ``planning`` compares the input with what the output folder holds and freezes a plan: shards of work.
2. ``executors`` give the shards to workers. In a ``worker`` each shard passes four stages: ``readers`` turn records
   into documents, ``parsing`` finds sentences and dependency trees, the tagger of ``models`` labels the words, and
   ``output`` writes the tables and commits them. A record that fails on the way becomes a dead letter.
3. ``output`` checks that every record is accounted for and publishes the manifest; ``report`` writes a page about
   it.

The same call starts a run, resumes it, or finds it finished. Everything that is committed survives a crash.
"""

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial

import yaml

from concord.pipeline.config import ExecutorConfig
from concord.pipeline.executors.base import Executor, run_locally
from concord.pipeline.executors.ray_setup import resolve_auth_mode
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import SETTINGS_NAME
from concord.pipeline.planning.planner import Planner
from concord.pipeline.report.html import write_report
from concord.pipeline.run_report import OnProgress, RunReport, RunTally
from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.output_paths import read_bytes
from concord.pipeline.worker.shard_progress import Timings
from concord.pipeline.worker.shard_worker import BuildWorker, build_worker


def annotate(
    job: ResolvedJob,
    *,
    progress: OnProgress | None = None,
    build: BuildWorker = build_worker,
) -> RunReport:
    """Annotate what the output folder does not hold yet, and finish the run.

    A finished run is left as it is: nothing is loaded, started or written, but for settings that are new, and once a
    note in ``stats.json`` that a run has found nothing to change.

    Args:
        progress: called in this process, once before the first shard, from time to time during a shard and after each.
        build: makes the worker in the process that runs it.

    Raises:
        BusyError: when another run writes to the folder.
        PlanError: when the folder holds the annotation of another input.
        InputError, ConfigError: when the job cannot run as it is.
        ReconciliationError, ShardError, IntegrityError: when it fails; what is committed stays.
        StoreError: when there is no space.
        StoppedError: after SIGTERM or SIGINT.
    """
    config, folder = job.config, job.folder
    with folder.writing():
        planner = Planner(job)
        plan = planner.resolve()
        folder.write_plan(plan)
        _write_settings(job)
        planner.hashes.save(staging=folder.staging)

        finished = folder.finished_shards(plan)
        shards = [shard for shard in plan.shards if shard.index not in finished]
        tally = RunTally(plan, finished.values(), progress)

        def on_report(report: CommitRecord, timings: Timings) -> None:
            tally.add(report, timings)
            folder.check_lock()

        was_finished = folder.is_finished(plan)
        if was_finished:
            tally.confirm(folder)
        else:
            tally.report_progress()
            with tally.timed(folder):
                if shards:
                    run_shards = _executor(config.executor, build)
                    run_shards(plan, shards, on_report, tally.update)
            folder.finish(plan, keep=config.output.keep, grace_seconds=config.output.grace_seconds)
        if config.report and not (was_finished and (folder.metadata / "report.html").exists()):
            write_report(folder)
        return tally.result(job, done_before=len(plan.shards) - len(shards))


def dry_run(job: ResolvedJob) -> RunReport:
    """Return what ``annotate`` would find to do, and write nothing.

    The counts are of what earlier calls have committed; ``read``, ``shards``, ``changes`` and ``named`` are of the run
    to come.

    Raises:
        PlanError, InputError: as ``annotate`` would.
    """
    planner = Planner(job, name_documents=True)
    plan = planner.resolve()
    finished = job.folder.finished_shards(plan)
    done_before = sum(shard.index in finished for shard in plan.shards)
    report = RunTally(plan, finished.values()).result(job, done_before=done_before)
    return replace(report, named={kind: ids for kind, ids in planner.named.items() if ids})


def _write_settings(job: ResolvedJob) -> None:
    """Write the settings that hold for the next run, unless they are there already."""
    text: str = yaml.safe_dump(job.config.lasting, sort_keys=False, allow_unicode=True)
    path = job.folder.metadata / SETTINGS_NAME
    with suppress(FileNotFoundError):
        if read_bytes(path) == text.encode():
            return
    with store_errors(path):
        write_atomically(path, text.encode(), staging=job.folder.staging)


def _executor(config: ExecutorConfig, build: BuildWorker) -> Executor:
    if config.kind == "local":
        return partial(run_locally, drain_seconds=config.drain_seconds, build=build)
    resolve_auth_mode(os.environ.get("RAY_ADDRESS"))
    # Importing Ray takes seconds, and a finished run needs none.
    from concord.pipeline.executors.ray_cluster import run_on_ray

    return partial(run_on_ray, config=config, build=build)
