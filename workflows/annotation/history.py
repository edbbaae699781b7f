"""``concord history`` and ``concord files``: the generations of a collection, what the last has moved, and files."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from concord.models.errors import ConfigError
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.output.run_stats import GenerationStats, known_generations
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.output.shard_stats import CONFIDENCE, SCORED
from concord.pipeline.output.tables import without_candidates, without_lost_pages
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import Answer, counted, printable, table

_COLUMNS = ("documents", "words", "dead_letters", "seconds", "words_per_second", "confidence")
DRIFT = 5
"""The exit code when a share has moved."""
SURE = 3
"""Standard deviations that a change must exceed; by chance alone a share moves so far once in 370 times."""
NAMED = 5
LETTERS, CONFIDENT, OF_WORDS = "dead letters per document", "mean confidence", " per 1,000 words"


def history(output: OutputPath) -> Answer:
    """List the generations, the oldest first; of removed ones what ``stats.json`` has."""
    folder = OutputFolder(output)
    current = folder.find()
    versions: dict[str, list[str]] = {}
    for version, name in folder.generations.versions().items():
        versions.setdefault(name, []).append(version)
    rows = [
        _describe(generation, versions.get(generation.name, []), is_current=generation.name == current.name)
        for generation in known_generations(folder)
    ]
    types = sorted({label for row in rows for label in row["entities"]})
    titles = (name.replace("_", " ") for name in _COLUMNS)
    header = ("generation", "finished (UTC)", *titles, *map(printable, types), "name")
    lines = [
        (
            row["generation"],
            (row["finished"] or "-")[:19].replace("T", " "),
            *(_rounded(row[name]) for name in _COLUMNS),
            *(row["entities"].get(label, 0) for label in types),
            ", ".join([*["removed"] * (not row["kept"]), *["current"] * row["current"], *row["versions"]]),
        )
        for row in rows
    ]
    text = table(lines, header=header, right=(0, *range(2, len(header) - 1)))
    return Answer(values={"output": folder.output, "generations": rows}, text=text)


def prune(output: OutputPath, *, keep: int | None) -> Answer:
    """Remove the generations that are past their grace period, but for the newest ``keep`` and those with a name."""
    folder = OutputFolder(output)
    settings = folder.plan().config.output
    with folder.writing():
        removed = folder.prune(keep=keep or settings.keep, grace_seconds=settings.grace_seconds)
    names = [generation.name for generation in removed]
    text = f"{output}: removed {counted(len(names), 'generation')}" + (f" ({', '.join(names)})" if names else "")
    return Answer(values={"output": folder.output, "removed": names}, text=text)


def tag(output: OutputPath, version: str, *, generation: int | None) -> Answer:
    """Give a generation a name, under which it is kept."""
    folder = OutputFolder(output)
    with folder.writing():
        named = folder.find(generation=generation)
        folder.generations.tag(named, version)
    values = {"output": folder.output, "version": version, "generation": named.number}
    return Answer(values=values, text=f"{output}: {version} is generation {named.number}")


def untag(output: OutputPath, version: str) -> Answer:
    """Remove the name of a generation, which is then kept only as any other is."""
    folder = OutputFolder(output)
    versions = folder.generations.versions()
    if version not in versions:
        raise ConfigError(f"{output}: no version {version!r}; there are: {', '.join(versions) or 'none'}")
    with folder.writing():
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
class Move:
    """A share that has moved, and the names, or reasons of dead letters, with most of the difference.

    Attributes:
        change: of the rate, relative to the one before; None where that was 0.
    """

    share: str
    before: float
    after: float
    change: float | None
    names: Mapping[str, float]


def check(output: OutputPath, *, amount: float) -> Answer:
    """Compare what the last run has written with the generation before; ``amount`` is the relative change allowed."""
    latest = open_collection(output)
    pair = known_generations(latest.folder)[-2:]
    reasons, moves = latest.plan.reasons, list[Move]()
    if pair[-1].confirmed:
        pair, reasons = pair[-1:], ()
        text = f"{output}: the last run has changed nothing, so that there is nothing to compare"
    elif len(pair) == 1 or not pair[0].is_kept:
        pair = pair[-1:]
        text = (
            f"{output}: the generation before {pair[0].name}, if any, is not kept, so that there is nothing to compare"
        )
    else:
        collections = [open_collection(latest.folder, generation=one.number) for one in pair]
        types = {label for one in pair for label in one.entities}
        moves = _moves(_shares(pair[0], types), _shares(pair[1], types), collections, amount=amount)
        moved = ", ".join(["these shares have moved", *(f"because {reason}" for reason in reasons)])
        text = f"{output}: from generation {pair[0].name} to {pair[1].name} " + (
            "\n".join([f"{moved}:", *map(_describe_move, moves)])
            if moves
            else f"no share has moved by more than {amount:.0%}"
        )
    names = [one.name for one in pair]
    values = {"output": latest.output, "generations": names, "reasons": reasons, "moved": moves}
    return Answer(values=values, text=text, exit_code=DRIFT * bool(moves))


def has_moved(before: Share, after: Share, *, amount: float) -> bool:
    """Tell whether a rate has changed by more than a relative amount, and by more than chance would.

    Chance is that of independent counts (Poisson): the difference must exceed ``SURE`` of its standard deviations under
    the common rate. What was 0 must become ten of as many, so that a small collection raises no alarm.
    """
    difference, common = after.rate - before.rate, (before.count + after.count) / (before.of + after.of)
    variance = common * (1 / before.of + 1 / after.of)
    return abs(difference) > amount * before.rate and difference**2 > SURE**2 * variance


def _shares(generation: GenerationStats, types: Iterable[str]) -> dict[str, Share]:
    """Return what can be compared with other generations, by name, of entities those of some types."""
    counts, entities = generation.counts, generation.entities
    scored, words = counts.get(SCORED, 0), counts.get("tokens", 0)
    found = {
        LETTERS: Share(counts.get("dead_letters", 0), counts.get("read", 0)),
        CONFIDENT: Share(scored - counts.get(CONFIDENCE, 0) / 1e6, scored, -1),
        **{f"{label}{OF_WORDS}": Share(entities.get(label, 0), words, 1000) for label in types},
    }
    return {name: share for name, share in found.items() if share.of}


def _describe(generation: GenerationStats, versions: list[str], *, is_current: bool) -> dict[str, Any]:
    """Return a generation as it is listed; what is not known of it is None."""
    counts, confidence = generation.counts, _shares(generation, ()).get(CONFIDENT)
    is_timed = generation.words and generation.seconds
    return {
        "generation": generation.number,
        "name": generation.name,
        "finished": None if generation.finished is None else generation.finished.isoformat(),
        "documents": counts.get("documents"),
        "words": counts.get("tokens"),
        "dead_letters": counts.get("dead_letters"),
        "seconds": generation.seconds or None,
        "words_per_second": generation.words / generation.seconds if is_timed else None,
        "confidence": confidence.shown if confidence else None,
        "entities": generation.entities,
        "kept": generation.is_kept,
        "current": is_current,
        "versions": versions,
    }


def _rounded(value: float | None) -> float | str | None:
    """Return a number as the table shows it."""
    return f"{value:.3g}" if isinstance(value, float) and value < 100 else value and round(value)


def _moves(
    before: Mapping[str, Share], after: Mapping[str, Share], collections: list[Collection], *, amount: float
) -> list[Move]:
    names = [name for name in before if name in after and has_moved(before[name], after[name], amount=amount)]
    counts = [_counts(collection) for collection in collections] if names else []
    moves = []
    for name in names:
        old, new = before[name], after[name]
        first, second = (counted[name] for counted in counts)
        parts = {key: second[key] / new.of - first[key] / old.of for key in first | second}
        sign = 1 if new.rate > old.rate else -1
        ranked = sorted((key for key in parts if sign * parts[key] > 0), key=lambda key: (-abs(parts[key]), key))
        by = {key: new.scale * parts[key] for key in ranked[:NAMED]}
        change = new.rate / old.rate - 1 if old.rate else None
        moves.append(Move(share=name, before=old.shown, after=new.shown, change=change, names=by))
    return moves


def _counts(collection: Collection) -> Mapping[str, Counter[str]]:
    """Return, by share, how much of its count each name has, and of dead letters each reason."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for part in collection.parts("errors"):
        found[LETTERS].update(without_lost_pages(read_part(part, ["error", "page"]))["error"].to_pylist())
    for part in collection.parts("entities"):
        rows = without_candidates(read_part(part, ["label", "canonical", "confidence", "source"]))
        doubt = pc.fill_null(pc.subtract(1.0, rows["confidence"].cast(pa.float64())), 0.0)
        groups = rows.append_column("doubt", doubt).group_by(["label", "canonical"])
        for row in groups.aggregate([("doubt", "sum"), ("doubt", "count")]).to_pylist():
            found[f"{row['label']}{OF_WORDS}"][row["canonical"]] += row["doubt_count"]
            found[CONFIDENT][row["canonical"]] += row["doubt_sum"]
    return found


def _describe_move(move: Move) -> str:
    change = "from none" if move.change is None else f"{move.change:+.0%}" + " doubt" * (move.share == CONFIDENT)
    names = ", ".join(f"{printable(name)} {by:+.3g}" for name, by in move.names.items())
    return f"  {printable(move.share)}: {move.before:.3g} to {move.after:.3g} ({change}), most by {names}"
