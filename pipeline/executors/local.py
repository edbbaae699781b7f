"""Shards one after the other, in this process."""

from collections.abc import Mapping, Sequence

from concord.pipeline.errors import ConcordError, ShardError
from concord.pipeline.executors.base import BuildWorker, OnReport, stop_request
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.worker.crash_log import CrashLog, WorkPlace
from concord.pipeline.worker.shard_worker import build_worker


class LocalExecutor:
    """An executor without processes of its own.

    When a shard kills this process, the next run of the same command knows of it and goes on as Ray's driver would.
    """

    def __init__(self, *, build: BuildWorker = build_worker) -> None:
        """Take what builds the worker from a plan; tests give one with a fake parser and tagger."""
        self._build = build

    def run(self, plan: Plan, shards: Sequence[Shard], on_report: OnReport) -> Mapping[str, int]:
        """Do as Executor says."""
        crash_log = CrashLog(plan)
        with stop_request() as stop:
            worker = self._build(plan)
            for shard in shards:
                stop.raise_if_received()
                _charge_earlier(crash_log, shard)
                try:
                    with crash_log.mark_in_progress(shard, WorkPlace()):
                        report, timings = worker.run(shard)
                except ConcordError:
                    raise
                except Exception as error:
                    raise ShardError(f"shard {shard.name}: {type(error).__name__}: {error}") from error
                on_report(report, timings)
        return {}


def _charge_earlier(crash_log: CrashLog, shard: Shard) -> None:
    """Count the death of an earlier run that was at the shard. One that still is at it is charged once in vain."""
    place = crash_log.in_progress(shard)
    if place is not None:
        crash_log.remove_mark(shard)
        crash_log.record_death(shard, "worker_died", place)
