"""Rows of committed shards taken over into new parts, without annotating anything."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.plan import RenamedDocument, RowsToCopy
from concord.pipeline.storage.output_paths import OutputPath

_OWNED = ("documents", "sentences", "tokens", "entities")


def carry_rows(output: OutputPath, report: ShardReport, carry: RowsToCopy) -> dict[str, pa.Table]:
    """Give the tables that a carry takes over; ``errors`` only where a dead letter is among them.

    Args:
        report: of the committed shard.

    Raises:
        IntegrityError: when a part cannot be read, or does not hold the rows that the plan counted.
    """
    tables = {name: read_part(output / part.path) for name, part in report.files.items()}
    for name in _OWNED:
        tables[name] = _renamed(_left_over(tables[name], "doc_id", carry.without), carry.moves)
    tables["documents"] = _placed(tables["documents"], carry.moves)
    if "errors" in tables:
        tables["errors"] = _not_retried(
            _left_over(tables["errors"], "source_uri", carry.without_letters), carry.retried
        )
        if not tables["errors"].num_rows:
            del tables["errors"]
    held = tables["documents"].num_rows + (tables["errors"].num_rows if "errors" in tables else 0)
    if held != carry.records:
        raise IntegrityError(
            f"{output}: shard {carry.shard:05d} of generation {carry.generation}: expected {carry.records} records to "
            f"take over, found {held}; check the folder with 'concord verify'"
        )
    return tables


def _left_over(table: pa.Table, column: str, without: tuple[str, ...]) -> pa.Table:
    if not without:
        return table
    return table.filter(pc.invert(pc.is_in(table[column], pa.array(without, pa.string()))))


def _not_retried(letters: pa.Table, retried: tuple[tuple[str, int], ...]) -> pa.Table:
    left_behind = set(retried)
    places = zip(letters["source_uri"].to_pylist(), letters["position"].to_pylist(), strict=True)
    return letters.filter(pa.array([place not in left_behind for place in places], pa.bool_()))


def _renamed(table: pa.Table, moves: tuple[RenamedDocument, ...]) -> pa.Table:
    return _replaced(table, "doc_id", {move.was: move.doc_id for move in moves if move.was != move.doc_id})


def _replaced(table: pa.Table, column: str, values: Mapping[str, object]) -> pa.Table:
    """Put values into a column where the documents' ids are among the keys."""
    if not values:
        return table
    field = table.schema.field(column)
    places = pc.index_in(table["doc_id"], pa.array(list(values), pa.string()))
    chosen = pc.take(pa.array(list(values.values()), field.type), places)
    index = table.schema.get_field_index(column)
    return table.set_column(index, field, pc.if_else(pc.is_valid(places), chosen, table[column]))


def _placed(documents: pa.Table, moves: tuple[RenamedDocument, ...]) -> pa.Table:
    """Give documents that have moved their new file, position and meta; they bear their new names already."""
    for column in ("source_uri", "source_position", "meta"):
        documents = _replaced(documents, column, {move.doc_id: getattr(move, column) for move in moves})
    return documents
