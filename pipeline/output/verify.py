"""Verifying a finished run: compare everything below the output folder with its manifest."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from concord.pipeline.errors import IntegrityError, PlanError, ReconciliationError
from concord.pipeline.output.generations import Generation, sizes_below
from concord.pipeline.output.manifest import CommitRecord, Manifest, check_equation, read_commit_record
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import SCHEMA_VERSION
from concord.pipeline.output.shard_stats import LOST_PAGES
from concord.pipeline.plan import Plan
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.storage.output_paths import OutputPath

# A path and what is wrong there.
_Fault = tuple[OutputPath, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A deviation from the manifest; ``place`` is a path below the output folder."""

    place: str
    problem: str


def verify(output: OutputPath, *, deep: bool = True) -> list[Finding]:
    """Compare a finished run's folder with its manifest.

    Checks the plan, every commit record, the totals per shard and overall, that every part exists with the right size,
    and that there are no orphans. ``deep`` adds the hash of every part.

    Raises:
        PlanError: when the folder contains no run.
        IntegrityError: when the manifest cannot be read.
    """
    folder = OutputFolder(output)
    folder.generations.check_whole()
    current = folder.generations.current()
    if current is None:
        folder.plan()
        return [Finding(place="current", problem="missing: the run is not finished; run the command again")]
    manifest = current.manifest()
    if folder.latest_generation() not in (None, manifest.generation):
        started = f"generation {folder.latest_generation()} was started but is not finished: run the command again"
        return [Finding(place="_run/plans", problem=started)]
    faults = _faults(folder, current, manifest, deep=deep)
    return [Finding(place=str(path).removeprefix(f"{folder.output}/"), problem=problem) for path, problem in faults]


def _faults(folder: OutputFolder, current: Generation, manifest: Manifest, *, deep: bool) -> Iterator[_Fault]:
    if not folder.generations.shows_newest():
        yield folder.output / "current", "it, or a table, does not lead to the newest generation; run the command again"
    try:
        plan = folder.plan(manifest.generation)
        yield from ((current.manifest_path, problem) for problem in _differences(manifest, plan))
    except PlanError as error:
        yield folder.plan_path(manifest.generation), str(error)
    for report in manifest.shards:
        yield from _record_faults(folder, report)
    yield from part_faults(current.root, manifest, deep=deep)
    orphan = "orphan: left by a run that was killed; no manifest names it, and the next run removes it"
    yield from ((path, orphan) for path in folder.orphans(manifest))


def _differences(manifest: Manifest, plan: Plan) -> Iterator[str]:
    """Yield in what a manifest differs from this release, its plan and its own shards."""
    if manifest.schema_version != SCHEMA_VERSION:
        yield f"expected schema version {SCHEMA_VERSION}, got {manifest.schema_version}; annotate the input again"
    planned = {shard.index: shard.records for shard in plan.shards} | {rows.shard: rows.records for rows in plan.reused}
    if planned != {report.shard: report.read for report in manifest.shards}:
        yield "its shards or their records are not those of the plan"
    if replace(Manifest.of(plan, manifest.shards, read=plan.read), names=manifest.names) != manifest:
        yield "it was made by another plan, or its counts are not those of its shards"
    try:
        check_equation(manifest, where="in total")
    except ReconciliationError as error:
        yield str(error)


def _record_faults(folder: OutputFolder, report: CommitRecord) -> Iterator[_Fault]:
    path = folder.record_path(report.shard, generation=report.generation)
    try:
        if read_commit_record(path) != report:
            yield path, "missing, or not what the manifest says"
        check_equation(report, where=f"shard {report.shard:05d}")
    except (IntegrityError, ReconciliationError) as error:
        yield path, str(error)


def part_faults(root: OutputPath, manifest: Manifest, *, deep: bool = True) -> Iterator[_Fault]:
    """Yield the parts of a generation that are missing or damaged, with what is wrong; ``deep`` compares hashes."""
    sizes = sizes_below(root)
    for report in manifest.shards:
        if "errors" not in report.files and (report.dead_letters or LOST_PAGES in report.stats):
            yield root / "errors", f"shard {report.shard:05d} has no part of this table"
    if manifest.names is None:
        yield root / "names", "the manifest names no part of this table; run the command again"
    for part in manifest.all_files():
        path, size = root / part.path, sizes.get(part.path)
        if size != part.size:
            yield path, "missing" if size is None else f"expected {part.size} bytes, found {size}"
            continue
        try:
            if deep and file_sha256(path) != part.sha256:
                yield path, "its bytes are not those that were committed (SHA-256 differs)"
        except OSError as error:
            yield path, f"cannot be read: {error.strerror}"
