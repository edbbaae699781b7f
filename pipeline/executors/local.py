"""Shards one after the other, in this process."""

from collections.abc import Sequence

from pipeline.errors import ConcordError, ShardError
from pipeline.executors.base import BuildWorker, OnReport, stop_request
from pipeline.planning import Plan
from pipeline.records import Shard
from pipeline.stages import build_worker


class LocalExecutor:
    """An executor without processes of its own."""

    def __init__(self, *, build: BuildWorker = build_worker) -> None:
        """Take what builds the worker from a plan; tests give one with a fake parser and tagger."""
        self._build = build

    def run(self, plan: Plan, shards: Sequence[Shard], on_report: OnReport) -> None:
        """Do as Executor says."""
        with stop_request() as stop:
            worker = self._build(plan)
            for shard in shards:
                stop.raise_if_received()
                try:
                    report, timings = worker.run(shard)
                except ConcordError:
                    raise
                except Exception as error:
                    raise ShardError(f"shard {shard.name}: {type(error).__name__}: {error}") from error
                on_report(report, timings)
