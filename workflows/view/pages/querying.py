"""The page on which the tables are queried in SQL, which cannot change, read or request anything else."""

from pathlib import Path
from threading import Lock, Timer
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from concord.pipeline.output.collection import Collection
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.output.schema import SCHEMAS
from concord.workflows.view.index.search_index import all_labels
from concord.workflows.view.page import Page, Query, Table, UnavailableError
from concord.workflows.view.viewer import Viewer

SHOWN_ROWS = 500
SECONDS = 20.0
"""A query is stopped after this long."""
_MEMORY = "1GB"
_one_at_a_time = Lock()


def sql(viewer: Viewer, query: Query) -> Page:
    """Answer a query to the tables, as a page or as CSV."""
    text, unread, table = query.text("q"), "", Table((), ())
    limit = query.window(SHOWN_ROWS).limit
    if text.strip():
        try:
            table = run_query(viewer.opened.snapshot.collection, text, limit=limit + 1)
        except UnavailableError as error:
            unread = str(error)
    rows = list(table.rows)
    with viewer.opened.index.reading() as index:
        values = {
            "text": text,
            "unread": unread,
            "columns": table.columns,
            "rows": rows[:limit],
            "is_cut": len(rows) > limit,
            "schemas": {name: schema.names for name, schema in SCHEMAS.items()},
            "labels": all_labels(index),
        }
    return Page("sql.html.j2", values, None if unread else Table(table.columns, rows[:limit]))


def run_query(collection: Collection, text: str, *, limit: int, seconds: float = SECONDS) -> Table:
    """Return the first rows of a query to the tables, for which DuckDB may open no file and load no extension.

    Raises:
        UnavailableError: when DuckDB is missing, or when it is not one SELECT, is wrong or takes too long.
    """
    try:
        import duckdb
    except ModuleNotFoundError:
        raise UnavailableError("this page needs DuckDB: pip install 'concord-annotate[duckdb]'") from None
    # A folder for temporary files would be one that queries may read.
    settings = {"enable_external_access": "false", "temp_directory": "", "memory_limit": _MEMORY}
    settings["lock_configuration"] = "true"
    if not _one_at_a_time.acquire(timeout=seconds):
        raise UnavailableError("another query is running; try again")
    try:
        with duckdb.connect(":memory:", config=settings) as connection:
            if [statement.type for statement in connection.extract_statements(text)] != [duckdb.StatementType.SELECT]:
                raise UnavailableError("expected one SELECT")
            for name in SCHEMAS:
                # In an object store it would be read as a whole.
                if name in text.lower():
                    connection.register(name, _rows(collection, name))
            timer = Timer(seconds, connection.interrupt)
            timer.start()
            try:
                relation = connection.sql(text).limit(limit)
                return Table(relation.columns, relation.fetchall())
            finally:
                timer.cancel()
    except duckdb.InterruptException:
        raise UnavailableError(f"the query took more than {seconds:g} s and was stopped") from None
    except duckdb.Error as error:
        raise UnavailableError(str(error)) from None
    finally:
        _one_at_a_time.release()


def _rows(collection: Collection, name: str) -> Any:
    parts = collection.parts(name)
    if not parts:
        return SCHEMAS[name].empty_table()
    if all(isinstance(part, Path) for part in parts):
        format = ds.ParquetFileFormat(page_checksum_verification=True)
        return ds.dataset([str(part) for part in parts], schema=SCHEMAS[name], format=format)
    return pa.concat_tables(map(read_part, parts))
