"""Documents and dead letters of two annotated collections, A and B, matched by id, text or record."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.output.collection import Collection
from concord.pipeline.output.schema import ERRORS, SCHEMAS, calibration_of
from concord.workflows.diff.rows import join_rows


class Documents(NamedTuple):
    """Numbers of documents in A and B; ``listed`` has the first ids of each kind that is not the same in both.

    Attributes:
        same_text: those with the same text, under the same id or renamed.
        changed: those with the same id and different texts.
    """

    first: int
    second: int
    same_text: int
    renamed: int
    changed: int
    only_first: int
    only_second: int
    listed: Mapping[str, Sequence[Any]]


class DeadLetters(NamedTuple):
    """Numbers of dead letters in A and B; ``listed`` has the first rows of those ``gained`` and ``lost``.

    Attributes:
        same: those with the same reason in both.
        reasons: numbers in A and B by stage and error.
        gained, lost: those that only B or only A has, or has for a different reason. ``before`` or ``after`` tells what
            their record is on the other side: ``annotated``, ``absent``, or a dead letter for that reason.
    """

    first: int
    second: int
    same: int
    reasons: Sequence[Mapping[str, Any]]
    gained: int
    lost: int
    listed: Mapping[str, Sequence[Mapping[str, Any]]]


class ShardPair(NamedTuple):
    """Ids of the documents of the same text in a shard of A and one of B, side by side; shards by index."""

    first_shard: int
    second_shard: int
    first: pa.Array
    second: pa.Array


def read_documents(collection: Collection) -> tuple[pa.Table, Sequence[str]]:
    """Read id, hash of the text and index of the shard of all documents, and the calibrations that the parts name."""
    parts = _read_shards(collection, "documents", ("doc_id", "text_sha256"))
    shards = np.repeat(np.arange(len(parts)), [part.num_rows for part in parts])
    calibrations = dict.fromkeys(calibration_of(part.schema) for part in parts)
    return _concatenate(parts).append_column("shard", pa.array(shards)), [*filter(None, calibrations)]


def match_documents(first: pa.Table, second: pa.Table, *, listed: int) -> tuple[Documents, Iterator[ShardPair]]:
    """Match documents by id and the rest by text; of equal texts the first matches the first.

    Memory is linear in the number of documents, about a hundred bytes each.

    Returns:
        Numbers and names, and the documents of the same text by the shards that hold them.
    """
    left, right, only_first, only_second = join_rows(first, second, keys=["doc_id"])
    renamed, new_names, only_first, only_second = join_rows(only_first, only_second, keys=["text_sha256"])
    is_same = pc.equal(left["text_sha256"], right["text_sha256"])
    same = (
        pa.concat_tables([by_id.filter(is_same), by_text]).drop_columns("text_sha256")
        for by_id, by_text in ((left, renamed), (right, new_names))
    )
    others = {"changed": left.filter(pc.invert(is_same)), "only_first": only_first, "only_second": only_second}
    ids = {name: table["doc_id"].slice(0, listed).to_pylist() for name, table in others.items()}
    names = (table["doc_id"].slice(0, listed).to_pylist() for table in (renamed, new_names))
    documents = Documents(
        first=first.num_rows,
        second=second.num_rows,
        same_text=len(is_same) - others["changed"].num_rows + renamed.num_rows,
        renamed=renamed.num_rows,
        **{name: table.num_rows for name, table in others.items()},
        listed={"renamed": [*zip(*names, strict=True)], **ids},
    )
    return documents, _by_shards(*same)


def _by_shards(first: pa.Table, second: pa.Table) -> Iterator[ShardPair]:
    columns = [table[name] for name in ("shard", "doc_id") for table in (first, second)]
    pairs = pa.table(columns, names=["first_shard", "second_shard", "first", "second"])
    # A and B are mostly cut alike: in this order a shard is read once. One thread keeps the order of the documents.
    shards = pairs.group_by(["first_shard", "second_shard"], use_threads=False)
    grouped = shards.aggregate([("first", "list"), ("second", "list")]).sort_by("first_shard")
    return (
        ShardPair(shard.as_py(), second_shard.as_py(), ids.values, second_ids.values)
        for shard, second_shard, ids, second_ids in zip(*grouped.columns, strict=True)
    )


def compare_dead_letters(
    first: Collection, second: Collection, documents: Sequence[pa.Table], *, listed: int
) -> DeadLetters:
    """Match dead letters by document, or by file and position if the record has no id."""
    sides = _read_dead_letters(first, documents[1]), _read_dead_letters(second, documents[0])
    counts = [Counter(zip(side["stage"].to_pylist(), side["error"].to_pylist(), strict=True)) for side in sides]
    left, right, only_first, only_second = join_rows(*sides, keys=["record"])
    differ = pc.not_equal(left["reason"], right["reason"])

    def changed(rows: pa.Table, counterparts: pa.Table, unmatched: pa.Table) -> pa.Table:
        matched = rows.set_column(rows.num_columns - 1, "counterpart", counterparts["reason"]).filter(differ)
        return pa.concat_tables([matched, unmatched]).select([*ERRORS.names, "counterpart"])

    gained, lost = changed(right, left, only_second), changed(left, right, only_first)
    columns = {"gained": (gained, "before"), "lost": (lost, "after")}
    return DeadLetters(
        first=sides[0].num_rows,
        second=sides[1].num_rows,
        same=left.num_rows - (pc.sum(differ).as_py() or 0),
        reasons=[
            {"stage": key[0], "error": key[1], "first": counts[0][key], "second": counts[1][key]}
            for key in sorted(counts[0] | counts[1])
        ],
        gained=gained.num_rows,
        lost=lost.num_rows,
        listed={
            kind: rows.slice(0, listed).rename_columns([*ERRORS.names, name]).to_pylist()
            for kind, (rows, name) in columns.items()
        },
    )


def _read_dead_letters(collection: Collection, other_documents: pa.Table) -> pa.Table:
    """Read all dead letters, with ``record``, by which they are matched, ``reason``, and ``counterpart``.

    The counterpart is what has become of the record on the other side, unless it is a dead letter there.
    """
    table = _concatenate(_read_shards(collection, "errors", ERRORS.names))
    address = pc.binary_join_element_wise(table["source_uri"], table["position"].cast(pa.string()), "\0")
    is_annotated = pc.is_in(table["doc_id"], other_documents["doc_id"].combine_chunks(), skip_nulls=True)
    return (
        table.append_column("record", pc.coalesce(table["doc_id"], address))
        .append_column("reason", pc.binary_join_element_wise(table["stage"], table["error"], ": "))
        .append_column("counterpart", pc.if_else(is_annotated, "annotated", "absent"))
    )


def _read_shards(collection: Collection, table: str, columns: Sequence[str]) -> list[pa.Table]:
    """Read columns of a table, one part for each shard; a collection without shards has one empty part."""
    parts = [collection.read_rows(report, table, columns) for report in collection.manifest.shards]
    return parts or [SCHEMAS[table].empty_table().select(list(columns))]


def _concatenate(parts: Sequence[pa.Table]) -> pa.Table:
    # Parts of several generations bear different signatures, which concat_tables would take for other schemas.
    return pa.concat_tables(part.replace_schema_metadata() for part in parts)
