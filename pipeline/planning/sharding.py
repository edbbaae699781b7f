"""Cuts the records to annotate into shards, and each shard into pieces of files."""

from collections.abc import Iterable, Iterator, Sequence

from concord.pipeline.plan import Piece, Shard
from concord.pipeline.planning.input_diff import RecordToAnnotate


def cut_shards(items: Iterable[RecordToAnnotate], *, shard_bytes: int, first_index: int = 0) -> tuple[Shard, ...]:
    """Close a shard as soon as its records hold enough bytes; a record is never split.

    Args:
        items: in the order of the input.
    """
    return tuple(
        Shard(
            index=index,
            pieces=tuple(_piece(stretch) for stretch in _stretches(group)),
            parses=tuple(dict.fromkeys(item.parse for item in group if item.parse is not None)),
        )
        for index, group in enumerate(_groups(items, shard_bytes), first_index)
    )


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
    start = 0
    for end in range(1, len(group) + 1):
        last = group[end - 1].record
        if end == len(group) or (group[end].record.file, group[end].record.number) != (last.file, last.number + 1):
            yield group[start:end]
            start = end


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
    )
