"""Copy rows of committed shards into a new shard, without annotating anything."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.plan import RenamedDocument, RowsToCopy
from concord.pipeline.storage.output_paths import OutputPath

_OWNED = ("documents", "sentences", "tokens", "entities")
"""Tables whose rows belong to a document."""


def copy_rows(output: OutputPath, report: ShardReport, rows: RowsToCopy) -> dict[str, pa.Table]:
    """Return the tables of the rows to copy; ``errors`` only if a dead letter is among them.

    Args:
        report: commit record of the shard that holds the rows.

    Raises:
        IntegrityError: when a part cannot be read, or does not hold the rows that the plan counted.
    """
    tables = {name: read_part(output / part.path) for name, part in report.files.items()}
    for name in _OWNED:
        tables[name] = _rename(_drop(tables[name], "doc_id", rows.without), rows.moves)
    tables["documents"] = _update_sources(tables["documents"], rows.moves)
    if "errors" in tables:
        tables["errors"] = _drop_retried(_drop(tables["errors"], "source_uri", rows.without_letters), rows.retried)
        if not tables["errors"].num_rows:
            del tables["errors"]
    found = tables["documents"].num_rows + (tables["errors"].num_rows if "errors" in tables else 0)
    if found != rows.records:
        raise IntegrityError(
            f"{output}: shard {rows.shard:05d} of generation {rows.generation}: expected {rows.records} records to "
            f"copy, found {found}; check the folder with 'concord verify'"
        )
    return tables


def _drop(table: pa.Table, column: str, values: tuple[str, ...]) -> pa.Table:
    """Drop the rows that have one of the values in a column."""
    if not values:
        return table
    return table.filter(pc.invert(pc.is_in(table[column], pa.array(values, pa.string()))))


def _drop_retried(errors: pa.Table, retried: tuple[tuple[str, int], ...]) -> pa.Table:
    positions = zip(errors["source_uri"].to_pylist(), errors["position"].to_pylist(), strict=True)
    dropped = set(retried)
    return errors.filter(pa.array([position not in dropped for position in positions], pa.bool_()))


def _rename(table: pa.Table, moves: tuple[RenamedDocument, ...]) -> pa.Table:
    return _replace(table, "doc_id", {move.was: move.doc_id for move in moves if move.was != move.doc_id})


def _update_sources(documents: pa.Table, moves: tuple[RenamedDocument, ...]) -> pa.Table:
    """Set file, position and meta of moved documents, which have been renamed already."""
    for column in ("source_uri", "source_position", "meta"):
        documents = _replace(documents, column, {move.doc_id: getattr(move, column) for move in moves})
    return documents


def _replace(table: pa.Table, column: str, values: Mapping[str, object]) -> pa.Table:
    """Set a column's values in the rows of some documents, given by id."""
    if not values:
        return table
    field = table.schema.field(column)
    places = pc.index_in(table["doc_id"], pa.array(list(values), pa.string()))
    chosen = pc.take(pa.array(list(values.values()), field.type), places)
    index = table.schema.get_field_index(column)
    return table.set_column(index, field, pc.if_else(pc.is_valid(places), chosen, table[column]))
