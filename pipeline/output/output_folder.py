"""Plans, commit records and the manifest: which shard is done, with which bytes.

A shard counts once its commit record stands, and a record is created by exactly one worker, whoever comes first.
Nothing else has a say. When all shards of a generation have committed, the manifest is swapped in; what it does not
name - parts without a record, and what later generations have replaced - is then removed.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from concord.pipeline.contents import content_faults
from concord.pipeline.errors import IntegrityError, PlanError, ReconciliationError
from concord.pipeline.output.manifest import Manifest, PartFile, ShardReport, check_equation, sum_outcomes
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.storage.atomic_writes import (
    crash_point,
    store_errors,
    sync_folder,
    write_atomically,
    write_once,
)
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.storage.output_paths import Listing, OutputPath, list_files, output_path, staging_folder

STATS_NAME = "stats.json"

_OF_GENERATION = re.compile(r"/part-\d+-g(\d+)-|/(?:commits|trials)/(\d+)/|/plans/(\d+)\.json$")

SizeOf = Callable[[OutputPath], int]

# What a file that is no record raises: no JSON, no mapping, other keys.
_MALFORMED = (orjson.JSONDecodeError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something that is not as the manifest says; ``place`` is a path below the output folder."""

    place: str
    problem: str


class OutputFolder:
    """An output folder with its plan, commit records and manifest."""

    def __init__(self, output: OutputPath | str) -> None:
        """Take an absolute path or a URL of S3; nothing is read yet."""
        self.output = output_path(output) if isinstance(output, str) else output
        self.run = self.output / "_run"
        self.plans = self.run / "plans"
        self.manifest_path = self.run / "manifest.json"
        self._records: dict[tuple[OutputPath, str], ShardReport | None] = {}

    @property
    def staging(self) -> Path:
        """The folder for unfinished files."""
        return staging_folder(self.output)

    def write_plan(self, plan: Plan) -> None:
        """Write the plan of a generation, or check that the one standing there decides the same output.

        Raises:
            PlanError: when it does not.
            StoreError: when there is no space.
        """
        path = self.plan_path(plan.generation)
        created = False
        if not path.exists():
            with store_errors(path):
                created = write_once(path, plan.to_json(), staging=self.staging)
            crash_point("plan")
        if not created and self.plan(plan.generation).digest != plan.digest:
            raise PlanError(
                f"{self.output}: another run has just begun generation {plan.generation} with another plan, so the "
                "input or the configuration has changed in between; run the command again"
            )

    def plan(self, generation: int | None = None) -> Plan:
        """Read the plan of a generation, the latest one if None.

        Raises:
            PlanError: when there is none, or none that can be read.
        """
        chosen = self.latest_generation() if generation is None else generation
        if chosen is None:
            raise PlanError(f"{self.output}: expected the output of a run, found no plan in {self.plans}")
        try:
            return Plan.from_json(self.plan_path(chosen).read_bytes())
        except FileNotFoundError:
            raise PlanError(f"{self.output}: expected {self.plan_path(chosen)}, found no such file") from None

    def plan_path(self, generation: int) -> OutputPath:
        """Give the place of a generation's plan."""
        return self.plans / f"{generation}.json"

    def latest_generation(self) -> int | None:
        """Give the number of the newest plan; None where there is no run."""
        plans = list_files(self.plans, "*.json")
        return max((int(path.stem) for path in plans if path.stem.isdecimal()), default=None)

    def manifest(self) -> Manifest | None:
        """Read the manifest; None while the run is not finished.

        Raises:
            IntegrityError: when it cannot be read.
        """
        try:
            values = orjson.loads(self.manifest_path.read_bytes())
            return Manifest(**{**values, "shards": tuple(_report(shard) for shard in values["shards"])})
        except FileNotFoundError:
            return None
        except _MALFORMED as error:
            raise IntegrityError(f"{self.manifest_path}: not a manifest: {error}") from None

    def stats(self) -> dict[str, Any]:
        """Read what runs have taken so far; see concord.pipeline.annotate. Nothing where none was timed."""
        try:
            found: dict[str, Any] = orjson.loads((self.run / STATS_NAME).read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def commit(self, report: ShardReport) -> ShardReport:
        """Make a shard's parts count, unless another worker was first: then ours go and its record is given.

        Raises:
            StoreError: when there is no space.
        """
        path = self.record_path(report.shard, generation=report.generation)
        with store_errors(path):
            won = write_once(path, _canonical(report), staging=self.staging)
        if won:
            crash_point("commit")
            return report
        winner = _read_record(path)
        if winner is None:
            raise IntegrityError(f"{path}: the record was withdrawn while it was being read; run the command again")
        kept = {part.path for part in winner.files.values()}
        for part in report.files.values():
            # Equal bytes have equal names, so our part may be the very file that the winner's record names.
            if part.path not in kept:
                (self.output / part.path).unlink(missing_ok=True)
        return winner

    def find_commit(self, shard: int, *, generation: int) -> ShardReport | None:
        """Give a shard's record if its parts are there and of the right size."""
        path = self.record_path(shard, generation=generation)
        try:
            report = _read_record(path)
        except IntegrityError:
            return None
        return report if report is not None and self._has_parts(report, _size) else None

    def require_commit(self, shard: int, *, generation: int) -> ShardReport:
        """Give the record of an earlier generation's shard whose rows or parses are to be used.

        Raises:
            IntegrityError: when it is gone.
        """
        report = self.find_commit(shard, generation=generation)
        if report is None:
            raise IntegrityError(
                f"{self.output}: shard {shard:05d} of generation {generation} is gone, whose rows were to be used; "
                "run the command again"
            )
        return report

    def committed_shards(self, plan: Plan) -> dict[int, ShardReport]:
        """Give the records of a plan's shards that need no more work, by the shard's index."""
        return self._all_committed((shard.index, plan.generation) for shard in plan.shards)

    def reused_shards(self, plan: Plan) -> dict[int, ShardReport]:
        """Give the records of earlier generations that a plan keeps, by the shard's index."""
        return self._all_committed((carry.shard, carry.generation) for carry in plan.kept)

    def is_complete(self, plan: Plan) -> bool:
        """Say whether every shard of a plan stands, new and kept."""
        return len(self.committed_shards(plan)) == len(plan.shards) and len(self.reused_shards(plan)) == len(plan.kept)

    def remove_broken_commits(self, shards: Iterable[Shard], *, generation: int) -> None:
        """Remove the records of shards whose parts are gone or cut short, so that they can be done again."""
        for shard in shards:
            path = self.record_path(shard.index, generation=generation)
            if path.exists() and self.find_commit(shard.index, generation=generation) is None:
                path.unlink(missing_ok=True)

    def finish(self, plan: Plan) -> Manifest:
        """Check the equation in total, swap the manifest in and remove strays; a finished run is left untouched.

        Raises:
            PlanError: when a newer generation has been begun meanwhile.
            IntegrityError: when a shard has no commit record.
            ReconciliationError: when documents went missing.
            StoreError: when there is no space.
        """
        manifest = self._new_manifest(plan)
        if self.latest_generation() != plan.generation:
            raise PlanError(f"{self.output}: another run has begun a newer generation; run the command again")
        content = _canonical(manifest)
        if not (self.manifest_path.exists() and self.manifest_path.read_bytes() == content):
            with store_errors(self.manifest_path):
                write_atomically(self.manifest_path, content, staging=self.staging)
            crash_point("swap")
        orphans = list(self.orphans(manifest))
        for orphan in orphans:
            orphan.unlink(missing_ok=True)
        for folder in {orphan.parent for orphan in orphans}:
            sync_folder(folder)
        crash_point("sweep")
        return manifest

    def record_path(self, shard: int, *, generation: int) -> OutputPath:
        """Give the place of a shard's commit record."""
        return self.run / "commits" / str(generation) / f"{shard:05d}.json"

    def is_finished(self, plan: Plan) -> bool:
        """Say whether the manifest stands for this plan and its whole commits, and nothing strays."""
        try:
            manifest = self.manifest()
        except IntegrityError:
            return False
        return (
            manifest is not None
            and manifest.plan == plan.digest
            and {report.shard: report for report in manifest.shards}
            == self.reused_shards(plan) | self.committed_shards(plan)
            and not any(self.orphans(manifest))
        )

    def faults(self, manifest: Manifest, *, deep: bool) -> Iterator[Finding]:
        """Compare everything below the output folder with the manifest; see ``verify``."""
        yield from self._plan_faults(manifest)
        seen: set[str] = set()
        listing = Listing(self.output)
        for report in manifest.shards:
            record = self.record_path(report.shard, generation=report.generation)
            yield from self._record_faults(report, record)
            broken = [*self._shard_file_faults(report, listing.size, deep=deep)]
            yield from broken
            if deep and not broken:
                paths = {name: self.output / part.path for name, part in report.files.items()}
                for place, problem in content_faults(report, paths, seen=seen):
                    yield Finding(place=self._below(place), problem=problem)
        for orphan in self.orphans(manifest):
            yield Finding(place=self._below(orphan), problem="stray: no commit record names it")

    def _new_manifest(self, plan: Plan) -> Manifest:
        reports = self.reused_shards(plan) | self.committed_shards(plan)
        wanted = sorted([shard.index for shard in plan.shards] + [carry.shard for carry in plan.kept])
        missing = [f"{index:05d}" for index in wanted if index not in reports]
        if missing:
            raise IntegrityError(
                f"{self.output}: no whole commit for shard {', '.join(missing[:5])}; run the command again"
            )
        shards = tuple(reports[index] for index in wanted)
        outcome = sum_outcomes(shards, generation=plan.generation)
        manifest = Manifest(
            schema_version=plan.schema_version,
            generation=plan.generation,
            plan=plan.digest,
            read=plan.read,
            annotated=outcome.annotated,
            unchanged=outcome.unchanged,
            dead_letters=outcome.dead_letters,
            shards=shards,
        )
        check_equation(manifest, place=str(self.output))
        return manifest

    def orphans(self, manifest: Manifest) -> Iterator[OutputPath]:
        """Give all files that a manifest does not name, but for what a newer generation has done so far."""
        kept = {self.output / part.path for shard in manifest.shards for part in shard.files.values()}
        kept |= {self.record_path(shard.shard, generation=shard.generation) for shard in manifest.shards}
        kept.add(self.plan_path(manifest.generation))
        places = [(self.output / name, "*") for name in SCHEMAS]
        places += [(self.run / "staging", "*"), (self.plans, "*")]
        places += [(self.run / "commits", "*/*"), (self.run / "trials", "*/*")]
        for folder, pattern in places:
            files = (path for path in list_files(folder, pattern) if path not in kept)
            yield from (path for path in files if (_generation(path) or 0) <= manifest.generation)

    def _all_committed(self, wanted: Iterable[tuple[int, int]]) -> dict[int, ShardReport]:
        """Give what ``committed`` does for many shards and generations, by the shard."""
        listing = Listing(self.output)
        found: dict[int, ShardReport] = {}
        for shard, generation in wanted:
            with suppress(IntegrityError, FileNotFoundError):
                report = self._record(self.record_path(shard, generation=generation), listing)
                if report is not None and self._has_parts(report, listing.size):
                    found[shard] = report
        return found

    def _record(self, path: OutputPath, listing: Listing) -> ShardReport | None:
        """Read a record, but one of S3 only if it is another than when it was read last."""
        version = listing.version(path)
        if version is None:
            return _read_record(path)
        if (path, version) not in self._records:
            self._records[path, version] = _read_record(path)
        return self._records[path, version]

    def _has_parts(self, report: ShardReport, size_of: SizeOf) -> bool:
        return not any(self._part_fault(part, size_of) for part in report.files.values())

    def _part_fault(self, part: PartFile, size_of: SizeOf) -> str | None:
        try:
            size = size_of(self.output / part.path)
        except FileNotFoundError:
            return "missing"
        return None if size == part.size else f"expected {part.size} bytes, found {size}"

    def _plan_faults(self, manifest: Manifest) -> Iterator[Finding]:
        try:
            plan = self.plan(manifest.generation)
        except PlanError as error:
            yield Finding(place=self._below(self.plan_path(manifest.generation)), problem=str(error))
            return
        planned = {shard.index: shard.records for shard in plan.shards}
        planned |= {carry.shard: carry.records for carry in plan.kept}
        reported = {report.shard: report.read for report in manifest.shards}
        problems = []
        if plan.digest != manifest.plan:
            problems.append("the manifest was made by another plan")
        if planned != reported:
            problems.append("its shards or their records are not those of the plan")
        if plan.read != manifest.read or sum(reported.values()) != manifest.read:
            problems.append(f"{plan.read} records were planned, the manifest says {manifest.read} were read")
        yield from (Finding(place=self._below(self.manifest_path), problem=problem) for problem in problems)
        try:
            check_equation(manifest, place="in total")
        except ReconciliationError as error:
            yield Finding(place=self._below(self.manifest_path), problem=str(error))

    def _record_faults(self, report: ShardReport, record: OutputPath) -> Iterator[Finding]:
        try:
            if _read_record(record) != report:
                yield Finding(place=self._below(record), problem="missing, or not what the manifest says")
            check_equation(report, place=f"shard {report.shard:05d}")
        except (IntegrityError, ReconciliationError) as error:
            yield Finding(place=self._below(record), problem=str(error))

    def _shard_file_faults(self, report: ShardReport, size_of: SizeOf, *, deep: bool) -> Iterator[Finding]:
        expected = set(SCHEMAS) - {"errors"} | ({"errors"} if report.dead_letters else set())
        for name in sorted(expected - set(report.files)):
            yield Finding(place=name, problem=f"shard {report.shard:05d} has no part of this table")
        for part in report.files.values():
            fault = self._part_fault(part, size_of)
            if fault is None and deep and file_sha256(self.output / part.path) != part.sha256:
                fault = "its bytes are not those that were committed (SHA-256 differs)"
            if fault is not None:
                yield Finding(place=part.path, problem=fault)

    def _below(self, path: OutputPath) -> str:
        return str(path).removeprefix(f"{self.output}/")


def verify(output: OutputPath, *, deep: bool = True) -> list[Finding]:
    """Compare a finished run's folder with its manifest.

    Checked are the plan, every commit record, the equation per shard and in total, presence and size of every part,
    and strays; ``deep`` adds the hash, rows and schema of every part, unique document ids, and that sentences, tokens
    and entities are whole and in order.

    Raises:
        PlanError: when the folder holds no run.
        IntegrityError: when the manifest cannot be read.
    """
    folder = OutputFolder(output.absolute())
    manifest = folder.manifest()
    if manifest is None:
        folder.plan()
        return [Finding(place="_run/manifest.json", problem="missing: the run is not finished; run the command again")]
    if folder.latest_generation() not in (None, manifest.generation):
        begun = f"generation {folder.latest_generation()} is begun and not finished: run the command again"
        return [Finding(place="_run/plans", problem=begun)]
    return list(folder.faults(manifest, deep=deep))


def _size(path: OutputPath) -> int:
    return path.stat().st_size


def _generation(path: OutputPath) -> int | None:
    """Give the generation that a part, commit record or plan is of; None for any other file."""
    match = _OF_GENERATION.search(f"/{path.parent.parent.name}/{path.parent.name}/{path.name}")
    return int(next(filter(None, match.groups()))) if match else None


def _read_record(path: OutputPath) -> ShardReport | None:
    try:
        return _report(orjson.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except _MALFORMED as error:
        raise IntegrityError(f"{path}: not a commit record: {error}") from None


def _report(values: dict[str, Any]) -> ShardReport:
    files = {name: PartFile(**part) for name, part in values["files"].items()}
    return ShardReport(**{**values, "files": files})


def _canonical(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)
