"""Copy rows of committed shards into a new shard, without annotating anything."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.plan import RowsToCopy

_OWNED = ("documents", "sentences", "tokens", "entities")
"""Tables whose rows belong to a document."""


def copy_rows(folder: OutputFolder, rows: RowsToCopy) -> dict[str, pa.Table]:
    """Return the tables of the rows to copy; ``errors`` only if a dead letter is among them.

    Raises:
        IntegrityError: when a part cannot be read, or does not hold the rows that the plan counted.
    """
    report = folder.require_commit(rows.shard, generation=rows.generation)
    tables = {name: read_part(folder.part(report, name)) for name in report.files}
    new_ids = {rename.was: rename.doc_id for rename in rows.renames if rename.was != rename.doc_id}
    for name in _OWNED:
        tables[name] = _replace(_drop(tables[name], "doc_id", rows.without), "doc_id", new_ids)
    for column in ("source_uri", "source_position", "meta"):
        values = {rename.doc_id: getattr(rename, column) for rename in rows.renames}
        tables["documents"] = _replace(tables["documents"], column, values)
    if "errors" in tables:
        tables["errors"] = _drop_retried(_drop(tables["errors"], "source_uri", rows.without_dead_letters), rows.retried)
        if not tables["errors"].num_rows:
            del tables["errors"]
    found = tables["documents"].num_rows + (tables["errors"].num_rows if "errors" in tables else 0)
    if found != rows.records:
        raise IntegrityError(
            f"{folder.output}: shard {rows.shard:05d} of generation {rows.generation}: expected {rows.records} records "
            f"to copy, found {found}; check the folder with 'concord verify'"
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


def _replace(table: pa.Table, column: str, values: Mapping[str, object]) -> pa.Table:
    """Set a column's values in the rows of some documents, given by id."""
    if not values:
        return table
    field = table.schema.field(column)
    places = pc.index_in(table["doc_id"], pa.array(list(values), pa.string()))
    chosen = pc.take(pa.array(list(values.values()), field.type), places)
    index = table.schema.get_field_index(column)
    return table.set_column(index, field, pc.if_else(pc.is_valid(places), chosen, table[column]))
