"""The pages on which something is found: documents, names, words in context, and dead letters."""

import sqlite3
from typing import Literal

from concord.workflows.view.index.finding import (
    DOCUMENT_ORDERS,
    NAME_ORDERS,
    PAGE_ROWS,
    DocumentFilter,
    all_labels,
    band_name,
    facets,
    find_document,
    find_documents,
    find_names,
    labels_of_names,
    places_of_name,
)
from concord.workflows.view.index.finding import search as find_words
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.index.search_index import BANDS
from concord.workflows.view.page import NotFoundError, Page, Paging, Query


def documents(opened: OpenedCollection, query: Query) -> Page:
    """List documents by facets."""
    wanted = DocumentFilter(
        label=query.text("label"),
        band=_band(query),
        changed=query.text("changed") == "1",
        tagger=query.text("tagger"),
        source=query.text("source"),
        generation=query.number("generation"),
        text=query.text("q").strip(),
    )
    order, page = query.one_of("order", DOCUMENT_ORDERS), query.number("page") or 0
    with opened.index.reading() as index:
        rows, total = find_documents(index, wanted, order=order, page=page)
        values = {
            "rows": rows,
            "paging": Paging(page, total, PAGE_ROWS),
            "facets": facets(index, wanted),
            "wanted": wanted,
            "order": order,
            "orders": list(DOCUMENT_ORDERS),
            "labels": all_labels(index),
            "band_name": band_name,
            "sums": index.execute(
                "SELECT count(*) AS documents, sum(words) AS words, sum(entities) AS entities, "
                "sum(refined) AS refined, sum(changed) AS changed FROM documents"
            ).fetchone(),
            "dead": index.execute("SELECT count(*) FROM dead_letters").fetchone()[0],
        }
    return Page("documents.html.j2", values)


def names(opened: OpenedCollection, query: Query) -> Page:
    """List the names of all entities, with their labels."""
    order, page = query.one_of("order", NAME_ORDERS), query.number("page") or 0
    with opened.index.reading() as index:
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
            "labels_of": labels_of_names(index, [row["name"] for row in rows]),
            "paging": Paging(page, total, PAGE_ROWS),
            "order": order,
            "orders": list(NAME_ORDERS),
            "labels": all_labels(index),
        }
    return Page("names.html.j2", values)


def name(opened: OpenedCollection, query: Query) -> Page:
    """Show every entity of one name in its context."""
    wanted, label, page = query.text("name"), query.text("label"), query.number("page") or 0
    with opened.index.reading() as index:
        own = labels_of_names(index, [wanted])[wanted]
        if not own:
            raise NotFoundError(f"no entity is called {wanted!r}")
        lines, total = places_of_name(index, wanted, label=label, page=page)
        values = {
            "name": wanted,
            "own": own,
            "label": label,
            "lines": lines,
            "paging": Paging(page, total, PAGE_ROWS),
            "labels": all_labels(index),
        }
    return Page("name.html.j2", values)


def search(opened: OpenedCollection, query: Query) -> Page:
    """Find words in their context."""
    text, page, doc_id = query.text("q").strip(), query.number("page") or 0, query.text("id")
    column: Literal["forms", "lemmas"] = "lemmas" if query.text("by") == "lemma" else "forms"
    with opened.index.reading() as index:
        document = find_document(index, doc_id) if doc_id else None
        lines, total = find_words(
            index, text, column=column, document=None if document is None else document["id"], page=page
        )
        values = {
            "text": text,
            "by": column,
            "document": document,
            "lines": lines,
            "paging": Paging(page, total, PAGE_ROWS),
            "labels": all_labels(index),
        }
    return Page("search.html.j2", values)


def dead_letters(opened: OpenedCollection, query: Query) -> Page:
    """List the records that could not be annotated."""
    reason, page = query.text("error"), query.number("page") or 0
    with opened.index.reading() as index:
        reasons = index.execute(
            "SELECT stage, error, count(*) AS records FROM dead_letters GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2"
        ).fetchall()
        where, values = ("error = ?", (reason,)) if reason else ("1", ())
        [total] = index.execute(f"SELECT count(*) FROM dead_letters WHERE {where}", values).fetchone()
        rows = index.execute(
            f"SELECT * FROM dead_letters WHERE {where} ORDER BY id LIMIT ? OFFSET ?",
            (*values, PAGE_ROWS, page * PAGE_ROWS),
        ).fetchall()
    shown = {"rows": rows, "reasons": reasons, "reason": reason, "paging": Paging(page, total, PAGE_ROWS)}
    return Page("dead_letters.html.j2", shown)


def letters_of(index: sqlite3.Connection, doc_id: str) -> list[sqlite3.Row]:
    """Return the dead letters of a document."""
    return index.execute("SELECT * FROM dead_letters WHERE doc_id = ? ORDER BY id", (doc_id,)).fetchall()


def _band(query: Query) -> int | None:
    number = query.number("band")
    return number if number is not None and number <= len(BANDS) else None
