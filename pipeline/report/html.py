"""The report of a run: one self-contained HTML file with its counts, names, dead letters and times.

The counts come from the commit records, names and dead letters from their tables, a batch of rows at a time.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.output.manifest import check_equation
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import iter_batches
from concord.pipeline.output.schema import CANDIDATE, ERRORS
from concord.pipeline.output.shard_stats import backed_off, total_counts
from concord.pipeline.report.templates import load_template, write_page
from concord.pipeline.report.type_colours import type_colours
from concord.pipeline.storage.output_paths import OutputPath

REPORT_NAME = "report.html"
NAMES_A_TYPE = 15
EXAMPLES = 3
DISTINCT_NAMES = 400_000
"""When there are more than this, the rarer half is dropped from the counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EntityType:
    """A type of entity: how many there are, and the most frequent names."""

    label: str
    count: int
    names: Sequence[tuple[str, int]]


@dataclass(kw_only=True, slots=True)
class Reason:
    """Dead letters of one stage and error, and the first few as rows of the table of errors."""

    stage: str
    error: str
    count: int = 0
    examples: list[Mapping[str, Any]] = field(default_factory=list)


def write_report(folder: OutputFolder) -> OutputPath:
    """Write ``_run/report.html`` atomically, replacing any existing one, and return its path.

    Raises:
        PlanError: when the folder contains no finished run.
        IntegrityError: when the manifest or a part cannot be read.
        ReconciliationError: when read = annotated + unchanged + dead letters does not hold.
        StoreError: when there is no space.
    """
    folder.generations.check_whole()
    collection = open_collection(folder)
    check_equation(collection.manifest, where=str(collection.output))
    path = folder.metadata / REPORT_NAME
    write_page(path, _render(collection, folder.stats()), staging=folder.staging)
    return path


def _render(collection: Collection, stats: Mapping[str, Any]) -> str:
    """Render the report as HTML; ``stats`` is the content of stats.json, of which missing keys are not shown."""
    plan, manifest = collection.plan, collection.manifest
    types, is_exact = _count_names(collection)
    return load_template("concord.pipeline.report", "report.html.j2").render(
        manifest=manifest,
        plan=plan,
        collection=Path(plan.config.input).name or plan.config.input,
        tagger=_component(plan.tagger),
        parser=_component(plan.parser),
        counts=total_counts(manifest.shards),
        types=types,
        names_are_exact=is_exact,
        reasons=_reasons(collection),
        stages=_stages(stats),
        backed_off=backed_off(manifest.shards),
        colours=type_colours(kind.label for kind in types),
    )


def _component(identity: ComponentIdentity) -> str:
    return f"{identity.name} {identity.version}" if identity.version else identity.name


def _count_names(collection: Collection) -> tuple[Sequence[EntityType], bool]:
    """Return the types of entities, and whether all names were counted exactly: see ``DISTINCT_NAMES``."""
    names, is_exact = Counter[tuple[str, str]](), True
    entities: Counter[str] = Counter()
    columns = ("label", "name", "source")
    for batch in chain.from_iterable(iter_batches(part, columns) for part in collection.parts("entities")):
        rows = zip(*(batch.column(column).to_pylist() for column in columns), strict=True)
        found = Counter((label, name) for label, name, source in rows if source != CANDIDATE)
        names.update(found)
        for (label, _), count in found.items():
            entities[label] += count
        if len(names) > DISTINCT_NAMES:
            names, is_exact = Counter(dict(names.most_common(DISTINCT_NAMES // 2))), False
    top: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for (label, name), count in names.most_common():
        if len(top[label]) < NAMES_A_TYPE:
            top[label].append((name, count))
    types = [EntityType(label=label, count=count, names=top[label]) for label, count in sorted(entities.items())]
    return types, is_exact


def _reasons(collection: Collection) -> Sequence[Reason]:
    """Return the reasons of dead letters, the most frequent first."""
    reasons: dict[tuple[str, str], Reason] = {}
    for batch in chain.from_iterable(iter_batches(part, tuple(ERRORS.names)) for part in collection.parts("errors")):
        for row in batch.to_pylist():
            stage, error = row["stage"], row["error"]
            reason = reasons.setdefault((stage, error), Reason(stage=stage, error=error))
            reason.count += 1
            if reason.count <= EXAMPLES:
                reason.examples.append(row)
    return sorted(reasons.values(), key=lambda reason: -reason.count)


def _stages(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how long each stage took, and its words per second."""
    seconds = dict(stats.get("seconds", {}))
    if "wall_seconds" in stats:
        seconds["whole run"] = stats["wall_seconds"]
    words = stats.get("words", 0)
    return [
        {"name": name, "seconds": taken, "rate": round(words / taken) if taken > 0 and words else None}
        for name, taken in seconds.items()
    ]
