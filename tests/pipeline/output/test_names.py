"""The table of names of a collection."""

from collections import Counter
from itertools import pairwise
from typing import Any
from unittest import mock

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from concord.pipeline.names.identities import name_key
from concord.pipeline.output import tables
from concord.pipeline.output.schema import NAMES
from concord.pipeline.output.tables import NAMED_COLUMNS, tabulate_names

Row = tuple[str, str, str, str]


def table_of(rows: list[Row]) -> list[dict[str, Any]]:
    columns = [pa.array([row[number] for row in rows], pa.string()) for number in range(len(NAMED_COLUMNS))]
    entities = pa.table(dict(zip(NAMED_COLUMNS, columns, strict=True)))
    table = tabulate_names([entities])
    assert table.schema == NAMES
    # A document is in one shard.
    ends = [place for place in range(1, len(rows)) if rows[place][0] != rows[place - 1][0]]
    shards = [entities[start:end] for start, end in pairwise([0, *ends, len(rows)])]
    with mock.patch.object(tables, "_MERGED_ROWS", 1):
        assert tabulate_names(shards) == table
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_names_of_all_documents_are_grouped_by_label_and_canonical_name() -> None:
    rows = [
        ("b", "Joe Biden", "PER", "Joe Biden"),
        ("b", "Biden", "PER", "Joe Biden"),
        ("b", "Paris", "LOC", "Paris"),
        ("a", "Biden", "PER", "President Joe Biden"),
        ("c", "JOE BIDEN", "PER", "Joe Biden"),
        ("c", "Paris", "PER", "Paris"),
    ]
    biden, *others = table_of(rows)
    assert biden.pop("name_id")
    assert biden == {
        "canonical": "Joe Biden",
        "label": "PER",
        "mentions": 4,
        "documents": 3,
        "first_doc_id": "b",
        "last_doc_id": "c",
        "variants": ["Biden", "JOE BIDEN", "Joe Biden"],
    }
    assert {(row["canonical"], row["label"], row["mentions"]) for row in others} == {
        ("Paris", "LOC", 1),
        ("Paris", "PER", 1),
    }


def test_values_are_no_names_and_a_collection_without_entities_has_none() -> None:
    rows = [("a", "two", "CARDINAL", "two"), ("a", "May", "DATE", "May"), ("a", "May", "PER", "May")]
    assert [(row["canonical"], row["label"]) for row in table_of(rows)] == [("May", "PER")]
    assert table_of([]) == []


def test_a_name_keeps_its_id_whatever_else_a_collection_holds() -> None:
    before = {row["canonical"]: row["name_id"] for row in table_of([("a", "UK", "LOC", "U.K.")])}
    rows = [("x", "Rome", "LOC", "Rome"), ("y", "Britain", "LOC", "the UK"), ("y", "UK", "ORG", "UK")]
    after = {(row["canonical"], row["label"]): row["name_id"] for row in table_of(rows)}
    assert after["the UK", "LOC"] == before["U.K."]
    assert len(set(after.values())) == len(after)


def test_name_that_is_new_gets_no_id_that_another_one_has() -> None:
    [earlier] = table_of([("a", "Rome", "LOC", "Rome")])
    previous = pa.Table.from_pylist([earlier | {"canonical": "Roma"}], schema=NAMES)
    both = pa.array(["Rome", "Roma"])
    entities = pa.table([pa.array(["a", "a"]), both, pa.array(["LOC", "LOC"]), both], names=list(NAMED_COLUMNS))
    ids = {row["canonical"]: row["name_id"] for row in tabulate_names([entities], previous).to_pylist()}
    assert ids["Roma"] == earlier["name_id"] != ids["Rome"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["d1", "d2", "d3"]),
            st.sampled_from(["A", "b", "C"]),
            st.sampled_from(["PER", "LOC"]),
            st.sampled_from(["Ann Lee", "ANN LEE", "Rome", "U.S.", "US"]),
        ),
        max_size=12,
    )
)
def test_table_counts_as_a_plain_loop_does(rows: list[Row]) -> None:
    rows.sort(key=lambda row: row[0])
    groups: dict[tuple[str, str], list[Row]] = {}
    for entity in rows:
        groups.setdefault((entity[2], name_key(entity[3], entity[2])), []).append(entity)
    found = table_of(rows)
    assert [row["mentions"] for row in found] == sorted(map(len, groups.values()), reverse=True)
    for row in found:
        group = groups[row["label"], name_key(row["canonical"], row["label"])]
        counts = Counter(name for _, name, _, _ in group)
        documents = [doc_id for doc_id, *_ in group]
        assert row["mentions"] == len(group)
        assert row["documents"] == len(set(documents))
        assert (row["first_doc_id"], row["last_doc_id"]) == (documents[0], documents[-1])
        assert row["variants"] == sorted(counts, key=lambda name: (-counts[name], name))
