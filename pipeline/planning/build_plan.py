"""The shards of a plan: the records of its input that are to be annotated, cut, and the rows that they copy.

A collection is annotated in generations. The first plan covers the whole input; each later one keeps what is current
and covers what is new, changed, or due for another tagger.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby, islice
from typing import NamedTuple

from concord.pipeline.config import ReaderConfig
from concord.pipeline.corrections.correction import Correction
from concord.pipeline.documents import Document
from concord.pipeline.plan import Changes, Piece, RowsToCopy, Shard
from concord.pipeline.planning.input_diff import (
    ExistingOutput,
    ExistingShard,
    InputDiff,
    InputRecord,
    fingerprint,
    source_fingerprint,
)
from concord.pipeline.planning.inputs import InputFile
from concord.pipeline.readers.read_file import content_sha256, is_extracted, read_records, scan_file

SMALL = 0.25
"""Shards with less text, in characters, than this share of planning.shard_bytes are small."""
MERGED_AT = 8
"""A run that changes a collection merges its small shards when there are so many."""


class InputScan:
    """Goes through the records of files.

    Attributes:
        found: how many records a file has, and whether the last of them stands for the rest of it, by its path.
    """

    def __init__(self, config: ReaderConfig) -> None:
        self.found: dict[str, tuple[int, bool]] = {}
        self._config = config

    def read(
        self, files: Iterable[InputFile], *, limit: int | None, digests: Mapping[str, str] | None = None
    ) -> Iterator[InputRecord]:
        """Read the records of files, up to a limit.

        Args:
            digests: SHA-256 in hex of the files, by path; without, texts are not read, since none is compared.
        """
        for file in files:
            if limit == 0:
                return
            records = self._scan(file, limit) if digests is None else self._read(file, limit, digests[file.path])
            count, is_lost = 0, False
            for record in records:
                count, is_lost = count + 1, record.scanned.loses_file
                yield record
            self.found[file.path] = count, is_lost
            limit = None if limit is None else limit - count

    def _scan(self, file: InputFile, limit: int | None) -> Iterator[InputRecord]:
        scanned = scan_file(file.path, format=file.format, name=file.name, config=self._config, fault=file.fault)
        for number, record in enumerate(islice(scanned, limit)):
            yield InputRecord(file, number, record, record.doc_id, None if record.doc_id is None else b"")

    def _read(self, file: InputFile, limit: int | None, sha256: str) -> Iterator[InputRecord]:
        if is_extracted(file.format):
            for found in self._scan(file, limit):
                if found.doc_id is not None:
                    # None for what cannot be unpacked.
                    digest = found.scanned.source_sha256 or content_sha256(file.path, sha256, self._config)
                    content = source_fingerprint(digest, file.format) if digest else None
                    found = found._replace(content=content)
                yield found
            return
        records = read_records(
            file.path, format=file.format, name=file.name, config=self._config, limit=limit, fault=file.fault
        )
        for number, (record, outcome) in enumerate(records):
            if isinstance(outcome, Document):
                yield InputRecord(file, number, record, outcome.doc_id, fingerprint(outcome.text), outcome)
            else:
                yield InputRecord(file, number, record, outcome.doc_id)


class NextGeneration(NamedTuple):
    """The shards of a plan, and what goes with them; see the fields of ``Plan``."""

    reused: tuple[RowsToCopy, ...]
    shards: tuple[Shard, ...]
    changes: Changes
    corrected: dict[str, str]
    named: dict[str, tuple[str, ...]]


Corrections = Mapping[str, Sequence[Correction]]
"""The corrections that count, by document, in the order of the log."""


def next_generation(
    existing: ExistingOutput, diff: InputDiff, corrections: Corrections, *, shard_bytes: int, name_documents: bool
) -> NextGeneration:
    """Turn the differences of an input into shards.

    Existing shards keep their numbers, also where they are rewritten; new ones come after all of them.
    """
    counts: Counter[str] = Counter()
    names: defaultdict[str, list[str]] = defaultdict(list)
    corrected = _reused_corrections(existing, diff)

    def noted() -> Iterator[InputRecord]:
        """Yield what is annotated; the records of a first plan are not kept."""
        for record in diff.to_annotate:
            counts[record.reason] += 1
            counts["parsed"] += record.parse is not None
            doc_id = record.doc_id or ""
            if doc_id in existing.corrections and not record.is_duplicate:
                corrected[doc_id] = existing.corrections[doc_id]
            if name_documents:
                names[record.reason].append(record.shown)
            yield record

    current = {shard.ref.shard: shard for shard in existing.shards if shard.is_current}
    first_index = 1 + max(current, default=-1)
    shards = list(_cut_shards(noted(), corrections, shard_bytes=shard_bytes, first_index=first_index))
    rows_to_copy = list(_rows_to_copy(current, existing, diff))
    untouched = {rows.shard for rows in rows_to_copy if rows.is_whole and not current[rows.shard].other_texts}
    # A run that finds nothing to do rewrites nothing, not even small shards.
    is_changed = bool(shards) or len(untouched) < len(existing.shards)
    groups = _small_shards(rows_to_copy, current, shard_bytes) if is_changed else []
    merged = {rows.shard for group in groups for rows in group}
    groups += [[rows] for rows in rows_to_copy if rows.shard not in merged | untouched]
    shards += [Shard(index=group[0].shard, carries=tuple(group)) for group in groups]
    renamed = list(chain.from_iterable(diff.renamed.values()))
    if name_documents:
        ids = ((document.was, document.now.doc_id) for document in renamed)
        names["moved"] = [new if old == new else f"{old} -> {new}" for old, new in ids]
        names["removed"] = sorted(diff.removed)
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
        corrected=corrected,
        named={kind: tuple(documents) for kind, documents in names.items() if documents},
    )


def _reused_corrections(existing: ExistingOutput, diff: InputDiff) -> dict[str, str]:
    """Return the digests of the corrections in the rows that are reused, by the id that they then have."""
    names = {document.was: document.now.doc_id for renamed in diff.renamed.values() for document in renamed}
    digests = ((doc_id, existing.documents[doc_id].corrections) for doc_id in diff.reused)
    return {names.get(doc_id, doc_id): digest for doc_id, digest in digests if digest is not None}


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
    records: Iterable[InputRecord], corrections: Corrections, *, shard_bytes: int, first_index: int
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
