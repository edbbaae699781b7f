"""The pages on which something is found: documents, names, words in context, and dead letters."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from concord.workflows.view.index.documents import (
    DOCUMENT_ORDERS,
    FIELDS,
    META,
    DocumentFilter,
    IndexedDeadLetter,
    MetaField,
    facets,
    find_documents,
    get_document,
    matching_entity,
    meta_facets,
    meta_fields,
    meta_of_document,
)
from concord.workflows.view.index.hits import SEARCHED, Column, Line, documents_found, find_words, places_of_name
from concord.workflows.view.index.names import NAME_ORDERS, find_names, get_name, labels_of_name, read_profile
from concord.workflows.view.index.search_index import BANDS, PAGE_ROWS, all_labels, count_rows, select
from concord.workflows.view.page import Page, Paging, Query, Table, UnavailableError
from concord.workflows.view.viewer import Viewer

_LINE_COLUMNS = ("doc_id", "title", "sentence", "left", "match", "right", "label", "confidence")


def documents(viewer: Viewer, query: Query) -> Page:
    """List documents by facets."""
    band = query.number("band")
    with viewer.opened.index.reading() as index:
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
            index,
            chosen,
            order=order,
            reverse=query.text("reverse") == "1",
            window=query.window(PAGE_ROWS),
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
            "labels": all_labels(index),
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


def names(viewer: Viewer, query: Query) -> Page:
    """List the names of all entities, with their labels."""
    order = query.one_of("order", NAME_ORDERS)
    with viewer.opened.index.reading() as index:
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
            "labels": all_labels(index),
        }
    table = (
        (row.name, " ".join(entry.label for entry in labels), row.entities, row.documents, row.confidence)
        for row, labels in zip(rows, labels_of, strict=True)
    )
    return Page("names.html.j2", values, Table(("name", "labels", "entities", "documents", "confidence"), table))


def name(viewer: Viewer, query: Query) -> Page:
    """Show every entity of one name in its context, and what is known of the name."""
    label = query.text("label")
    with viewer.opened.index.reading() as index:
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
            "labels": all_labels(index),
        }
    return Page("name.html.j2", values, Table(_LINE_COLUMNS, _line_rows(lines)))


def search(viewer: Viewer, query: Query) -> Page:
    """Find words in their context, in documents by their metadata."""
    text, doc_id, label = query.text("q").strip(), query.text("id").strip(), query.text("label")
    column: Column = "lemmas" if query.text("by") == "lemma" else "forms"
    unread, lines, total = "", list[Line](), 0
    with viewer.opened.index.reading() as index:
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
            "labels": all_labels(index),
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


def dead_letters(viewer: Viewer, query: Query) -> Page:
    """List the records that could not be annotated."""
    reason, page = query.text("error"), query.number("page") or 0
    where, values = ("error = ?", (reason,)) if reason else ("1", ())
    rest = f"FROM dead_letters WHERE {where} ORDER BY id LIMIT ? OFFSET ?"
    with viewer.opened.index.reading() as index:
        reasons = index.execute(
            "SELECT stage, error, count(*) FROM dead_letters GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2"
        ).fetchall()
        rows = select(index, IndexedDeadLetter, rest, (*values, PAGE_ROWS, page * PAGE_ROWS))
        paging = Paging(page, count_rows(index, f"dead_letters WHERE {where}", values), PAGE_ROWS)
    return Page("dead_letters.html.j2", {"rows": rows, "reasons": reasons, "reason": reason, "paging": paging})
