"""The shards of a generation: those to annotate, those to copy in part, and those that stay."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from concord.pipeline.corrections.correction import Correction, corrections_digest, group_by_document
from concord.pipeline.plan import Changes, Piece, RowsToCopy, Shard, ShardRef
from concord.pipeline.planning.existing_output import ExistingOutput
from concord.pipeline.planning.input_diff import InputDiff, RecordToAnnotate

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
    existing: ExistingOutput, diff: InputDiff, corrections: Corrections, *, shard_bytes: int, merges_small: bool = True
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
    merges_small = merges_small and bool(shards or not is_all_reused)
    groups = _small_shards(rows_to_copy, existing, shard_bytes) if merges_small else []
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
                document.parts is None and document.shard in existing.other_texts
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
    for shard in sorted(existing.current, key=lambda shard: (shard.shard, shard.generation)):
        dropped = [doc_id for doc_id in ids[shard] if doc_id not in diff.reused]
        places = [(dead.source_uri, dead.position) for dead in existing.dead_letters.get(shard, ())]
        dropped_files = {uri for uri, _ in places if uri not in diff.files}
        retried = diff.retried.intersection(places)
        dead_letters = sum(uri not in dropped_files for uri, _ in places) - len(retried)
        records = len(ids[shard]) - len(dropped) + dead_letters
        if records:
            yield RowsToCopy(
                shard=shard.shard,
                generation=shard.generation,
                records=records,
                without=tuple(sorted([*dropped, *existing.superseded.get(shard, ())])),
                without_dead_letters=tuple(sorted(dropped_files)),
                retried=tuple(sorted(retried)),
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
        fault=first.scanned.fault,
    )
