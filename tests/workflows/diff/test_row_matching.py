from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.workflows.diff.rows import match_rows

KEYS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), max_size=6)


def table(rows: list[tuple[int, str]]) -> pa.Table:
    return pa.table(
        {"number": pa.array([row[0] for row in rows], pa.int32()), "name": pa.array([row[1] for row in rows])}
        if rows
        else {"number": pa.array([], pa.int32()), "name": pa.array([], pa.string())}
    )


@pytest.mark.slow
@given(KEYS, KEYS)
def test_match_rows_matches_the_kth_rows_of_a_key(first: list[tuple[int, str]], second: list[tuple[int, str]]) -> None:
    unmatched: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for row, key in enumerate(second):
        unmatched[key].append(row)
    pairs = [(row, unmatched[key].pop(0)) for row, key in enumerate(first) if unmatched[key]]
    matches = match_rows(table(first), table(second), keys=["number", "name"])
    assert list(zip(matches.first.tolist(), matches.second.tolist(), strict=True)) == pairs
    assert matches.only_first.tolist() == sorted(set(range(len(first))) - {row for row, _ in pairs})
    assert matches.only_second.tolist() == sorted(row for rows in unmatched.values() for row in rows)
