"""The pages on which something is found: documents, names, words in context, dead letters, and answers to SQL."""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Lock, Timer
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from concord.pipeline.output.collection import Collection
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.output.schema import SCHEMAS
from concord.workflows.view.index.queries import (
    DOCUMENT_ORDERS,
    FIELDS,
    META,
    NAME_ORDERS,
    SEARCHED,
    Column,
    DocumentFilter,
    IndexedDeadLetter,
    Line,
    MetaField,
    documents_found,
    facets,
    find_documents,
    find_names,
    find_words,
    get_document,
    get_name,
    labels_of_name,
    matching_entity,
    meta_facets,
    meta_fields,
    meta_of_document,
    places_of_name,
    read_profile,
)
from concord.workflows.view.index.search_index import BANDS, PAGE_ROWS, count_rows, select
from concord.workflows.view.page import Page, Paging, Query, Table, UnavailableError
from concord.workflows.view.viewer import Viewer

_LINE_COLUMNS = ("doc_id", "title", "sentence", "left", "match", "right", "label", "confidence")


def documents(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """List documents by facets."""
    band = query.number("band")
    fields = meta_fields(index)
    chosen = DocumentFilter(
        label=query.text("label"),
        band=band if band is not None and band <= len(BANDS) else None,
        changed=query.text("changed") == "1",
        tagger=query.text("tagger"),
        source=query.text("source"),
        generation=query.number("generation"),
        text=query.text("q").strip(),
        meta=_chosen_meta(query, fields),
    )
    orders = [*DOCUMENT_ORDERS, *(META + entry.field for entry in fields)]
    order = query.one_of("order", dict.fromkeys(orders))
    rows, totals = find_documents(
        index, chosen, order=order, reverse=query.text("reverse") == "1", window=query.window(PAGE_ROWS)
    )
    recurring, dated = meta_facets(index, chosen)
    columns = dict.fromkeys([*dated, *recurring, *([] if order in DOCUMENT_ORDERS else [order.removeprefix(META)])])
    of_rows = [meta_of_document(index, row) for row in rows]
    shown = {
        "rows": list(zip(rows, of_rows, [matching_entity(index, chosen, row) for row in rows], strict=True)),
        "columns": columns,
        "paging": Paging(query.number("page") or 0, totals.documents, PAGE_ROWS),
        "facets": facets(index, chosen),
        "recurring": recurring,
        "dated": dated,
        "chosen": chosen,
        "order": order,
        "orders": orders[: len(DOCUMENT_ORDERS) + FIELDS],
        "totals": totals,
        "all": count_rows(index, "documents"),
        "dead": count_rows(index, "dead_letters"),
    }
    counts = ("doc_id", "title", "words", "entities", "changed", "confidence")
    table = (
        [
            *(getattr(row, name) for name in counts),
            *("; ".join(str(value) for field, value in meta if field == name) for name in columns),
        ]
        for row, meta in zip(rows, of_rows, strict=True)
    )
    return Page("documents.html.j2", shown, Table((*counts, *columns), table))


def names(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """List the names of all entities, with their labels."""
    order = query.one_of("order", NAME_ORDERS)
    rows, total = find_names(
        index,
        text=query.text("q").strip(),
        label=query.text("label"),
        disagree=query.text("disagree") == "1",
        order=order,
        window=query.window(PAGE_ROWS),
    )
    labels_of = [labels_of_name(index, row.key) for row in rows]
    values = {
        "rows": list(zip(rows, labels_of, strict=True)),
        "paging": Paging(query.number("page") or 0, total, PAGE_ROWS),
        "order": order,
        "orders": list(NAME_ORDERS),
    }
    table = (
        (row.name, " ".join(entry.label for entry in labels), row.entities, row.documents, row.confidence)
        for row, labels in zip(rows, labels_of, strict=True)
    )
    return Page("names.html.j2", values, Table(("name", "labels", "entities", "documents", "confidence"), table))


def name(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """Show every entity of one name in its context, and what is known of the name."""
    label = query.text("label")
    name = get_name(index, query.text("name"))
    chosen = DocumentFilter(meta=_chosen_meta(query, meta_fields(index)))
    lines, total = places_of_name(
        index, key=name.key, label=label, document_filter=chosen, window=query.window(PAGE_ROWS)
    )
    values = {
        "name": name,
        "name_labels": labels_of_name(index, name.key),
        "profile": read_profile(index, name.key, chosen),
        "chosen": chosen,
        "label": label,
        "lines": lines,
        "paging": Paging(query.number("page") or 0, total, PAGE_ROWS),
    }
    return Page("name.html.j2", values, Table(_LINE_COLUMNS, _line_rows(lines)))


def search(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """Find words in their context, in documents by their metadata."""
    text, doc_id, label = query.text("q").strip(), query.text("id").strip(), query.text("label")
    column: Column = "lemmas" if query.text("by") == "lemma" else "forms"
    unread, lines, total = "", list[Line](), 0
    document = get_document(index, doc_id) if doc_id else None
    fields = meta_fields(index)
    chosen = DocumentFilter(meta=_chosen_meta(query, fields))
    try:
        lines, total = find_words(
            index,
            text,
            column=column,
            document=document,
            document_filter=chosen,
            label=label,
            window=query.window(PAGE_ROWS),
        )
        if text and fields:
            chosen = replace(chosen, among=documents_found(index, text, column=column, document=document))
    except UnavailableError as error:
        unread = str(error)
    recurring, dated = meta_facets(index, chosen)
    values = {
        "chosen": chosen,
        "recurring": recurring,
        "dated": dated,
        "text": text,
        "unread": unread,
        "by": column,
        "document": document,
        "label": label,
        "searched": SEARCHED,
        "lines": lines,
        "paging": Paging(query.number("page") or 0, total, PAGE_ROWS),
    }
    return Page("search.html.j2", values, Table(_LINE_COLUMNS, _line_rows(lines)))


def _chosen_meta(query: Query, fields: Iterable[MetaField]) -> dict[str, str]:
    chosen = {entry.field: query.text(META + entry.field) for entry in fields}
    return {name: value for name, value in chosen.items() if value}


def _line_rows(lines: Iterable[Line]) -> Iterator[Iterable[Any]]:
    for line in lines:
        entity = line.entity
        said = ("", None) if entity is None else (entity.label, entity.confidence)
        yield line.doc_id, line.title, line.sent_id + 1, line.left, line.match, line.right, *said


def dead_letters(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """List the records that could not be annotated."""
    reason, page = query.text("error"), query.number("page") or 0
    where, values = ("error = ?", (reason,)) if reason else ("1", ())
    rest = f"FROM dead_letters WHERE {where} ORDER BY id LIMIT ? OFFSET ?"
    reasons = index.execute(
        "SELECT stage, error, count(*) FROM dead_letters GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2"
    ).fetchall()
    rows = select(index, IndexedDeadLetter, rest, (*values, PAGE_ROWS, page * PAGE_ROWS))
    paging = Paging(page, count_rows(index, f"dead_letters WHERE {where}", values), PAGE_ROWS)
    return Page("dead_letters.html.j2", {"rows": rows, "reasons": reasons, "reason": reason, "paging": paging})


SHOWN_ROWS = 500
SECONDS = 20.0
"""A query is stopped after this long."""
_MEMORY = "1GB"
_one_at_a_time = Lock()


def sql(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """Answer a query to the tables, as a page or as CSV."""
    text, unread, table = query.text("q"), "", Table((), ())
    limit = query.window(SHOWN_ROWS).limit
    if text.strip():
        try:
            table = run_query(viewer.opened.collection, text, limit=limit + 1)
        except UnavailableError as error:
            unread = str(error)
    rows = list(table.rows)
    values = {
        "text": text,
        "unread": unread,
        "columns": table.columns,
        "rows": rows[:limit],
        "is_cut": len(rows) > limit,
        "schemas": {name: schema.names for name, schema in SCHEMAS.items()},
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
