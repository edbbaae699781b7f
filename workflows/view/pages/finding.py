"""The pages on which something is found: documents, names, words in context, and dead letters."""

from typing import Literal

from concord.workflows.view.index.finding import (
    DOCUMENT_ORDERS,
    NAME_ORDERS,
    PAGE_ROWS,
    DocumentFilter,
    IndexedDeadLetter,
    all_labels,
    count_rows,
    facets,
    find_document,
    find_documents,
    find_names,
    find_words,
    labels_of_names,
    places_of_name,
    select,
)
from concord.workflows.view.index.search_index import BANDS
from concord.workflows.view.page import NotFoundError, Page, Paging, Query
from concord.workflows.view.viewer import Viewer


def documents(viewer: Viewer, query: Query) -> Page:
    """List documents by facets."""
    band = query.number("band")
    chosen = DocumentFilter(
        label=query.text("label"),
        band=band if band is not None and band <= len(BANDS) else None,
        changed=query.text("changed") == "1",
        tagger=query.text("tagger"),
        source=query.text("source"),
        generation=query.number("generation"),
        text=query.text("q").strip(),
    )
    order, page = query.one_of("order", DOCUMENT_ORDERS), query.number("page") or 0
    with viewer.opened.index.reading() as index:
        rows, total = find_documents(index, chosen, order=order, page=page)
        values = {
            "rows": rows,
            "paging": Paging(page, total, PAGE_ROWS),
            "facets": facets(index, chosen),
            "chosen": chosen,
            "order": order,
            "orders": list(DOCUMENT_ORDERS),
            "labels": all_labels(index),
            "sums": index.execute(
                "SELECT count(*), sum(words), sum(entities), sum(refined), sum(changed) FROM documents"
            ).fetchone(),
            "dead": count_rows(index, "dead_letters"),
        }
    return Page("documents.html.j2", values)


def names(viewer: Viewer, query: Query) -> Page:
    """List the names of all entities, with their labels."""
    order, page = query.one_of("order", NAME_ORDERS), query.number("page") or 0
    with viewer.opened.index.reading() as index:
        rows, total = find_names(
            index,
            text=query.text("q").strip(),
            label=query.text("label"),
            disagree=query.text("disagree") == "1",
            order=order,
            page=page,
        )
        values = {
            "rows": rows,
            "labels_of": labels_of_names(index, [row.name for row in rows]),
            "paging": Paging(page, total, PAGE_ROWS),
            "order": order,
            "orders": list(NAME_ORDERS),
            "labels": all_labels(index),
        }
    return Page("names.html.j2", values)


def name(viewer: Viewer, query: Query) -> Page:
    """Show every entity of one name in its context."""
    name, label, page = query.text("name"), query.text("label"), query.number("page") or 0
    with viewer.opened.index.reading() as index:
        name_labels = labels_of_names(index, [name])[name]
        if not name_labels:
            raise NotFoundError(f"no entity is called {name!r}")
        lines, total = places_of_name(index, name, label=label, page=page)
        values = {
            "name": name,
            "name_labels": name_labels,
            "label": label,
            "lines": lines,
            "paging": Paging(page, total, PAGE_ROWS),
            "labels": all_labels(index),
        }
    return Page("name.html.j2", values)


def search(viewer: Viewer, query: Query) -> Page:
    """Find words in their context."""
    text, page, doc_id = query.text("q").strip(), query.number("page") or 0, query.text("id")
    column: Literal["forms", "lemmas"] = "lemmas" if query.text("by") == "lemma" else "forms"
    with viewer.opened.index.reading() as index:
        document = find_document(index, doc_id) if doc_id else None
        lines, total = find_words(index, text, column=column, document=document, page=page)
        values = {
            "text": text,
            "by": column,
            "document": document,
            "lines": lines,
            "paging": Paging(page, total, PAGE_ROWS),
            "labels": all_labels(index),
        }
    return Page("search.html.j2", values)


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
