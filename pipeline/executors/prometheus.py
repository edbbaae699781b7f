"""Metrics of a run in progress, for Prometheus."""

from collections.abc import Callable, Mapping
from typing import Any

from concord.pipeline.documents import STAGES
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.worker.shard_progress import Timings

SHARD_SECONDS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Upper bounds of the histogram's buckets."""


class RunMetrics:
    """The metrics of one run, each tagged with the output folder as ``collection``."""

    def __init__(
        self, *, counter: Callable[..., Any], gauge: Callable[..., Any], histogram: Callable[..., Any], collection: str
    ) -> None:
        """Create the metrics.

        Args:
            counter, gauge, histogram: classes that are built from name, description and tag_keys, as in
                ray.util.metrics.
        """

        def create(kind: Callable[..., Any], name: str, description: str, *keys: str, **options: object) -> Any:
            metric = kind(f"concord_{name}", description=description, tag_keys=("collection", *keys), **options)
            metric.set_default_tags({"collection": collection})
            return metric

        self._shards = create(counter, "shards_total", "shards committed")
        self._documents = create(counter, "documents_total", "documents annotated")
        self._dead_letters = create(counter, "dead_letters_total", "records that became dead letters")
        self._words = create(counter, "words_total", "words annotated")
        self._stages = create(counter, "stage_seconds_total", "seconds of work, summed over workers", "stage")
        self._replaced = create(counter, "workers_replaced_total", "workers that were replaced", "cause")
        self._shards_left = create(gauge, "shards_left", "shards that are not committed yet")
        self._seconds = create(
            histogram, "shard_seconds", "seconds of work that a shard took", boundaries=list(SHARD_SECONDS)
        )

    def set_shards_left(self, shards: int) -> None:
        """Set how many shards are not committed yet."""
        self._shards_left.set(shards)

    def count_shard(self, report: ShardReport, timings: Timings) -> None:
        """Count a committed shard."""
        seconds = {stage: getattr(timings, stage) for stage in STAGES}
        _add(self._shards, 1)
        _add(self._documents, report.annotated)
        _add(self._dead_letters, report.dead_letters)
        _add(self._words, timings.words)
        for stage, taken in seconds.items():
            _add(self._stages, taken, {"stage": stage})
        self._seconds.observe(sum(seconds.values()))

    def count_replaced(self, cause: str) -> None:
        """Count a worker that was replaced."""
        _add(self._replaced, 1, {"cause": cause})


def _add(metric: Any, number: float, tags: Mapping[str, str] | None = None) -> None:
    # Ray's counters refuse to be increased by zero.
    if number > 0:
        metric.inc(number, tags=dict(tags or {}))
