"""Rows of two tables matched by key, in Arrow: what both have, and what only one has."""

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
    """Rows of two tables.

    Attributes:
        first, second: the rows that match, side by side, in the first table's order.
        only_first, only_second: the others, ascending.
    """

    first: Rows
    second: Rows
    only_first: Rows
    only_second: Rows


def match_rows(first: pa.Table, second: pa.Table, *, keys: Sequence[str]) -> Matches:
    """Match rows whose keys are equal; of rows with one key the first matches the first, the second the second.

    Args:
        keys: columns without nulls, of one type on both sides.
    """
    if all(first[key].equals(second[key]) for key in keys):
        every = np.arange(first.num_rows, dtype=np.int64)
        nothing = every[:0]
        return Matches(first=every, second=every, only_first=nothing, only_second=nothing)
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


def _numbered(table: pa.Table, keys: Sequence[str], *, name: str) -> pa.Table:
    """Give the keys with each row's number, and how many rows of the same key come before it."""
    chosen = table.select(list(keys)).append_column(name, pa.array(np.arange(table.num_rows, dtype=np.int64)))
    ordered = chosen.sort_by([(column, "ascending") for column in (*keys, name)])
    place = np.arange(table.num_rows, dtype=np.int64)
    begins = np.ones(table.num_rows, dtype=bool)
    if table.num_rows:
        others = [pc.not_equal(ordered[key].slice(1), ordered[key].slice(0, table.num_rows - 1)) for key in keys]
        begins[1:] = np.logical_or.reduce([np.asarray(other.to_numpy(), dtype=bool) for other in others])
    occurrence = place - np.maximum.accumulate(np.where(begins, place, 0))
    return ordered.append_column("occurrence", pa.array(occurrence))


def _rows(column: pa.ChunkedArray) -> Rows:
    return np.asarray(column.to_numpy(), dtype=np.int64)
