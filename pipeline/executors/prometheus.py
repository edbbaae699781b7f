"""What a run tells Prometheus while it goes on, through the meters of whoever exports them."""

from collections.abc import Callable, Mapping
from typing import Any

from concord.pipeline.documents import STAGES
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.worker.shard_worker import Timings

SHARD_SECONDS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Upper bounds of the histogram's bins."""


class RunMetrics:
    """The meters of one run, each with the output folder as the tag ``collection``."""

    def __init__(
        self, *, counter: Callable[..., Any], gauge: Callable[..., Any], histogram: Callable[..., Any], collection: str
    ) -> None:
        """Make the meters.

        Args:
            counter, gauge, histogram: make one from name, description and tag_keys, as in ray.util.metrics.
        """

        def make(kind: Callable[..., Any], name: str, description: str, *keys: str, **options: object) -> Any:
            meter = kind(f"concord_{name}", description=description, tag_keys=("collection", *keys), **options)
            meter.set_default_tags({"collection": collection})
            return meter

        self._shards = make(counter, "shards_total", "shards committed")
        self._documents = make(counter, "documents_total", "documents annotated")
        self._letters = make(counter, "dead_letters_total", "records that became dead letters")
        self._words = make(counter, "words_total", "words annotated")
        self._stages = make(counter, "stage_seconds_total", "seconds of work, summed over workers", "stage")
        self._replaced = make(counter, "workers_replaced_total", "workers that others took the place of", "cause")
        self._left = make(gauge, "shards_left", "shards that are not committed yet")
        self._seconds = make(
            histogram, "shard_seconds", "seconds of work that a shard took", boundaries=list(SHARD_SECONDS)
        )

    def left(self, shards: int) -> None:
        """Say how many shards are left."""
        self._left.set(shards)

    def done(self, report: ShardReport, timings: Timings) -> None:
        """Count a shard."""
        seconds = {stage: getattr(timings, stage) for stage in STAGES}
        _add(self._shards, 1)
        _add(self._documents, report.annotated)
        _add(self._letters, report.dead_letters)
        _add(self._words, timings.words)
        for stage, taken in seconds.items():
            _add(self._stages, taken, {"stage": stage})
        self._seconds.observe(sum(seconds.values()))

    def replaced(self, cause: str) -> None:
        """Count a worker that another takes the place of."""
        _add(self._replaced, 1, {"cause": cause})


def _add(meter: Any, number: float, tags: Mapping[str, str] | None = None) -> None:
    # Ray's counters refuse to be increased by nothing.
    if number > 0:
        meter.inc(number, tags=dict(tags or {}))
