"""The plan of a run: its input cut into shards, and everything else that decides the output.

A collection is annotated in generations. The first plan covers the whole input; each later one keeps what is current
and covers what is new, changed, or due for another tagger.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from pathlib import Path
from typing import NamedTuple

from concord.pipeline.config import AnnotateConfig, ReaderConfig
from concord.pipeline.corrections.correction import Correction, corrections_digest, group_by_document
from concord.pipeline.documents import Document
from concord.pipeline.errors import InputError
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.schema import SCHEMA_VERSION
from concord.pipeline.plan import Changes, Piece, Plan, RowsToCopy, Shard, ShardRef, Source
from concord.pipeline.planning.input_diff import (
    Content,
    ExistingOutput,
    InputDiff,
    InputRecord,
    RecordToAnnotate,
    diff_input,
    fingerprint,
)
from concord.pipeline.planning.inputs import FileHashes, InputFile, check_text_field, find_inputs, states_behind_url
from concord.pipeline.readers.read_file import content_sha256, is_extracted, libraries_of, read_records, scan_file
from concord.pipeline.readers.records import ScannedRecord
from concord.pipeline.storage.files import FileState, file_state, is_url

SMALL = 0.25
"""Shards with less text, in characters, than this share of planning.shard_bytes are small."""
MERGED_AT = 8
"""A run that changes a collection merges its small shards when there are so many."""


class NextGeneration(NamedTuple):
    """The shards of a plan: committed ones that stay untouched, and those to be worked on."""

    reused: tuple[RowsToCopy, ...]
    shards: tuple[Shard, ...]
    changes: Changes
    corrected: Mapping[str, str]
    """See ``Plan.corrected``."""


Corrections = Mapping[str, Sequence[Correction]]
"""The corrections that count, by document, in the order of the log."""


def next_generation(
    existing: ExistingOutput, diff: InputDiff, corrections: Corrections, *, shard_bytes: int
) -> NextGeneration:
    """Turn the differences of an input into shards.

    Existing shards keep their numbers, also where they are rewritten; new ones come after all of them.
    """
    rows_to_copy = list(_rows_to_copy(existing, diff))
    first_index = 1 + max((shard.shard for shard in existing.current), default=-1)
    shards = list(
        cut_shards(diff.to_annotate, shard_bytes=shard_bytes, first_index=first_index, corrections=corrections)
    )
    corrected = _reused_corrections(existing, diff) | annotated_corrections(shards)
    untouched = {
        rows.shard
        for rows in rows_to_copy
        if rows.is_whole and ShardRef(shard=rows.shard, generation=rows.generation) not in existing.other_texts
    }
    is_all_reused = len(untouched) == len(existing.shards)
    # A run that finds nothing to do rewrites nothing, not even small shards.
    groups = _small_shards(rows_to_copy, existing, shard_bytes) if shards or not is_all_reused else []
    merged = {rows.shard for group in groups for rows in group}
    groups += [[rows] for rows in rows_to_copy if rows.shard not in merged | untouched]
    shards += [Shard(index=group[0].shard, carries=tuple(group)) for group in groups]
    reasons: Counter[str] = Counter(item.reason for item in diff.to_annotate)
    return NextGeneration(
        reused=tuple(rows for rows in rows_to_copy if rows.shard in untouched - merged),
        shards=tuple(sorted(shards, key=lambda shard: shard.index)),
        changes=Changes(
            **reasons,
            moved=sum(map(len, diff.renamed.values())),
            removed=len(diff.removed),
            parsed=sum(item.parse is not None for item in diff.to_annotate),
            unchanged=len(diff.reused),
            compacted=len(merged),
            texts=sum(
                not document.is_extracted and document.shard in existing.other_texts
                for document in map(existing.documents.__getitem__, diff.reused)
            ),
        ),
        corrected=corrected,
    )


def cut_shards(
    items: Iterable[RecordToAnnotate], *, shard_bytes: int, corrections: Corrections, first_index: int = 0
) -> tuple[Shard, ...]:
    """Cut records, in the order of the input, into shards; each is closed as soon as it holds enough bytes."""
    return tuple(
        Shard(
            index=index,
            pieces=tuple(_piece(stretch) for stretch in _stretches(group)),
            parses=tuple(dict.fromkeys(item.parse for item in group if item.parse is not None)),
            corrections=_corrections_of(group, corrections) if corrections else (),
        )
        for index, group in enumerate(_groups(items, shard_bytes), first_index)
    )


def annotated_corrections(shards: Iterable[Shard]) -> dict[str, str]:
    """Return the digest of the corrections of each document that shards annotate, by id."""
    by_document = group_by_document(correction for shard in shards for correction in shard.corrections)
    return {doc_id: corrections_digest(corrections) for doc_id, corrections in by_document.items()}


def _corrections_of(group: Sequence[RecordToAnnotate], corrections: Corrections) -> tuple[Correction, ...]:
    ids = (item.record.doc_id or "" for item in group if not item.is_duplicate)
    return tuple(correction for doc_id in ids for correction in corrections.get(doc_id, ()))


def _reused_corrections(existing: ExistingOutput, diff: InputDiff) -> dict[str, str]:
    """Return the digests of the corrections in the rows that are reused, by the id that they then have."""
    if not existing.corrected:
        return {}
    names = {document.was: document.doc_id for moved in diff.renamed.values() for document in moved}
    reused = existing.corrected.keys() & set(diff.reused)
    return {names.get(doc_id, doc_id): existing.corrected[doc_id] for doc_id in sorted(reused)}


def _rows_to_copy(existing: ExistingOutput, diff: InputDiff) -> Iterator[RowsToCopy]:
    """Yield what is reused of each current shard, unless it is nothing."""
    ids: defaultdict[ShardRef, list[str]] = defaultdict(list)
    for doc_id, document in existing.documents.items():
        ids[document.shard].append(doc_id)
    places: defaultdict[ShardRef, list[tuple[str, int]]] = defaultdict(list)
    for dead_letter in existing.dead_letters:
        places[dead_letter.shard].append(dead_letter.place)
    for shard in sorted(existing.current, key=lambda shard: (shard.shard, shard.generation)):
        dropped = [doc_id for doc_id in ids[shard] if doc_id not in diff.reused]
        dropped_letters = [place for place in places[shard] if place not in diff.kept]
        records = len(ids[shard]) - len(dropped) + len(places[shard]) - len(dropped_letters)
        if records:
            yield RowsToCopy(
                shard=shard.shard,
                generation=shard.generation,
                records=records,
                without=tuple(sorted([*dropped, *existing.superseded.get(shard, ())])),
                without_dead_letters=tuple(sorted(dropped_letters)),
                renames=tuple(diff.renamed.get(shard, ())),
            )


def _small_shards(
    rows_to_copy: Sequence[RowsToCopy], existing: ExistingOutput, shard_bytes: int
) -> list[list[RowsToCopy]]:
    """Return the groups of small shards that are merged, each into one."""
    sizes = {
        rows.shard: existing.characters[ShardRef(shard=rows.shard, generation=rows.generation)] for rows in rows_to_copy
    }
    small = [rows for rows in rows_to_copy if sizes[rows.shard] < SMALL * shard_bytes]
    if len(small) < MERGED_AT:
        return []
    groups: list[list[RowsToCopy]] = []
    room = 0
    for rows in small:
        size = max(sizes[rows.shard], 1)
        if room < size:
            groups.append([])
            room = shard_bytes
        groups[-1].append(rows)
        room -= size
    return [group for group in groups if len(group) > 1]


def _groups(items: Iterable[RecordToAnnotate], shard_bytes: int) -> Iterator[list[RecordToAnnotate]]:
    group: list[RecordToAnnotate] = []
    size = 0
    for item in items:
        group.append(item)
        # Empty records count too, or a million empty files would be one shard.
        size += max(item.record.scanned.size, 1)
        if size >= shard_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def _stretches(group: Sequence[RecordToAnnotate]) -> Iterator[Sequence[RecordToAnnotate]]:
    """Yield the runs of records that follow one another in one file."""
    by_distance = groupby(enumerate(group), lambda pair: (pair[1].record.file, pair[1].record.number - pair[0]))
    yield from ([item for _, item in stretch] for _, stretch in by_distance)


def _piece(stretch: Sequence[RecordToAnnotate]) -> Piece:
    first, last = stretch[0].record, stretch[-1].record
    return Piece(
        uri=first.file.path,
        format=first.file.format,
        start=first.scanned.position,
        end=last.scanned.end,
        records=len(stretch),
        duplicates=tuple(item.record.scanned.position for item in stretch if item.is_duplicate),
        retries=tuple((item.record.scanned.position, item.attempts) for item in stretch if item.attempts),
        name=first.file.name,
        fault=last.scanned.fault,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanInputs:
    """What a plan is made of, besides the files of the input.

    Attributes:
        threads: of a worker.
        existing: what the new generation builds on; None for the first one.
        corrections: those that the rows should have.
        name_documents: fill ``Plan.named``.
    """

    job: ResolvedJob
    threads: int
    generation: int = 0
    existing: ExistingOutput | None = None
    hashes: FileHashes = field(default_factory=FileHashes)
    corrections: Corrections = field(default_factory=dict)
    name_documents: bool = False


class _Work(NamedTuple):
    """What a plan says of the input, and what is to be done."""

    sources: Sequence[Source]
    next: NextGeneration
    named: Mapping[str, Sequence[str]]


def make_plan(inputs: PlanInputs, *, reasons: Sequence[str] = ()) -> Plan:
    """Scan the input, in order, and cut what is to be done into shards.

    Time and memory are linear in the input. Memory is about a hundred bytes a record for the ids, and some hundred more
    where there is an existing collection to compare with.

    Args:
        reasons: why existing rows are not current, in plain words.

    Raises:
        InputError: when there is nothing to read, or when none of the first records has a text.
        StoreError: when the store of a URL cannot be reached.
    """
    config, existing = inputs.job.config, inputs.existing
    files, ignored = find_inputs(config.input, output=config.output.path, format=config.reader.format)
    if existing is None or not existing.current or not existing.files:
        # Existing documents that are current and were read in the same way show that the field is right.
        check_text_field(files, config.reader)
    work = _plan_all(files, inputs) if existing is None else _plan_changes(files, inputs, existing)
    files = files[: len(work.sources)]
    if is_url(config.input):
        # One more listing covers all files; looking at each would cost a request a file.
        states = states_behind_url(config.input)
        for file in files:
            if states.get(file.path) != file.state:
                raise _changed(file)
    return _freeze(inputs, work, files=files, ignored=ignored, reasons=reasons)


def has_same_files(plan: Plan, config: AnnotateConfig, hashes: FileHashes) -> bool:
    """Return whether the files of an input are those of a plan, with the same content; they are only hashed."""
    files, ignored = find_inputs(config.input, output=config.output.path, format=config.reader.format)
    scan = _InputScan(config.reader)
    scan.look_at(files)
    digests = scan.hash(hashes)
    found = [(file.path, file.format, digests[file.path]) for file in files]
    return ignored == plan.ignored and found == [(file.uri, file.format, file.sha256) for file in plan.sources]


def _freeze(
    inputs: PlanInputs, work: _Work, *, files: Sequence[InputFile], ignored: int, reasons: Sequence[str] = ()
) -> Plan:
    shards, changes = work.next.shards, work.next.changes
    return Plan(
        schema_version=SCHEMA_VERSION,
        generation=inputs.generation,
        config=inputs.job.config,
        parser=inputs.job.parser,
        tagger=inputs.job.tagger.identity,
        tagger_folder=str(inputs.job.tagger.folder),
        threads=inputs.threads,
        sources=tuple(work.sources),
        libraries=libraries_of(source.format for source in work.sources),
        shards=shards,
        reused=work.next.reused,
        corrected=dict(work.next.corrected),
        changes=changes,
        reasons=tuple(reasons) if changes.again else (),
        read=sum(source.records for source in work.sources),
        ignored=ignored,
        named={kind: tuple(ids) for kind, ids in work.named.items()},
        etags=_etags(files, shards),
    )


def _plan_all(files: Sequence[InputFile], inputs: PlanInputs) -> _Work:
    """Plan to annotate every record."""
    config, scan = inputs.job.config, _InputScan(inputs.job.config.reader)
    names: list[str] = []
    taken: set[bytes] = set()

    def records() -> Iterator[RecordToAnnotate]:
        for file, record, number in scan.scan_all(files, limit=config.limit):
            if inputs.name_documents:
                names.append(_name(file, record))
            key = fingerprint(record.doc_id)
            yield RecordToAnnotate(InputRecord(file, number, record, record.doc_id), "new", key in taken)
            # Fingerprints take less memory than ids; that of a record without an id is empty.
            if key:
                taken.add(key)

    shards = cut_shards(records(), shard_bytes=config.planning.shard_bytes, corrections=inputs.corrections)
    sources = scan.sources(files[: len(scan.states)], scan.hash(inputs.hashes))
    changes = Changes(new=sum(scan.counts.values()))
    corrected = annotated_corrections(shards)
    generation = NextGeneration(reused=(), shards=shards, changes=changes, corrected=corrected)
    return _Work(sources, generation, {"new": names} if names else {})


def _plan_changes(files: Sequence[InputFile], inputs: PlanInputs, existing: ExistingOutput) -> _Work:
    """Plan to annotate the records that are not current.

    Files that are reused come first: of two records with one id, the existing one keeps it.
    """
    config = inputs.job.config
    scan = _InputScan(config.reader)
    scan.look_at(files)
    digests = scan.hash(inputs.hashes)
    reusable = existing.reusable_files(digests)
    reused = [path for path in scan.states if path in reusable]
    if config.limit is not None and not list(existing.files) == reused == list(scan.states)[: len(reused)]:
        # How many records a limit leaves to a file depends on all files before it.
        reused = []
    scan.counts.update((path, existing.files[path].records) for path in reused)
    room = None if config.limit is None else config.limit - sum(scan.counts.values())
    to_read = [file for file in files if file.path not in scan.counts]
    # A limit may end before a dead letter.
    complete = existing.complete_files(digests) if config.limit is None else set()
    records = scan.read_all(to_read, limit=room)
    diff = diff_input(existing, records, reused_files=set(reused), complete_files=complete)
    generation = next_generation(existing, diff, inputs.corrections, shard_bytes=config.planning.shard_bytes)
    known = {path: existing.files[path] for path in reused}
    sources = [known.get(source.uri, source) for source in scan.sources(files, digests)]
    return _Work(sources, generation, _names(diff) if inputs.name_documents else {})


class _InputScan:
    """Goes through the records of files, and keeps what it has seen of each file.

    Attributes:
        states: of files, by path, before they were read.
        counts: records of files, by path.
        lost: files that cannot be read, or not to their end.
        unreadable: files that cannot be opened.
    """

    def __init__(self, config: ReaderConfig) -> None:
        self.states: dict[str, FileState] = {}
        self.counts: dict[str, int] = {}
        self.lost: set[str] = set()
        self.unreadable: set[str] = set()
        self._config = config
        self._digests: dict[str, str] = {}

    def look_at(self, files: Iterable[InputFile]) -> None:
        """Note the states of files; of one that cannot be opened the size alone, if it has one."""
        for file in files:
            if file.fault is None:
                self.states[file.path] = file.state or file_state(file.path)
            else:
                self.unreadable.add(file.path)
                size = Path(file.path).stat().st_size if os.path.isfile(file.path) else 0  # noqa: PTH113
                self.states[file.path] = FileState(size, None)

    def hash(self, hashes: FileHashes) -> dict[str, str]:
        """Return the SHA-256, in hex, of what was looked at, by path; empty for a file that cannot be opened."""
        readable = {path: state for path, state in self.states.items() if path not in self.unreadable}
        self._digests = dict.fromkeys(self.unreadable, "") | hashes.hash(readable)
        return self._digests

    def scan_all(
        self, files: Iterable[InputFile], *, limit: int | None
    ) -> Iterator[tuple[InputFile, ScannedRecord, int]]:
        """Find the records of files, with their numbers in the file, and note the files' states, up to a limit."""
        for file in files:
            if limit == 0:
                return
            self.look_at([file])
            yield from self._scan(file, most=limit)
            limit = _less(limit, self.counts[file.path])

    def read_all(self, files: Iterable[InputFile], *, limit: int | None) -> Iterator[InputRecord]:
        """Read the records of files, up to a limit."""
        for file in files:
            yield from self.read(file, most=limit)
            limit = _less(limit, self.counts[file.path])

    def read(self, file: InputFile, *, most: int | None) -> Iterator[InputRecord]:
        """Count the records of a file, up to ``most``, and read those whose texts are compared; after ``hash``."""
        if is_extracted(file.format):
            for _, record, number in self._scan(file, most=most):
                yield InputRecord(file, number, record, record.doc_id, self._source_content(file, record))
            return
        self.counts[file.path] = 0
        records = read_records(
            file.path, format=file.format, name=file.name, config=self._config, limit=most, fault=file.fault
        )
        for number, (record, outcome) in enumerate(records):
            self._count(file, record, number)
            if isinstance(outcome, Document):
                described = outcome.meta, outcome.meta_nulls, outcome.encoding, outcome.encoding_confidence
                yield InputRecord(file, number, record, outcome.doc_id, Content(fingerprint(outcome.text)), *described)
            else:
                yield InputRecord(file, number, record, outcome.doc_id)

    def _scan(self, file: InputFile, *, most: int | None) -> Iterator[tuple[InputFile, ScannedRecord, int]]:
        self.counts[file.path] = 0
        scanned = scan_file(file.path, format=file.format, name=file.name, config=self._config, fault=file.fault)
        for number, record in enumerate(islice(scanned, most)):
            self._count(file, record, number)
            yield file, record, number

    def _source_content(self, file: InputFile, record: ScannedRecord) -> Content | None:
        """Return the digest of the bytes that a text is extracted from; None for a record that cannot be read."""
        if record.doc_id is None:
            return None
        digest = record.source_sha256 or content_sha256(file.path, self._digests[file.path], self._config)
        return Content.of(digest, file.format) if digest else None

    def _count(self, file: InputFile, record: ScannedRecord, number: int) -> None:
        self.counts[file.path] = number + 1
        if record.loses_file:
            self.lost.add(file.path)

    def sources(self, files: Iterable[InputFile], digests: Mapping[str, str]) -> list[Source]:
        """Return the files as the plan names them; InputError for one that has changed since ``look_at``."""
        return [self._source(file, digests[file.path]) for file in files]

    def _source(self, file: InputFile, digest: str) -> Source:
        state = self.states[file.path]
        if file.state is None and file.fault is None and file_state(file.path) != state:
            raise _changed(file)
        return Source(
            uri=file.path,
            format=file.format,
            size=state.size,
            sha256=digest,
            records=self.counts[file.path],
            is_lost=file.path in self.lost,
        )


def _less(limit: int | None, count: int) -> int | None:
    return None if limit is None else limit - count


def _names(diff: InputDiff) -> dict[str, list[str]]:
    """Return the documents that differ, as in ``Plan.named``."""
    named: defaultdict[str, list[str]] = defaultdict(list)
    for item in diff.to_annotate:
        named[item.reason].append(_name(item.record.file, item.record.scanned))
    for document in chain.from_iterable(diff.renamed.values()):
        is_same = document.was == document.doc_id
        named["moved"].append(document.doc_id if is_same else f"{document.was} -> {document.doc_id}")
    return {**named, "removed": sorted(diff.removed)}


def _name(file: InputFile, record: ScannedRecord) -> str:
    """Return the id of a record, or its place if it cannot be read."""
    return f"{file.name}:{record.position}" if record.doc_id is None else record.doc_id


def _changed(file: InputFile) -> InputError:
    return InputError(f"{file.path}: changed while it was being planned; run again when it is complete")


def _etags(files: Sequence[InputFile], shards: Sequence[Shard]) -> dict[str, str]:
    """Return the etags or times of the files behind URLs that are to be read, by path."""
    to_read = {piece.uri for shard in shards for piece in shard.pieces}
    states = {file.path: file.state for file in files if file.state is not None and file.path in to_read}
    return {path: str(state.changed) for path, state in states.items() if state.changed is not None}
