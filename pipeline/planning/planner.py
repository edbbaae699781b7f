"""Which plan a job works on: the unfinished one, the finished one, or that of the next generation."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.corrections.correction import corrections_digest, current_corrections, log_path, read_log
from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.executors.ray_setup import resolve_auth_mode
from concord.pipeline.identity import RowSettings
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.manifest import CommitRecord, Manifest, shard_ref
from concord.pipeline.output.schema import SCHEMA_VERSION
from concord.pipeline.plan import Changes, Plan, ShardRef, Source
from concord.pipeline.planning.build_plan import PlanInputs, has_same_files, make_plan
from concord.pipeline.planning.input_diff import ExistingOutput, scan_existing
from concord.pipeline.planning.inputs import FileHashes, hash_here
from concord.pipeline.readers.read_file import format_of, is_extracted, libraries_of
from concord.pipeline.resources import default_threads, threads_of_environment
from concord.pipeline.storage.files import FileState

MOST_HASHED_HERE = 2_000_000_000
"""Bytes of an input that the driver hashes itself with the Ray executor; more are hashed by Ray tasks."""


class Planner:
    """Finds out what a job has to do in its output folder; writes nothing.

    Attributes:
        hashes: of the input's files; the caller saves them for the next run.
    """

    def __init__(self, job: ResolvedJob, *, name_documents: bool = False) -> None:
        """Read the latest plan of the output folder; with ``name_documents`` the plan names those that differ."""
        self._job, self._config, self._folder = job, job.config, job.folder
        self._latest = job.folder.plan() if job.folder.latest_generation() is not None else None
        self._name_documents = name_documents
        self._row_settings = RowSettings.of(job.config, job.parser, job.tagger.identity, SCHEMA_VERSION)
        # A store takes no line at the end of a file, so there are no corrections.
        log = read_log(log_path(job.folder.output)) if isinstance(job.folder.output, Path) else []
        self._corrections = current_corrections(log)
        self.hashes = FileHashes(
            job.folder.metadata / "files.json", hash_files=self._hash_files, use_cache=not job.config.planning.rehash
        )

    def resolve(self) -> Plan:
        """Return the plan to work on.

        Raises:
            PlanError: when the folder holds the annotation of another input, or too much of the input is gone.
            InputError, StoreError, ConfigError, IntegrityError: when input or existing output cannot be read.
        """
        manifest = self._manifest()
        try:
            return self._resolve(manifest)
        except IntegrityError:
            # Another driver may have finished meanwhile and removed what its generation replaces.
            newer = self._manifest()
            if newer == manifest:
                raise
            self._latest = self._folder.plan()
            return self._resolve(newer)

    def _resolve(self, manifest: Manifest | None) -> Plan:
        folder, latest = self._folder, self._latest
        if latest is None:
            return self._plan(0)
        if latest.config.input != self._config.input and not self._config.accept_input:
            raise PlanError(
                f"{folder.output}: holds the annotation of {latest.config.input}, this job reads "
                f"{self._config.input}: choose another --output, or --set accept_input=true if the collection should "
                "follow the new input"
            )
        if manifest is not None and manifest.generation == latest.generation:
            return self._follow(latest)
        base = folder.plan(manifest.generation) if manifest is not None else None
        again = self._plan(latest.generation, base=base)
        if again.digest == latest.digest:
            return again
        return self._plan(latest.generation + 1, base=base, unfinished=latest)

    def _follow(self, finished: Plan) -> Plan:
        """Return what comes after a finished generation: its own plan if nothing has changed since."""
        existing = self._folder.finished_shards(finished)
        is_complete = len(existing) == len(finished.shards) + len(finished.reused)
        if not is_complete and finished.is_first:
            # Parts were lost since: the same plan again gives the same bytes.
            again = self._plan(finished.generation)
            if again.digest == finished.digest:
                return again
        if is_complete and self._gives_same_rows(finished):
            unchanged = sum(report.annotated + report.unchanged for report in existing.values())
            return finished.model_copy(update={"changes": Changes(unchanged=unchanged), "reasons": ()})
        following = self._plan(finished.generation + 1, base=finished)
        reused = {(rows.shard, rows.generation) for rows in following.reused}
        if following.shards or reused != {(report.shard, report.generation) for report in existing.values()}:
            return following
        return finished.model_copy(
            update={"changes": following.changes, "named": following.named, "reasons": following.reasons}
        )

    def _gives_same_rows(self, finished: Plan) -> bool:
        """Tell whether the input need not even be compared with the rows, because nothing that decides them differs."""
        return (
            self._config.planning.retry is None
            and not self._row_settings.difference(finished.row_settings)
            and finished.corrected == self._corrections_digests()
            and finished.config.deciding_values() == self._config.deciding_values()
            and finished.libraries == libraries_of(finished.libraries)
            and has_same_files(finished, self._config, self.hashes)
        )

    def _plan(self, generation: int, *, base: Plan | None = None, unfinished: Plan | None = None) -> Plan:
        """Plan a generation after a finished one, and after a later one that was interrupted and no longer fits."""
        plans = [plan for plan in (base, unfinished) if plan is not None]
        files = _known_files(base, unfinished, config=self._config)
        existing = self._scan_existing(plans, files=files) if plans else None
        inputs = PlanInputs(
            job=self._job,
            threads=self._threads(),
            generation=generation,
            existing=existing,
            hashes=self.hashes,
            name_documents=self._name_documents,
            corrections=self._corrections,
        )
        reasons = [line for plan in plans for line in self._row_settings.difference(plan.row_settings)]
        if any("" in self._formats(plan).values() for plan in plans):
            reasons.append("texts are extracted with other settings of the reader, or by other releases of libraries")
        plan = make_plan(inputs, reasons=reasons)
        if existing is not None:
            self._check_removed(plan, existing)
        return plan

    def _manifest(self) -> Manifest | None:
        """Read the manifest; a broken one is ignored, since plans and commit records say the same."""
        try:
            return self._folder.manifest()
        except IntegrityError:
            return None

    def _scan_existing(self, plans: Sequence[Plan], *, files: Mapping[str, Source]) -> ExistingOutput:
        """Read what these generations, the earlier first, have committed."""
        reports: dict[ShardRef, CommitRecord] = {}
        current: dict[int, ShardRef] = {}
        parsed: set[ShardRef] = set()
        corrected: dict[ShardRef, Mapping[str, str]] = {}
        other_texts: set[ShardRef] = set()
        formats: dict[ShardRef, Mapping[str, str]] = {}
        for plan in plans:
            finished = self._folder.finished_shards(plan)
            for rows in (rows for shard in plan.shards if shard.index in finished for rows in shard.carries):
                reports.pop(ShardRef(shard=rows.shard, generation=rows.generation), None)
            shards = {shard_ref(report): report for report in finished.values()}
            reports |= shards
            corrected |= dict.fromkeys(shards, plan.corrected)
            formats |= dict.fromkeys(shards, self._formats(plan))
            if plan.config.output.keep_text != self._config.output.keep_text:
                other_texts |= shards.keys()
            if not self._row_settings.difference(plan.row_settings):
                # Of a shard that was rewritten by a run whose plan is lost, only the later state counts.
                current |= {shard.shard: shard for shard in shards}
            if self._row_settings.has_same_parses(plan.row_settings):
                parsed |= shards.keys()
        return scan_existing(
            self._folder,
            list(reports.values()),
            current=reports.keys() & set(current.values()),
            parsed=parsed & reports.keys(),
            files=files,
            other_texts=other_texts,
            corrected=corrected,
            wanted=self._corrections_digests(),
            formats=formats,
            retry=self._config.planning.retry,
        )

    def _formats(self, plan: Plan) -> dict[str, str]:
        """Return the formats of the files of a plan whose texts are extracted; empty where they may be others now.

        Whether attachments are read changes no text of a message.
        """
        now = libraries_of(plan.libraries)
        then, here = (
            {**config.reader.deciding_values(), "attachments": None, "format": None}
            for config in (plan.config, self._config)
        )
        return {
            source.uri: source.format
            if then == here and plan.libraries.get(source.format) == now.get(source.format)
            else ""
            for source in plan.sources
            if is_extracted(source.format)
        }

    def _corrections_digests(self) -> dict[str, str]:
        return {doc_id: corrections_digest(corrections) for doc_id, corrections in self._corrections.items()}

    def _check_removed(self, plan: Plan, existing: ExistingOutput) -> None:
        limit, removed, documents = self._config.limit, plan.changes.removed, len(existing.documents)
        text = f"{removed:,} of the {documents:,} documents in {self._folder.output}"
        if limit is not None and removed:
            raise PlanError(
                f"limit: {text} are not among the first {limit:,} records and would be dropped; choose another --output"
            )
        if removed > self._config.max_removed * documents:
            raise PlanError(
                f"{self._config.input}: {text} are gone; check that the input is complete, or allow it "
                "with --set max_removed=1"
            )

    def _threads(self) -> int:
        """Return the threads of a worker: as configured, else as in the latest plan, else the default of a new one."""
        if self._config.executor.threads is not None:
            return self._config.executor.threads
        if self._latest is not None:
            return self._latest.threads
        if self._config.executor.kind == "ray":
            return threads_of_environment() or 1
        return default_threads()

    def _hash_files(self, states: Mapping[str, FileState]) -> Sequence[str]:
        size = sum(state.size for state in states.values())
        if self._config.executor.kind == "local" or size <= MOST_HASHED_HERE:
            return hash_here(states)
        resolve_auth_mode(os.environ.get("RAY_ADDRESS"))
        # Importing Ray takes seconds.
        from concord.pipeline.executors.ray_cluster import hash_files

        return hash_files(list(states))


def _known_files(base: Plan | None, unfinished: Plan | None, *, config: AnnotateConfig) -> dict[str, Source]:
    """Return the input files of which a finished generation holds every record, and a later one found no other content.

    Args:
        config: of the plan to come. Another limit takes more or fewer records of some file, and with other settings of
            the reader, or by another reader or release of a library, the same file may have other records or texts.
    """
    reader = config.reader.deciding_values()
    readers = [plan.config.reader.deciding_values() for plan in (base, unfinished) if plan is not None]
    if base is None or base.config.limit != config.limit or any(other != reader for other in readers):
        return {}
    later = {source.uri: source.sha256 for source in (unfinished or base).sources}
    return {
        source.uri: source
        for source in base.sources
        if later.get(source.uri) == source.sha256
        and (config.reader.format != "auto" or format_of(source.uri) in (None, source.format))
        and base.libraries.get(source.format) == libraries_of([source.format]).get(source.format)
    }
