"""What ``stats.json`` keeps of the runs over a collection, and of each generation, of removed ones too."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, ValidationError

from concord.models.config import Config
from concord.pipeline.errors import IntegrityError, StoreError
from concord.pipeline.output.generations import Generation, generation_name
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.shard_stats import OF_TYPE, total_counts
from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.output_paths import read_bytes

STATS_NAME = "stats.json"
KEPT_GENERATIONS = 1000
"""Of how many generations it keeps the counts and times."""


class GenerationStats(Config):
    """What is known of a generation that is kept, or was removed."""

    number: NonNegativeInt
    """That of its plan."""
    words: NonNegativeInt = 0
    """Annotated for it by calls that were timed."""
    seconds: NonNegativeFloat = 0.0
    """Which these calls worked on shards."""
    finished: datetime | None = None
    counts: dict[str, NonNegativeInt] = Field(default_factory=dict)
    """What it holds: its ``total_counts``, ``read`` and ``dead_letters``. Empty until a later one is about to replace
    it, and where its manifest could not be read."""
    confirmed: bool = False
    """Whether a later run has found nothing to change."""
    is_kept: bool = Field(default=False, exclude=True)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return generation_name(self.number)

    @property
    def entities(self) -> dict[str, int]:
        """Entities by type."""
        counts = self.counts.items()
        return {name.removeprefix(OF_TYPE): number for name, number in counts if name.startswith(OF_TYPE)}


class RunStats(Config):
    """The content of ``stats.json``; the times of calls that were killed are missing."""

    shards: NonNegativeInt = 0
    words: NonNegativeInt = 0
    """Annotated by all calls together, as are the shards."""
    wall_seconds: NonNegativeFloat = 0.0
    """Which all calls worked on shards."""
    seconds: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """By stage, summed over workers."""
    generations: tuple[GenerationStats, ...] = ()
    """In the order of their numbers."""

    @property
    def words_per_second(self) -> float:
        """Words per second of all calls; 0 where none was timed."""
        return self.words / self.wall_seconds if self.wall_seconds else 0.0

    def find(self, number: int) -> GenerationStats:
        """Return what is known of a generation."""
        found = (generation for generation in self.generations if generation.number == number)
        return next(found, GenerationStats(number=number))

    def replace(self, *generations: GenerationStats) -> Self:
        """Return the same with other statistics of some generations, without the oldest if there are too many."""
        merged = {generation.number: generation for generation in (*self.generations, *generations)}
        newest = sorted(merged)[-KEPT_GENERATIONS:]
        return self.model_copy(update={"generations": tuple(merged[number] for number in newest)})


def read_stats(folder: OutputFolder) -> RunStats:
    """Read ``stats.json``; all is 0 if it is missing or broken."""
    try:
        return RunStats.model_validate_json(read_bytes(folder.metadata / STATS_NAME))
    except (FileNotFoundError, ValidationError):
        return RunStats()


@contextmanager
def stats_errors(folder: OutputFolder) -> Iterator[None]:
    """Go on where the store fails: missing times are not worth an error, least of all one that hides another."""
    with suppress(StoreError), store_errors(folder.metadata / STATS_NAME):
        yield


def write_stats(folder: OutputFolder, stats: RunStats) -> None:
    """Write ``stats.json``."""
    content = f"{stats.model_dump_json(indent=2)}\n".encode()
    write_atomically(folder.metadata / STATS_NAME, content, staging=folder.staging)


def known_generations(folder: OutputFolder) -> list[GenerationStats]:
    """Return every generation, the oldest first; those that are removed if ``stats.json`` has their counts."""
    stats, current = read_stats(folder), folder.generations.current()
    found = {generation.number: generation for generation in stats.generations if generation.counts}
    for generation in (*folder.generations.history(), *filter(None, [current])):
        known = stats.find(generation.number)
        finished = datetime.fromtimestamp(generation.finished, UTC) if generation.finished else None
        values = {"finished": finished, "counts": known.counts or _counts(generation), "is_kept": True}
        found[generation.number] = known.model_copy(update=values)
    return [found[number] for number in sorted(found)]


def _counts(generation: Generation) -> dict[str, int]:
    try:
        manifest = generation.manifest()
    except IntegrityError:  # 'concord verify' explains what is broken
        return {}
    return {"read": manifest.read, "dead_letters": manifest.dead_letters, **total_counts(manifest.shards)}
