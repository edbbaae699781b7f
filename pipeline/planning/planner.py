"""The plan that a job works on: the records of its input that are annotated, cut into shards, and the rows to copy.

A collection is annotated in generations. The first plan covers the whole input; each later one keeps what is current
and covers what is new, changed, or due for another tagger.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, chain, groupby
from typing import NamedTuple

from concord.pipeline.corrections.correction import Correction, corrections_digest, current_corrections, read_log_of
from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.identity import find_differences
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.generations import Generation
from concord.pipeline.output.schema import SCHEMA_VERSION
from concord.pipeline.plan import Changes, Piece, Plan, RowsToCopy, Shard, Source
from concord.pipeline.planning.input_diff import (
    ExistingOutput,
    ExistingShard,
    InputDiff,
    InputRecord,
    InputScan,
    annotate_all,
    diff_input,
    read_existing,
)
from concord.pipeline.planning.inputs import (
    FileHashes,
    Inputs,
    check_text_field,
    check_unchanged,
    find_inputs,
)
from concord.pipeline.readers.read_file import libraries_of
from concord.pipeline.resources import default_threads, threads_of_environment
from concord.pipeline.storage.files import is_url

SMALL = 0.25
"""Shards with less text, in characters, than this share of planning.shard_bytes are small."""
MERGED_AT = 8
"""A run that changes a collection merges its small shards when there are so many."""


class NextGeneration(NamedTuple):
    """The shards of a plan, and what goes with them; see the fields of ``Plan``."""

    reused: tuple[RowsToCopy, ...]
    shards: tuple[Shard, ...]
    changes: Changes


class Planner:
    """Finds out what a job has to do in its output folder; writes nothing.

    A collection is annotated in generations. The first plan covers the whole input; each later one keeps what is
    current and covers what is new, changed, or due for another tagger. Time and memory of planning are linear in the
    input. Memory is about a hundred bytes a record for the ids, and some hundred more where there is an existing
    collection to compare with.

    Attributes:
        hashes: of the input's files; the caller saves them for the next run.
        named: the documents that differ, by field of Changes: their ids, ``old -> new`` for renamed ones.
    """

    def __init__(self, job: ResolvedJob, *, name_documents: bool = False) -> None:
        """Read the latest plan of the output folder; documents that differ are named only with ``name_documents``."""
        self._job, self._config, self._folder = job, job.config, job.folder
        self._latest = job.folder.plan() if job.folder.latest_generation() is not None else None
        self._current: Generation | None = None
        with suppress(IntegrityError):  # where it is broken, plans and commit records say the same
            self._current = job.folder.generations.current()
        if self._current is not None and (self._latest is None or self._latest.generation < self._current.number):
            # Its plan is gone from the others.
            self._latest = self._current.plan()
        self._name_documents = name_documents
        self.named: defaultdict[str, list[str]] = defaultdict(list)
        self._corrections = current_corrections(read_log_of(job.folder.output))
        self._corrections_digests = {doc_id: corrections_digest(one) for doc_id, one in self._corrections.items()}
        self.hashes = FileHashes(job.folder.metadata / "files.json", use_cache=not job.config.planning.rehash)

    def resolve(self) -> Plan:
        """Return the plan to work on.

        Raises:
            PlanError: when the folder holds the annotation of another input, or too much of the input is gone.
            InputError: when there is nothing to read, or when none of the first records has a text.
            StoreError, ConfigError, IntegrityError: when input or existing output cannot be read.
        """
        latest, current = self._latest, self._current
        if latest is None:
            return self._plan(0)
        if latest.config.input != self._config.input and not self._config.accept_input:
            raise PlanError(
                f"{self._folder.output}: holds the annotation of {latest.config.input}, this job reads "
                f"{self._config.input}: choose another --output, or --set accept_input=true if the collection should "
                "follow the new input"
            )
        if current is not None and current.number == latest.generation:
            return self._follow(latest)
        base = current.plan() if current is not None else None
        again = self._plan(latest.generation, base=base)
        if again.digest == latest.digest:
            return again
        return self._plan(latest.generation + 1, base=base, unfinished=latest)

    def _follow(self, finished: Plan) -> Plan:
        """Return what comes after a finished generation: its own plan if nothing has changed since."""
        existing = self._folder.finished_shards(finished)
        is_complete = len(existing) == len(finished.shards) + len(finished.reused)
        if is_complete and self._gives_same_rows(finished):
            unchanged = sum(report.annotated + report.unchanged for report in existing.values())
            return finished.model_copy(update={"changes": Changes(unchanged=unchanged), "reasons": ()})
        following = self._plan(finished.generation + 1, base=finished)
        reused = {(rows.shard, rows.generation) for rows in following.reused}
        if following.shards or reused != {(report.shard, report.generation) for report in existing.values()}:
            return following
        return finished.model_copy(update={"changes": following.changes, "reasons": following.reasons})

    def _gives_same_rows(self, finished: Plan) -> bool:
        """Tell whether the input need not even be compared with the rows, because nothing that decides them differs."""
        files = self._inputs.files
        if finished.read == self._config.limit:
            # Files after the last record are not read.
            files = files[: len(finished.sources)]
        return (
            self._config.planning.retry is None
            and not find_differences(finished.row_settings, self._job.row_settings)
            and finished.corrected == self._corrections_digests
            and finished.config.deciding_values() == self._config.deciding_values()
            and finished.libraries == libraries_of(finished.libraries)
            and [(source.uri, source.format) for source in finished.sources]
            == [(file.path, file.format) for file in files]
            and [source.sha256 for source in finished.sources] == [*self.hashes.hash(files).values()]
        )

    @cached_property
    def _inputs(self) -> Inputs:
        config = self._config
        return find_inputs(config.input, output=config.output.path, format=config.reader.format)

    def _plan(self, generation: int, *, base: Plan | None = None, unfinished: Plan | None = None) -> Plan:
        """Plan a generation after a finished one, and after a later one that was interrupted and no longer fits."""
        config, files, scan = self._config, self._inputs.files, InputScan(self._config.reader)
        existing = read_existing(self._job, base, unfinished, corrections=self._corrections_digests)
        if not existing.files or not any(shard.is_current for shard in existing.shards):
            # Existing documents that are current and were read in the same way show that the field is right.
            check_text_field(files, config.reader)
        if base is None and unfinished is None:
            diff = InputDiff(to_annotate=annotate_all(scan.read(files, limit=config.limit)))
        else:
            diff = self._compare(existing, scan)
        work = self._next_generation(existing, diff)
        # A limit may end before a file.
        files = [file for file in files if file.path in scan.found]
        digests = self.hashes.hash(files)
        check_unchanged(config.input, files)
        self._check_removed(work.changes, existing)
        sources = tuple(
            Source(uri=file.path, format=file.format, sha256=digests[file.path], records=records, is_lost=is_lost)
            for file in files
            for records, is_lost in [scan.found[file.path]]
        )
        to_read = {piece.uri for shard in work.shards for piece in shard.pieces if is_url(piece.uri)}
        return Plan(
            schema_version=SCHEMA_VERSION,
            generation=generation,
            config=config,
            parser=self._job.parser,
            tagger=self._job.tagger.identity,
            tagger_folder=str(self._job.tagger.folder),
            threads=self._threads(),
            sources=sources,
            libraries=libraries_of(source.format for source in sources),
            reasons=tuple(existing.reasons) if work.changes.again else (),
            corrected=self._corrections_digests,
            read=sum(source.records for source in sources),
            ignored=self._inputs.ignored,
            etags={
                file.path: str(file.state.changed)
                for file in files
                if file.path in to_read and file.state.changed is not None
            },
            **work._asdict(),
        )

    def _compare(self, existing: ExistingOutput, scan: InputScan) -> InputDiff:
        """Compare the input with existing output.

        Files that are reused come first: of two records with one id, the existing one keeps it.
        """
        files = self._inputs.files
        digests = self.hashes.hash(files)
        unchanged = existing.unchanged_files(digests)
        reused = existing.reusable_files(unchanged)
        scan.found |= {path: (existing.files[path].records, existing.files[path].is_lost) for path in reused}
        return diff_input(
            existing,
            scan.read([file for file in files if file.path not in reused], limit=self._config.limit, digests=digests),
            reused_files=reused,
            unchanged_files=unchanged,
        )

    def _next_generation(self, existing: ExistingOutput, diff: InputDiff) -> NextGeneration:
        """Turn the differences of an input into shards.

        Existing shards keep their numbers, also where they are rewritten; new ones come after all of them.
        """
        shard_bytes = self._config.planning.shard_bytes
        counts: Counter[str] = Counter()
        named = self.named = defaultdict(list)

        def noted() -> Iterator[InputRecord]:
            """Yield what is annotated; the records of a first plan are not kept."""
            for record in diff.to_annotate:
                counts[record.reason] += 1
                counts["parsed"] += record.parse is not None
                if self._name_documents:
                    named[record.reason].append(record.shown)
                yield record

        current = {shard.ref.shard: shard for shard in existing.shards if shard.is_current}
        first_index = 1 + max(current, default=-1)
        shards = list(_cut_shards(noted(), self._corrections, shard_bytes=shard_bytes, first_index=first_index))
        rows_to_copy = list(_rows_to_copy(current, existing, diff))
        untouched = {rows.shard for rows in rows_to_copy if rows.is_whole and not current[rows.shard].other_texts}
        # A run that finds nothing to do rewrites nothing, not even small shards.
        is_changed = bool(shards) or len(untouched) < len(existing.shards)
        groups = _small_shards(rows_to_copy, current, shard_bytes) if is_changed else []
        merged = {rows.shard for group in groups for rows in group}
        groups += [[rows] for rows in rows_to_copy if rows.shard not in merged | untouched]
        shards += [Shard(index=group[0].shard, carries=tuple(group)) for group in groups]
        renamed = list(chain.from_iterable(diff.renamed.values()))
        if self._name_documents:
            ids = ((document.was, document.now.doc_id) for document in renamed)
            named["moved"] += [new if old == new else f"{old} -> {new}" for old, new in ids]
            named["removed"] += sorted(diff.removed)
        reused = map(existing.documents.__getitem__, diff.reused)
        return NextGeneration(
            reused=tuple(rows for rows in rows_to_copy if rows.shard in untouched - merged),
            shards=tuple(sorted(shards, key=lambda shard: shard.index)),
            changes=Changes(
                **counts,
                moved=len(renamed),
                removed=len(diff.removed),
                unchanged=len(diff.reused),
                compacted=len(merged),
                texts=sum(not document.is_extracted and document.shard.other_texts for document in reused),
            ),
        )

    def _check_removed(self, changes: Changes, existing: ExistingOutput) -> None:
        limit, removed, documents = self._config.limit, changes.removed, len(existing.documents)
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


def _rows_to_copy(
    current: Mapping[int, ExistingShard], existing: ExistingOutput, diff: InputDiff
) -> Iterator[RowsToCopy]:
    """Yield what is reused of each current shard, unless it is nothing."""
    places: defaultdict[ExistingShard, list[tuple[str, int]]] = defaultdict(list)
    for dead_letter in existing.dead_letters:
        places[dead_letter.shard].append(dead_letter.place)
    for _, shard in sorted(current.items()):
        without = [
            doc_id for doc_id in shard.ids if doc_id not in diff.reused or existing.documents[doc_id].shard is not shard
        ]
        without_letters = [place for place in places[shard] if place not in diff.kept]
        records = len(shard.ids) - len(without) + len(places[shard]) - len(without_letters)
        if records:
            yield RowsToCopy(
                shard=shard.ref.shard,
                generation=shard.ref.generation,
                records=records,
                without=tuple(sorted(without)),
                without_dead_letters=tuple(sorted(without_letters)),
                renames=tuple(diff.renamed.get(shard, ())),
            )


def _small_shards(
    rows_to_copy: Sequence[RowsToCopy], current: Mapping[int, ExistingShard], shard_bytes: int
) -> list[list[RowsToCopy]]:
    """Return the groups of small shards that are merged, each into one of about the usual size."""
    small = [rows for rows in rows_to_copy if current[rows.shard].characters < SMALL * shard_bytes]
    if len(small) < MERGED_AT:
        return []
    ends = accumulate(max(current[rows.shard].characters, 1) for rows in small)
    by_size = groupby(zip(small, ends, strict=True), lambda pair: pair[1] // shard_bytes)
    groups = ([rows for rows, _ in group] for _, group in by_size)
    return [group for group in groups if len(group) > 1]


def _cut_shards(
    records: Iterable[InputRecord],
    corrections: Mapping[str, Sequence[Correction]],
    *,
    shard_bytes: int,
    first_index: int,
) -> Iterator[Shard]:
    """Cut records, in the order of the input, into shards; each is closed as soon as it holds enough bytes."""
    for index, group in enumerate(_groups(records, shard_bytes), first_index):
        ids = (record.doc_id or "" for record in group if not record.is_duplicate) if corrections else ()
        # Runs of records that follow one another in one file.
        by_distance = groupby(enumerate(group), lambda pair: (pair[1].file, pair[1].number - pair[0]))
        yield Shard(
            index=index,
            pieces=tuple(_piece([record for _, record in stretch]) for _, stretch in by_distance),
            parses=tuple(dict.fromkeys(record.parse for record in group if record.parse is not None)),
            corrections=tuple(correction for doc_id in ids for correction in corrections.get(doc_id, ())),
        )


def _groups(records: Iterable[InputRecord], shard_bytes: int) -> Iterator[list[InputRecord]]:
    group: list[InputRecord] = []
    size = 0
    for record in records:
        group.append(record)
        # Empty records count too, or a million empty files would be one shard.
        size += max(record.scanned.size, 1)
        if size >= shard_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def _piece(stretch: Sequence[InputRecord]) -> Piece:
    first, last = stretch[0], stretch[-1]
    return Piece(
        uri=first.file.path,
        format=first.file.format,
        start=first.scanned.position,
        end=last.scanned.end,
        records=len(stretch),
        size=sum(record.scanned.size for record in stretch),
        duplicates=tuple(record.scanned.position for record in stretch if record.is_duplicate),
        retries=tuple((record.scanned.position, record.attempts) for record in stretch if record.attempts),
        name=first.file.name,
        fault=last.scanned.fault,
    )
