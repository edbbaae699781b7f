"""Entities of two annotations of the same texts matched by their offsets, and what each side says about them."""

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from concord.models.labels.spans import OUTSIDE
from concord.workflows.diff.rows import KEYS, OFFSETS, Rows, ShardRows, join_rows, text_positions

Kind = Literal["same", "relabelled", "moved", "lost", "gained"]
CHANGES: tuple[Kind, ...] = ("relabelled", "moved", "lost", "gained")
SIDE_COLUMNS = ("sent_id", *OFFSETS, "text", "label", "confidence", "refined")


def compare_entities(first: ShardRows, second: ShardRows) -> pa.Table:
    """Return every entity of both sides once, with ``document``, ``kind``, what each side says, and ``sureness``.

    Entities with the same offsets are the same or relabelled. Of the others, an entity of A and one of B moved if each
    is the first that overlaps the other. The rest is lost or gained.

    The columns of a side are ``SIDE_COLUMNS`` after ``first_`` or ``second_``.
    """
    left, right, lost, gained = join_rows(first.entities, second.entities, keys=KEYS)
    moved_from, moved_to = _mutually_overlapping(lost, gained)
    moved = lost.take(pa.array(moved_from)), gained.take(pa.array(moved_to))
    lost, gained = _without(lost, moved_from), _without(gained, moved_to)
    return pa.concat_tables(
        [
            _side_by_side(left, right, pc.if_else(pc.equal(left["label"], right["label"]), "same", "relabelled")),
            _side_by_side(*moved, pa.repeat("moved", len(moved_from))),
            _side_by_side(lost, _outside(second, lost), pa.repeat("lost", lost.num_rows)),
            _side_by_side(_outside(first, gained), gained, pa.repeat("gained", gained.num_rows)),
        ]
    )


def _mutually_overlapping(first: pa.Table, second: pa.Table) -> tuple[Rows, Rows]:
    """Return the rows of pairs of entities each of which is the first that overlaps the other."""
    partners, second_partners = _first_overlapping(first, second), _first_overlapping(second, first)
    rows = np.flatnonzero(partners < second.num_rows)
    mutual = rows[second_partners[partners[rows]] == rows]
    return mutual, partners[mutual]


def _first_overlapping(first: pa.Table, second: pa.Table) -> Rows:
    """Return for each entity the first row of the other table that overlaps it; that table's length if none does."""
    starts, ends = (text_positions(first, column) for column in OFFSETS)
    nearest = np.searchsorted(text_positions(second, "end_char"), starts, side="right")
    # A position after the last row that no entity reaches.
    begins = np.append(text_positions(second, "start_char"), np.iinfo(np.int64).max)
    return np.where(begins[nearest] < ends, nearest, second.num_rows)


def _without(table: pa.Table, rows: Rows) -> pa.Table:
    return table.take(pa.array(np.delete(np.arange(table.num_rows), rows)))


def _outside(side: ShardRows, entities: pa.Table) -> pa.Table:
    """Return what a side says about entities that only the other side has."""
    bounds = np.stack(side.words_of(*(text_positions(entities, column) for column in OFFSETS)), axis=1)

    def reduced(reduce: np.ufunc, column: str) -> NDArray[Any]:
        # One value more, so that an entity may end with the last word.
        values = np.append(side.tokens[column].to_numpy(), 0)
        return np.asarray(reduce.reduceat(values, bounds.ravel())[::2] if len(bounds) else values[:0])

    columns = {
        "sent_id": side.tokens["sent_id"].take(pa.array(bounds[:, 0])),
        "label": pa.repeat(OUTSIDE, entities.num_rows),
        "confidence": pa.array(reduced(np.minimum, "ner_prob"), pa.float32(), from_pandas=True),  # NaN for null
        "refined": pa.array(reduced(np.maximum, "refined").astype(bool)),
    }
    return pa.table({name: columns.get(name, entities[name]) for name in ("document", *SIDE_COLUMNS)})


def _side_by_side(first: pa.Table, second: pa.Table, kinds: pa.Array) -> pa.Table:
    columns = {"document": first["document"], "kind": kinds}
    for side, table in (("first", first), ("second", second)):
        columns |= {f"{side}_{name}": table[name] for name in SIDE_COLUMNS}
    sureness = pc.min_element_wise(first["confidence"], second["confidence"], skip_nulls=False)
    return pa.table(columns | {"sureness": sureness})
