"""What is known of every generation of a collection, of removed ones too: its counts, its times and its shares."""

from collections.abc import Iterable
from dataclasses import dataclass

from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.output.generations import generation_name
from concord.pipeline.output.output_folder import GenerationStats, OutputFolder
from concord.pipeline.output.shard_stats import CONFIDENCE, OF_TYPE, SCORED, collection_counts, total_counts

LETTERS, CONFIDENT, OF_WORDS = "dead letters per document", "mean confidence", " per 1,000 words"
_COUNTED = (OF_TYPE, CONFIDENCE, SCORED)


@dataclass(frozen=True, slots=True)
class Share:
    """How many of how many; of a mean confidence, the sum of what confidences lack of 1, which are expected errors."""

    count: float
    of: int
    scale: int = 1

    @property
    def rate(self) -> float:
        """Count per word, record or entity."""
        return self.count / self.of

    @property
    def shown(self) -> float:
        """The value as people read it."""
        return (self.scale < 0) + self.scale * self.rate


@dataclass(frozen=True, kw_only=True, slots=True)
class PastGeneration:
    """A generation that is kept, or that was removed; its manifest cannot be read if ``stats`` has no counts."""

    name: str
    stats: GenerationStats
    is_kept: bool = False

    @property
    def number(self) -> int:
        """The number of its plan."""
        return int(self.name.partition("-")[0])

    @property
    def words_per_second(self) -> float | None:
        """Words annotated per second of work; None if there was none."""
        words, seconds = self.stats.get("words"), self.stats.get("seconds")
        return words / seconds if words and seconds else None

    @property
    def entities(self) -> dict[str, int]:
        """Entities by type."""
        counts = self.stats.get("counts", {})
        return {name.removeprefix(OF_TYPE): number for name, number in counts.items() if name.startswith(OF_TYPE)}

    def shares(self, types: Iterable[str]) -> dict[str, Share]:
        """Return what can be compared with other generations, by name, of entities those of some types."""
        counts, entities = self.stats.get("counts", {}), self.entities
        scored, words = counts.get(SCORED, 0), counts.get("tokens", 0)
        found = {
            LETTERS: Share(counts.get("dead_letters", 0), counts.get("read", 0)),
            CONFIDENT: Share(scored - counts.get(CONFIDENCE, 0) / 1e6, scored, -1),
            **{f"{label}{OF_WORDS}": Share(entities.get(label, 0), words, 1000) for label in types},
        }
        return {name: share for name, share in found.items() if share.of}


def past_generations(folder: OutputFolder) -> list[PastGeneration]:
    """Return every generation, the oldest first; those that are removed if ``stats.json`` has their counts."""
    recorded, current = folder.stats().get("generations", {}), folder.generations.current()
    kept = {} if current is None else {current.name: current}
    kept |= {generation.name: generation for generation in folder.generations.history()}
    removed = (number for number, stats in recorded.items() if "counts" in stats)
    found = {(number, 0): PastGeneration(name=generation_name(number), stats=recorded[number]) for number in removed}
    for name, generation in kept.items():
        stats = recorded.get(generation.number, GenerationStats()) | {"finished": generation.finished}
        try:
            if "counts" not in stats:
                manifest, plan = generation.manifest(), generation.plan()
                totals = {
                    key: count for key, count in total_counts(manifest.shards).items() if key.startswith(_COUNTED)
                }
                stats["counts"] = {"read": manifest.read, **collection_counts(manifest), **totals}
                stats |= {
                    "plan": manifest.plan,
                    "model": plan.config.tagger.model,
                    "tagger": plan.tagger.model_dump(mode="json"),
                }
        except (IntegrityError, PlanError):  # 'concord verify' explains what is broken
            pass
        found[generation.rank] = PastGeneration(name=name, stats=stats, is_kept=True)
    return [found[rank] for rank in sorted(found)]
