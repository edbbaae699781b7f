"""Run shards one after the other, in this process."""

from collections.abc import Mapping, Sequence

from concord.models.errors import ConcordError
from concord.pipeline.errors import DeviceError, ShardError
from concord.pipeline.executors.base import BuildWorker, OnReport, stop_request
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.threads import torch_threads
from concord.pipeline.worker.build import build_worker
from concord.pipeline.worker.crash_log import CrashLog, WorkPlace
from concord.pipeline.worker.memory import existing_objects_frozen
from concord.pipeline.worker.shard_progress import OnShardProgress, ShardProgress


def run_locally(
    plan: Plan,
    shards: Sequence[Shard],
    on_report: OnReport,
    on_progress: OnShardProgress | None = None,
    *,
    drain_seconds: float,
    build: BuildWorker = build_worker,
) -> Mapping[str, int]:
    """Run shards in this process, without worker processes; otherwise as ``Executor`` describes.

    When a shard kills this process, the next run of the same command finds its mark and continues as the Ray driver
    would.
    """
    crash_log = CrashLog(plan)
    # The worker sets the threads of this process, which may be a user's own.
    with torch_threads(plan.threads), stop_request(drain_seconds) as stop:

        def between_batches(progress: ShardProgress) -> None:
            stop.raise_if_overdue()
            if on_progress is not None:
                on_progress(progress)

        worker = build(plan)
        with existing_objects_frozen():
            for shard in shards:
                stop.raise_if_received()
                place = crash_log.in_progress(shard)
                if place is not None:
                    # An earlier run died here and left its mark; one that is still alive is counted once by
                    # mistake.
                    crash_log.remove_mark(shard)
                    crash_log.record_death(shard, "worker_died", place)
                try:
                    with crash_log.mark_in_progress(shard, WorkPlace()):
                        report, timings = worker.run(shard, on_progress=between_batches)
                except DeviceError as error:
                    raise DeviceError(
                        f"shard {shard.name}: {error}\nCommitted shards are kept: run the same command again to "
                        "continue in a new process, or with tagger.device=cpu and parser.device=cpu"
                    ) from error
                except ConcordError:
                    raise
                except Exception as error:
                    raise ShardError(f"shard {shard.name}: {type(error).__name__}: {error}") from error
                on_report(report, timings)
    return {}
