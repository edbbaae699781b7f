"""HTML pages, the colours of entity types on them, and the report of a run.

A page is one file that holds everything it shows and requests nothing from the network. Its template extends
``concord.pipeline.report/base.html.j2``. The report has a run's counts, names, dead letters and times: the counts come
from the commit records, names and dead letters from their tables, a batch of rows at a time.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.output.manifest import check_equation
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import iter_batches
from concord.pipeline.output.run_stats import RunStats, read_stats
from concord.pipeline.output.schema import CANDIDATE, ERRORS
from concord.pipeline.output.shard_stats import total_counts
from concord.pipeline.output.tables import without_lost_pages
from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.output_paths import OutputPath

if TYPE_CHECKING:
    from jinja2 import Environment, Template

REPORT_NAME = "report.html"
NAMES_A_TYPE = 15
EXAMPLES = 3
DISTINCT_NAMES = 400_000
"""When there are more than this, the rarer half is dropped from the counts."""
HUES = 8
COLOURS = 3 * HUES
"""The colours of the stylesheet: eight hues, the same with a line above, and with a dotted one."""

# Types that occur together have different hues, as far as there are; related ones share one.
_KIN = (
    "LOC FAC LANGUAGE",
    "ORG PRODUCT LAW",
    "PER EVENT WORK_OF_ART",
    "MISC GPE",
    "NORP",
    "DATE TIME",
    "MONEY PERCENT",
    "CARDINAL ORDINAL QUANTITY",
)
_USUAL = {kind: hue + HUES * place for hue, kinds in enumerate(_KIN) for place, kind in enumerate(kinds.split())}
_USUAL |= {"PERSON": _USUAL["PER"], "LOCATION": _USUAL["LOC"], "ORGANIZATION": _USUAL["ORG"]}


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
        BusyError: when another run writes to the folder.
        PlanError: when the folder contains no finished run.
        IntegrityError: when the manifest or a part cannot be read.
        ReconciliationError: when read = annotated + unchanged + dead letters does not hold.
        StoreError: when there is no space.
    """
    collection = open_collection(folder)
    check_equation(collection.manifest, where=str(collection.output))
    path = folder.metadata / REPORT_NAME
    with folder.writing():
        html = _render(collection, read_stats(folder))
        with store_errors(path):
            write_atomically(path, html.encode("utf-8", "backslashreplace"), staging=folder.staging)
    return path


def type_colours(types: Iterable[str]) -> dict[str, int]:
    """Return the number of the colour of each entity type, from 0 to ``COLOURS - 1``.

    A usual type has the same everywhere. Another has one by its name, or the next that is free; beyond ``COLOURS``
    types colours repeat.
    """
    colours: dict[str, int] = {}
    for kind in sorted(set(types), key=lambda kind: (kind not in _USUAL, kind)):
        first = _USUAL.get(kind, crc32(kind.encode(errors="replace")) % HUES)
        free = set(range(COLOURS)) - set(colours.values())
        colours[kind] = min(free, key=lambda number: (number - first) % COLOURS, default=first)
    return colours


def load_template(package: str, name: str) -> "Template":
    """Return a template that lies in a package or a folder of it, as in ``report.html.j2``."""
    return _environment().get_template(f"{package}/{name}")


def format_count(value: int) -> str:
    """Return a count in groups of three digits, set apart by narrow no-break spaces."""
    # No language mistakes these for a decimal sign.
    return f"{value:,}".replace(",", "\u202f")


def _render(collection: Collection, stats: RunStats) -> str:
    """Render the report as HTML."""
    plan, manifest = collection.plan, collection.manifest
    types, is_exact = count_names(collection)
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
        colours=type_colours(kind.label for kind in types),
    )


def _component(identity: ComponentIdentity) -> str:
    return f"{identity.name} {identity.version}" if identity.version else identity.name


def count_names(collection: Collection) -> tuple[Sequence[EntityType], bool]:
    """Return the types of entities, and whether all names were counted exactly: see ``DISTINCT_NAMES``.

    Of names that are as frequent, those of the alphabet's beginning come first.
    """
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
    for (label, name), count in sorted(names.items(), key=lambda item: (-item[1], item[0])):
        if len(top[label]) < NAMES_A_TYPE:
            top[label].append((name, count))
    types = [EntityType(label=label, count=count, names=top[label]) for label, count in sorted(entities.items())]
    return types, is_exact


def _reasons(collection: Collection) -> Sequence[Reason]:
    """Return the reasons of dead letters, the most frequent first."""
    reasons: dict[tuple[str, str], Reason] = {}
    for batch in chain.from_iterable(iter_batches(part, tuple(ERRORS.names)) for part in collection.parts("errors")):
        for row in without_lost_pages(batch).to_pylist():
            stage, error = row["stage"], row["error"]
            reason = reasons.setdefault((stage, error), Reason(stage=stage, error=error))
            reason.count += 1
            if reason.count <= EXAMPLES:
                reason.examples.append(row)
    return sorted(reasons.values(), key=lambda reason: -reason.count)


def _stages(stats: RunStats) -> list[dict[str, Any]]:
    """Return how long each stage took, and its words per second; empty if nothing was timed."""
    seconds = {**stats.seconds, "whole run": stats.wall_seconds} if stats.wall_seconds else {}
    return [
        {"name": name, "seconds": taken, "rate": round(stats.words / taken) if taken > 0 and stats.words else None}
        for name, taken in seconds.items()
    ]


def _share(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:.2f}"


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # not for those who want colours alone

    # Every value is escaped; nothing is ever marked as safe.
    environment = Environment(
        loader=FunctionLoader(_read_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=format_count, share=_share)
    return environment


def _read_source(path: str) -> str:
    package, _, name = path.partition("/")
    return files(package).joinpath(name).read_text(encoding="utf-8")
