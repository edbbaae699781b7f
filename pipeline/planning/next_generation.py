"""What the next generation works on: shards to annotate, shards to copy in part, and shards that stay."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from concord.pipeline.config import PlanningConfig
from concord.pipeline.plan import Changes, RowsToCopy, Shard, ShardRef
from concord.pipeline.planning.existing_output import ExistingOutput
from concord.pipeline.planning.input_diff import InputDiff
from concord.pipeline.planning.sharding import cut_shards

SMALL = 0.25
"""Of planning.shard_bytes, in characters: shards with less text are small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NextGeneration:
    """The shards of a plan.

    Attributes:
        reused: committed shards that stay untouched.
        shards: those to be worked on.
    """

    reused: tuple[RowsToCopy, ...]
    shards: tuple[Shard, ...]
    changes: Changes


def next_generation(existing: ExistingOutput, diff: InputDiff, config: PlanningConfig) -> NextGeneration:
    """Turn the differences of an input into shards.

    Existing shards keep their numbers, also where they are rewritten; new ones come after all of them.
    """
    rows_to_copy = list(_rows_to_copy(existing, diff))
    first_index = 1 + max((shard.shard for shard in existing.current), default=-1)
    shards = list(cut_shards(diff.to_annotate, shard_bytes=config.shard_bytes, first_index=first_index))
    is_all_reused = len(rows_to_copy) == len(existing.shards) and all(rows.is_whole for rows in rows_to_copy)
    # A run that finds nothing to do rewrites nothing, not even small shards.
    groups = [] if is_all_reused and not shards else _small_shards(rows_to_copy, existing, config)
    merged = {rows.shard for group in groups for rows in group}
    groups += [[rows] for rows in rows_to_copy if rows.shard not in merged and not rows.is_whole]
    shards += [Shard(index=group[0].shard, carries=tuple(group)) for group in groups]
    return NextGeneration(
        reused=tuple(rows for rows in rows_to_copy if rows.is_whole and rows.shard not in merged),
        shards=tuple(sorted(shards, key=lambda shard: shard.index)),
        changes=_changes(diff, compacted=len(merged)),
    )


def _rows_to_copy(existing: ExistingOutput, diff: InputDiff) -> Iterator[RowsToCopy]:
    """Yield what is reused of each current shard, unless it is nothing."""
    ids: defaultdict[ShardRef, list[str]] = defaultdict(list)
    for doc_id, document in existing.documents.items():
        ids[document.shard].append(doc_id)
    for shard in sorted(existing.current, key=lambda shard: (shard.shard, shard.generation)):
        dropped = [doc_id for doc_id in ids[shard] if doc_id not in diff.reused]
        places = [(letter.source_uri, letter.position) for letter in existing.dead_letters.get(shard, ())]
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
                without_letters=tuple(sorted(dropped_files)),
                retried=tuple(sorted(retried)),
                moves=tuple(diff.renamed.get(shard, ())),
            )


def _small_shards(
    rows_to_copy: Sequence[RowsToCopy], existing: ExistingOutput, config: PlanningConfig
) -> list[list[RowsToCopy]]:
    """Return the groups of small shards that are merged, each into one."""
    sizes = {
        rows.shard: existing.characters[ShardRef(shard=rows.shard, generation=rows.generation)] for rows in rows_to_copy
    }
    small = [rows for rows in rows_to_copy if sizes[rows.shard] < SMALL * config.shard_bytes]
    if config.compact_at is None or len(small) < config.compact_at:
        return []
    groups: list[list[RowsToCopy]] = []
    room = 0
    for rows in small:
        size = max(sizes[rows.shard], 1)
        if room < size:
            groups.append([])
            room = config.shard_bytes
        groups[-1].append(rows)
        room -= size
    return [group for group in groups if len(group) > 1]


def _changes(diff: InputDiff, *, compacted: int) -> Changes:
    counts = Counter(item.reason for item in diff.to_annotate)
    return Changes(
        new=counts["new"],
        retried=counts["retried"],
        changed=counts["changed"],
        moved=sum(map(len, diff.renamed.values())),
        removed=len(diff.removed),
        again=counts["again"],
        parsed=sum(item.parse is not None for item in diff.to_annotate),
        unchanged=len(diff.reused),
        compacted=compacted,
    )
