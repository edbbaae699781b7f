"""``concord history`` and ``concord files``: the generations of a collection, and the files of one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from concord.models.errors import ConfigError
from concord.pipeline.errors import PlanError
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.generations import Retention
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.past_generations import CONFIDENT, PastGeneration, past_generations
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import Answer, counted, printable, table

_COLUMNS = ("documents", "words", "dead_letters", "seconds", "words_per_second", "confidence")


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedGeneration:
    """A generation in the list; what is not known of it is None."""

    generation: int
    name: str
    finished: str | None
    documents: int | None
    words: int | None
    dead_letters: int | None
    seconds: float | None
    words_per_second: float | None
    confidence: float | None
    entities: Mapping[str, int]
    kept: bool
    current: bool
    versions: Sequence[str]


def history(output: OutputPath) -> Answer:
    """List the generations, the oldest first; of removed ones what ``stats.json`` has."""
    folder = OutputFolder(output)
    current = folder.generations.current()
    if current is None:
        folder.plan()
        raise PlanError(f"{output}: the run is not finished; run the same annotate command again")
    versions: dict[str, list[str]] = {}
    for version, name in folder.generations.versions().items():
        versions.setdefault(name, []).append(version)
    rows = [
        _describe(generation, versions.get(generation.name, []), is_current=generation.name == current.name)
        for generation in past_generations(folder)
    ]
    types = sorted({label for row in rows for label in row.entities})
    titles = (name.replace("_", " ") for name in _COLUMNS)
    header = ("generation", "finished (UTC)", *titles, *map(printable, types), "name")
    lines = [
        (
            row.generation,
            (row.finished or "-")[:19].replace("T", " "),
            *(_rounded(getattr(row, name)) for name in _COLUMNS),
            *(row.entities.get(label, 0) for label in types),
            ", ".join([*["removed"] * (not row.kept), *["current"] * row.current, *row.versions]),
        )
        for row in rows
    ]
    text = table(lines, header=header, right=(0, *range(2, len(header) - 1)))
    return Answer(values={"output": folder.output, "generations": rows}, text=text)


def prune(output: OutputPath, *, keep: int | None) -> Answer:
    """Remove the generations that are past their grace period, but for the newest ``keep`` and those with a name."""
    folder = OutputFolder(output)
    settings = folder.plan().config.output
    removed = folder.generations.prune(Retention(keep=keep or settings.keep, grace_seconds=settings.grace_seconds))
    names = [generation.name for generation in removed]
    text = f"{output}: removed {counted(len(names), 'generation')}" + (f" ({', '.join(names)})" if names else "")
    return Answer(values={"output": folder.output, "removed": names}, text=text)


def tag(output: OutputPath, version: str, *, generation: int | None) -> Answer:
    """Give a generation a name, under which it is kept."""
    folder = OutputFolder(output)
    named = folder.generations.find(generation=generation)
    folder.generations.tag(named, version)
    values = {"output": folder.output, "version": version, "generation": named.number}
    return Answer(values=values, text=f"{output}: {version} is generation {named.number}")


def untag(output: OutputPath, version: str) -> Answer:
    """Remove the name of a generation, which is then kept only as any other is."""
    folder = OutputFolder(output)
    versions = folder.generations.versions()
    if version not in versions:
        raise ConfigError(f"{output}: no version {version!r}; there are: {', '.join(versions) or 'none'}")
    folder.generations.untag(version)
    return Answer(values={"output": folder.output, "removed": version}, text=f"{output}: {version} is removed")


def files(output: OutputPath, *, name: str | None, generation: int | None, version: str | None) -> Answer:
    """List the files of one generation: of one table, or of all."""
    if name not in {None, *SCHEMAS}:
        raise ConfigError(f"--table: expected one of {', '.join(SCHEMAS)}, got {name!r}")
    collection = open_collection(output, generation=generation, version=version)
    parts = {key: [str(part) for part in collection.parts(key)] for key in SCHEMAS if name in {None, key}}
    values = {"output": collection.output, "generation": collection.manifest.generation, "files": parts}
    return Answer(values=values, text="\n".join(path for paths in parts.values() for path in paths))


def _describe(generation: PastGeneration, versions: list[str], *, is_current: bool) -> ListedGeneration:
    stats, confidence = generation.stats, generation.shares(()).get(CONFIDENT)
    counts, seconds = stats.get("counts", {}), stats.get("finished")
    return ListedGeneration(
        generation=generation.number,
        name=generation.name,
        finished=datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None,
        documents=counts.get("documents"),
        words=counts.get("tokens"),
        dead_letters=counts.get("dead_letters"),
        seconds=stats.get("seconds"),
        words_per_second=generation.words_per_second,
        confidence=confidence.shown if confidence else None,
        entities=generation.entities,
        kept=generation.is_kept,
        current=is_current,
        versions=versions,
    )


def _rounded(value: float | None) -> float | str | None:
    """Return a number as the table shows it."""
    return f"{value:.3g}" if isinstance(value, float) and value < 100 else value and round(value)
