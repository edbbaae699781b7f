"""Rows of two Arrow tables matched by key."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Rows = NDArray[np.int64]
"""Row numbers of a table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matches:
    """Matching rows of two tables.

    Attributes:
        first, second: the rows that match, side by side, in the first table's order.
        only_first, only_second: the rows without a match, ascending.
    """

    first: Rows
    second: Rows
    only_first: Rows
    only_second: Rows


def match_rows(first: pa.Table, second: pa.Table, *, keys: Sequence[str]) -> Matches:
    """Match rows whose keys are equal; the k-th row of a key matches the k-th row of that key.

    Args:
        keys: columns without nulls, of the same type in both tables.
    """
    if all(first[key].equals(second[key]) for key in keys):
        rows = np.arange(first.num_rows, dtype=np.int64)
        return Matches(first=rows, second=rows, only_first=rows[:0], only_second=rows[:0])
    joined = _numbered(first, keys, name="first").join(
        _numbered(second, keys, name="second"), keys=[*keys, "occurrence"], join_type="full outer"
    )
    in_first, in_second = pc.is_valid(joined["first"]), pc.is_valid(joined["second"])
    both = joined.filter(pc.and_(in_first, in_second)).select(["first", "second"]).sort_by("first")
    return Matches(
        first=_rows(both["first"]),
        second=_rows(both["second"]),
        only_first=np.sort(_rows(joined.filter(pc.invert(in_second))["first"])),
        only_second=np.sort(_rows(joined.filter(pc.invert(in_first))["second"])),
    )


def rows_equal(first: pa.Table, second: pa.Table, rows: Rows, second_rows: Rows, *, column: str) -> NDArray[np.bool_]:
    """Return for each pair of rows whether the column has the same value in both."""
    equal = pc.equal(first[column].take(pa.array(rows)), second[column].take(pa.array(second_rows)))
    return np.asarray(equal.to_numpy(), dtype=bool)


def _numbered(table: pa.Table, keys: Sequence[str], *, name: str) -> pa.Table:
    """Return the keys with each row's number in column ``name``, and how many rows of its key precede it."""
    numbered = table.select(list(keys)).append_column(name, pa.array(np.arange(table.num_rows, dtype=np.int64)))
    ordered = numbered.sort_by([(column, "ascending") for column in (*keys, name)])
    position = np.arange(table.num_rows, dtype=np.int64)
    is_first = np.ones(table.num_rows, dtype=bool)
    if table.num_rows:
        differs = [pc.not_equal(ordered[key].slice(1), ordered[key].slice(0, table.num_rows - 1)) for key in keys]
        is_first[1:] = np.logical_or.reduce([np.asarray(column.to_numpy(), dtype=bool) for column in differs])
    occurrence = position - np.maximum.accumulate(np.where(is_first, position, 0))
    return ordered.append_column("occurrence", pa.array(occurrence))


def _rows(column: pa.ChunkedArray) -> Rows:
    return np.asarray(column.to_numpy(), dtype=np.int64)
