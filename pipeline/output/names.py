"""Who is named in a collection, and where: its entities grouped over documents by label and canonical name."""

import hashlib
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.names.identities import name_key
from concord.pipeline.names.values import VALUES
from concord.pipeline.output.schema import NAMES

NAMED_COLUMNS = ("doc_id", "name", "label", "canonical")
"""The columns of entities that make up the table."""
_DIGITS = 16
_MERGED_ROWS = 1 << 18
"""Counts of shards that are held before they are added up."""


def tabulate_names(shards: Iterable[pa.Table], previous: pa.Table | None = None) -> pa.Table:
    """Group entities that have the same label and canonical name, but for case, full stops, articles and titles.

    Dates, amounts and numbers are left out. Memory holds the entities of one shard, and each name with its variants.

    Args:
        shards: rows of the table entities, with ``NAMED_COLUMNS`` at least; the rows of a document are in one shard.
        previous: the table of an earlier generation, from which names keep their ids.

    Returns:
        The table names, the most frequent first.
    """
    counts, documents = [], []
    for shard in shards:
        entities = shard.filter(pc.invert(pc.is_in(shard["label"], pa.array(VALUES))))
        columns = {name: entities[name].cast(pa.large_string()) for name in NAMED_COLUMNS}
        pairs = zip(entities["label"].to_pylist(), entities["canonical"].to_pylist(), strict=True)
        rows = pa.table({"key": pa.array((_key(*pair) for pair in pairs), pa.large_string()), **columns})
        counts.append(_counts([rows.append_column("mentions", [pa.array([1] * len(rows), pa.int64())])]))
        once = _group(rows, "key", "doc_id")
        of_key = [once["key"], pa.array([1] * len(once), pa.int64()), once["doc_id"], once["doc_id"]]
        documents.append(_documents([pa.table(of_key, names=["key", "documents", "first_doc_id", "last_doc_id"])]))
        if sum(map(len, counts[1:])) > max(_MERGED_ROWS, len(counts[0])):
            counts, documents = [_counts(counts)], [_documents(documents)]
    if not counts:
        return NAMES.empty_table()
    counted = _counts(counts)
    fullest = _most_frequent(counted, "canonical", "first")
    named_in = _documents(documents).sort_by("key")
    keys = named_in["key"].to_pylist()
    columns = {
        "name_id": pa.array(_name_ids(keys, previous)),
        "canonical": fullest["canonical"],
        "label": pa.array([key.partition("\0")[0] for key in keys]),
        "mentions": fullest["mentions"],
        **{name: named_in[name] for name in ("documents", "first_doc_id", "last_doc_id")},
        "variants": _most_frequent(counted, "name", "list")["name"],
    }
    return pa.table(columns).cast(NAMES).sort_by([("mentions", "descending"), ("name_id", "ascending")])


def _key(label: str, canonical: str) -> str:
    """Return what is the same for all canonical names of one name."""
    return f"{label}\0{name_key(canonical, label)}"


def _name_ids(keys: Sequence[str], previous: pa.Table | None) -> list[str]:
    """Return the id of each key: that of the previous table, or one that depends on the key alone."""
    ids: dict[str, str] = {}
    for row in () if previous is None else previous.select(["label", "canonical", "name_id"]).to_pylist():
        ids.setdefault(_key(row["label"], row["canonical"]), row["name_id"])
    taken = set(ids.values())
    for key in keys:
        seed = key
        # The id of a name that had another key when the rules were others may be that of this key.
        while key not in ids:
            name_id = hashlib.sha256(seed.encode()).hexdigest()[:_DIGITS]
            if name_id not in taken:
                ids[key] = name_id
                taken.add(name_id)
            seed += "\0"
    return [ids[key] for key in keys]


def _counts(tables: Sequence[pa.Table]) -> pa.Table:
    return _group(pa.concat_tables(tables), "key", "canonical", "name", mentions="sum")


def _documents(tables: Sequence[pa.Table]) -> pa.Table:
    """Add up documents that shards share none of, given in the order of the shards."""
    return _group(pa.concat_tables(tables), "key", documents="sum", first_doc_id="first", last_doc_id="last")


def _most_frequent(counted: pa.Table, column: str, how: str) -> pa.Table:
    """Return the most frequent value of each key, or all values in this order, sorted by keys."""
    order = [("key", "ascending"), ("mentions", "descending"), (column, "ascending")]
    return _group(_group(counted, "key", column, mentions="sum").sort_by(order), "key", mentions="sum", **{column: how})


def _group(table: pa.Table, *keys: str, **columns: str) -> pa.Table:
    """Return the groups in the order of their first rows, with aggregates of some columns."""
    # One thread: with several, groups and the first of their rows come in any order.
    groups = table.group_by(list(keys), use_threads=False).aggregate(list(columns.items()))
    return groups.rename_columns([*keys, *columns])
