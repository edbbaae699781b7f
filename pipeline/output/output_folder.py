"""Reading and writing an output folder's plans, commit records and manifest.

A shard is done when its commit record exists, and of all workers that finish a shard only the first creates that
record; nothing else is consulted. Once all shards of a generation are committed, it is published in one step (see
``generations``), and what no kept generation names (parts without a commit record, and expired generations) is removed.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.output.generations import (
    GENERATION_NAME,
    FolderGenerations,
    Generation,
    Generations,
    generation_of,
    read_plan,
)
from concord.pipeline.output.manifest import (
    CommitRecord,
    DataFile,
    Manifest,
    canonical_json,
    check_equation,
    read_commit_record,
)
from concord.pipeline.output.parquet_parts import read_part, write_part
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.output.tables import NAMED_COLUMNS, tabulate_names, without_candidates
from concord.pipeline.plan import Plan
from concord.pipeline.storage.atomic_writes import crash_point, store_errors, write_atomically, write_once
from concord.pipeline.storage.locks import Check, write_lock
from concord.pipeline.storage.output_paths import (
    ABSENT,
    OutputPath,
    list_files,
    list_folder,
    names_in,
    output_path,
    remove,
)

_BY_GENERATION = ("commits", "attempts")
SETTINGS_NAME = "settings.yaml"
_NAMED = 5


class OutputFolder:
    """An output folder with its plans, commit records and manifest; constructing one reads nothing.

    Args:
        output: a path, or the URL of a store.

    Attributes:
        output: the same, absolute.
    """

    def __init__(self, output: OutputPath | str) -> None:
        self.output = (output_path(output) if isinstance(output, str) else output).absolute()
        self.metadata = self.output / "_run"
        self.plans = self.metadata / "plans"
        self.lock_path = self.metadata / "lock"
        self.generations: Generations = (
            FolderGenerations(self.output) if isinstance(self.output, Path) else Generations(self.output)
        )
        self._records: dict[tuple[int, int, str], CommitRecord | None] = {}
        self._check_lock: Check | None = None

    @property
    def staging(self) -> Path | None:
        """The folder for unfinished files; None for a store."""
        return self.output / "_run" / "staging" if isinstance(self.output, Path) else None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the one writer of the collection while the block runs; within it, a second call does nothing.

        What a killed run has not made current is made so first. A new folder is made, and removed again if nothing was
        written.

        Raises:
            BusyError: when another process, or another OutputFolder, writes to it.
            PlanError: for the folder of a single generation.
            ConfigError: when the folder cannot be made or written, or its file system has no locks.
            IntegrityError: when a link is in place of one of its folders.
            StoreError: when there is no space, or the store fails.
        """
        if self._check_lock is not None:
            yield
            return
        self._check_folders()
        with write_lock(self.lock_path) as self._check_lock:
            try:
                self.generations.check_whole()
                with store_errors(self.output, state="nothing is lost"):
                    self.generations.show_newest()
                yield
            finally:
                self._check_lock = None

    def check_lock(self) -> None:
        """Raise BusyError if another process has become the writer, since this one showed no sign of life for long."""
        if self._check_lock is not None:
            self._check_lock()

    def _check_folders(self) -> None:
        """Raise IntegrityError for a link, or a file, in place of a folder in which a writer writes or removes.

        Somebody else may have made them. What is in place of a file is replaced or removed itself, and of the links of
        ``generations`` only the name of a generation counts.
        """
        if not isinstance(self.metadata, Path):
            return
        output, metadata = self.metadata.parent, self.metadata
        folders = [output / name for name in ("_run", "generations", "versions")]
        folders += [metadata / name for name in ("staging", "plans", *_BY_GENERATION)]
        folders += [metadata / name / number for name in _BY_GENERATION for number in names_in(metadata / name)]
        generations = filter(GENERATION_NAME.fullmatch, names_in(output / "generations"))
        roots = (metadata / "parts", *(output / "generations" / name for name in generations))
        folders += [root / table for root in roots for table in ("", *SCHEMAS)]
        for folder in folders:
            if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
                raise IntegrityError(
                    f"{folder}: expected a folder of the collection, got a link or a file; nothing is written or "
                    "removed through it: remove it, and run the same command again"
                )

    def plan_path(self, generation: int) -> OutputPath:
        """Return the path of a generation's plan."""
        return self.plans / f"{generation}.json"

    def record_path(self, shard: int, *, generation: int) -> OutputPath:
        """Return the path of a shard's commit record."""
        return self.metadata / "commits" / str(generation) / f"{shard:05d}.json"

    def write_plan(self, plan: Plan) -> None:
        """Write the plan of a generation, or check that the existing one produces the same output.

        Raises:
            PlanError: when the existing plan is a different one.
        """
        path = self.plan_path(plan.generation)
        created = False
        if not path.exists():
            with store_errors(path):
                created = write_once(path, plan.to_json(), staging=self.staging)
            crash_point("plan")
        if not created and self.plan(plan.generation).digest != plan.digest:
            raise PlanError(
                f"{self.output}: generation {plan.generation} has been started with a different plan; run the command "
                "again"
            )

    def plan(self, generation: int | None = None) -> Plan:
        """Read the plan of a generation; by default, the latest.

        Raises:
            PlanError: when there is no plan, or it cannot be read.
        """
        chosen = self.latest_generation() if generation is None else generation
        if chosen is None:
            raise PlanError(self._without_run())
        return read_plan(self.plan_path(chosen))

    def find(self, *, generation: int | None = None, version: str | None = None) -> Generation:
        """Return one generation, by number or version; the current one if neither is given.

        Raises:
            PlanError: when there is none; it says what else is there.
        """
        current = self.generations.current()
        if current is None:
            self.plan()
            raise PlanError(f"{self.output}: the run is not finished; run the same annotate command again")
        if generation is None and version is None:
            return current
        found = {candidate.name: candidate for candidate in (*self.generations.history(), current)}
        wanted, names = f"generation {generation}", {str(int(name)): name for name in found}
        if version is not None:
            wanted, names = f"version {version!r}", dict(self.generations.versions())
        chosen = found.get(names.get(str(generation) if version is None else version, ""))
        if chosen is None:
            raise PlanError(f"{self.output}: no {wanted}; there are: {', '.join(names) or 'none'}")
        return chosen

    def _without_run(self) -> str:
        """Describe what is there instead of a run."""
        inside: list[str] = []
        if isinstance(self.output, Path):
            if not self.output.exists():
                return f"{self.output}: there is no such folder"
            inside = [str(path.parents[1]) for up in ("*", "*/*") for path in self.output.glob(f"{up}/_run/plans")]
        if not inside:
            return f"{self.output}: expected the output of a run, found no plan in {self.plans}"
        named = [*sorted(inside)[:_NAMED], *([f"{len(inside) - _NAMED:,} more"] if len(inside) > _NAMED else [])]
        return f"{self.output}: no collection, but a folder of collections; choose one: {', '.join(named)}"

    def latest_generation(self) -> int | None:
        """Return the number of the newest plan; None if there is no run."""
        plans = (name.removesuffix(".json") for name in names_in(self.plans))
        return max((int(number) for number in plans if number.isdecimal()), default=None)

    def manifest(self) -> Manifest | None:
        """Read the manifest; None while the run is not finished, IntegrityError if it cannot be read."""
        current = self.generations.current()
        return None if current is None else current.manifest()

    def check_newest(self, generation: int) -> None:
        """Raise PlanError when a newer generation was started: that of a worker whose driver is gone is dropped."""
        latest = self.latest_generation()
        if latest is not None and latest > generation:
            raise PlanError(f"{self.output}: generation {generation} is dropped, since {latest} has been started")

    def commit(self, report: CommitRecord) -> CommitRecord:
        """Commit a shard's parts, unless another worker has already: then remove ours and return its record.

        Workers commit without the lock. One whose driver was killed, or took it for dead, may be the other.
        """
        path = self.record_path(report.shard, generation=report.generation)
        with store_errors(path):
            if write_once(path, canonical_json(report), staging=self.staging):
                crash_point("commit")
                return report
            winner = self.find_commit(report.shard, generation=report.generation)
            if winner is None:  # it is broken, or has lost parts
                write_atomically(path, canonical_json(report), staging=self.staging)
                return report
            named = {part.path for part in winner.files.values()}
            for part in report.files.values():
                # Equal bytes have equal names, so our part may be the very file that the winner's record names.
                if part.path not in named:
                    remove(self.generations.pending / part.path)
        return winner

    def find_commit(self, shard: int, *, generation: int) -> CommitRecord | None:
        """Return a shard's commit record if its parts exist and have the right size, else None."""
        report = self._read_record(shard, generation)
        return report if report is not None and self._has_all(report.files.values()) else None

    def require_commit(self, shard: int, *, generation: int) -> CommitRecord:
        """Return the commit record of a shard whose rows or parses are about to be reused; IntegrityError if gone."""
        report = self.find_commit(shard, generation=generation)
        if report is None:
            raise IntegrityError(
                f"{self.output}: shard {shard:05d} of generation {generation}, whose rows were to be reused, is gone; "
                "run the command again"
            )
        return report

    def finished_shards(self, plan: Plan) -> dict[int, CommitRecord]:
        """Return the records of the shards that a plan reuses, and of its own that are committed, by shard index."""
        shards = [(rows.shard, rows.generation) for rows in plan.reused]
        shards += [(shard.index, plan.generation) for shard in plan.shards]
        # The parts of a record are there before it is.
        generations = {generation for _, generation in shards}
        records = {number: list_folder(self.record_path(0, generation=number).parent) for number in generations}
        sizes = self.generations.part_sizes()
        reports: dict[int, CommitRecord] = {}
        for shard, generation in shards:
            state = records[generation].get(f"{shard:05d}.json")
            report = None if state is None else self._read_once(shard, generation, version=state.etag)
            if report is not None and all(sizes.get(part.path) == part.size for part in report.files.values()):
                reports[shard] = report
        return reports

    def finish(self, plan: Plan, *, keep: int = 1, grace_seconds: float = 3600.0) -> Manifest:
        """Check the totals, write the names, publish the generation, and remove what is no longer kept (``prune``).

        Raises:
            BusyError: when another process has become the writer.
            PlanError: when a newer generation has been started.
            StoreError: when the store fails.
            IntegrityError: when a shard has no commit record.
            ReconciliationError: when documents are missing.
        """
        with self.writing():
            self.check_newest(plan.generation)
            if any(generation.number > plan.generation for generation in self.generations.history()):
                raise PlanError(f"{self.output}: a newer generation is finished, whose plan is gone from {self.plans}")
            manifest = self._new_manifest(plan)
            self.check_lock()
            with store_errors(self.output, state=f"generation {plan.generation} is not published"):
                self.generations.publish(manifest, self.plan_path(plan.generation))
            self.prune(keep=keep, grace_seconds=grace_seconds)
            return manifest

    def prune(self, *, keep: int, grace_seconds: float) -> list[Generation]:
        """Remove the orphans, and the generations that are no longer to be kept, which are returned.

        Args:
            keep, grace_seconds: see ``Generations.expired``.

        Raises:
            PlanError: when no run is finished.
            StoreError: when the store fails.
        """
        manifest = self.find().manifest()
        with store_errors(self.output, state="nothing is lost, but not everything that is no longer kept is removed"):
            expired = self.generations.expired(keep=keep, grace_seconds=grace_seconds)
            for generation in expired:
                self.generations.remove(generation)
            for orphan in list(self.orphans(manifest)):
                remove(orphan)
        crash_point("sweep")
        return expired

    def is_finished(self, plan: Plan) -> bool:
        """Tell whether the manifest is that of this plan and its commits, and there are no orphans."""
        try:
            manifest = self.manifest()
        except IntegrityError:
            return False
        return (
            manifest is not None
            and manifest.plan == plan.digest
            and {report.shard: report for report in manifest.shards} == self.finished_shards(plan)
            and self._has_all(manifest.files("names"))
            and self.generations.shows_newest()
            and not any(self.orphans(manifest))
        )

    def orphans(self, manifest: Manifest) -> Iterator[OutputPath]:
        """Yield the files that no kept generation names, except those of a generation newer than the manifest's."""
        named = {self.record_path(shard.shard, generation=shard.generation) for shard in manifest.shards}
        named |= {self.plan_path(manifest.generation)}
        searched = [(self.metadata / "staging", "*"), (self.plans, "*")]
        searched += [(self.metadata / name, "*/*") for name in _BY_GENERATION]
        files = chain.from_iterable(list_files(folder, pattern) for folder, pattern in searched)
        unnamed = chain(self.generations.unnamed(manifest), (path for path in files if path not in named))
        yield from (path for path in unnamed if (generation_of(path) or 0) <= manifest.generation)

    def part(self, report: CommitRecord, table: str) -> OutputPath:
        """Return where a committed shard's part of a table is."""
        return self.generations.find_part(report.files[table].path)

    def _new_manifest(self, plan: Plan) -> Manifest:
        reports = self.finished_shards(plan)
        expected = [*(shard.index for shard in plan.shards), *(rows.shard for rows in plan.reused)]
        missing = [f"{index:05d}" for index in sorted(expected) if index not in reports]
        if missing:
            raise IntegrityError(
                f"{self.output}: no complete commit for shard {', '.join(missing[:5])}; run the command again"
            )
        manifest = Manifest.of(plan, reports.values(), read=plan.read)
        check_equation(manifest, where=str(self.output))
        return replace(manifest, names=self._write_names(manifest))

    def _write_names(self, manifest: Manifest) -> DataFile:
        """Write the table of names of a generation, unless its entities and their names are those of the current one.

        A lost table is written again with the same ids, but for those that a release with other rules gave.

        Raises:
            IntegrityError: when a part of entities cannot be read.
            StoreError: when there is no space.
        """
        previous, parts = None, _filled(manifest.files("entities"))
        with suppress(IntegrityError):  # a broken manifest or table is about to be replaced
            current = self.manifest()
            if current is not None and current.names is not None and self._has_all([current.names]):
                if _filled(current.files("entities")) == parts:
                    return current.names
                previous = read_part(self.generations.find_part(current.names.path))
        paths = (self.generations.find_part(part.path) for part in parts)
        entities = (without_candidates(read_part(path, [*NAMED_COLUMNS, "source"])) for path in paths)
        names = write_part(
            tabulate_names(entities, previous),
            root=self.generations.pending,
            staging=self.staging,
            name="names",
            shard="00000",
            generation=manifest.generation,
        )
        crash_point("names")
        return names

    def _read_once(self, shard: int, generation: int, *, version: str) -> CommitRecord | None:
        """Read a record, again only if it has changed."""
        key = (shard, generation, version)
        if key not in self._records:
            self._records[key] = self._read_record(shard, generation)
        return self._records[key]

    def _read_record(self, shard: int, generation: int) -> CommitRecord | None:
        """Read a commit record; None if there is none, or one that is broken or of another shard."""
        with suppress(IntegrityError):
            report = read_commit_record(self.record_path(shard, generation=generation))
            if report is not None and (report.shard, report.generation) == (shard, generation):
                return report
        return None

    def _has_all(self, parts: Iterable[DataFile]) -> bool:
        """Tell whether parts exist and have the right size."""
        try:
            return all(self.generations.find_part(part.path).stat().st_size == part.size for part in parts)
        except OSError as error:
            if error.errno not in ABSENT:
                raise
            return False


def _filled(parts: Iterable[DataFile]) -> list[DataFile]:
    return [part for part in parts if part.rows]
