"""The pages of corrections: all places of some words, the log, and what stage two would move."""

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from concord.pipeline.corrections.correction import Correction
from concord.pipeline.corrections.fitting import Place, find_places
from concord.workflows.corrections.corrections import NO_DOCUMENT, fit_statuses
from concord.workflows.view.correcting.correction_log import Change, Correcting, LogState
from concord.workflows.view.correcting.current_document import CurrentDocument
from concord.workflows.view.correcting.ripple import Moves
from concord.workflows.view.index.finding import PAGE_ROWS, all_labels, documents_with, find_document
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.page import NotFoundError, Page, Paging, Query

LISTED = 500
"""Places that are listed at once; once they are confirmed, the list has the next ones."""
_CONTEXT = 60


class ListedPlace(NamedTuple):
    """A place with the text around it, and the value that asks for its change."""

    doc_id: str
    title: str
    sent_id: int
    left: str
    match: str
    right: str
    labels: tuple[str, ...]
    change: str


def everywhere(opened: OpenedCollection, correcting: Correcting, query: Query) -> Page:
    """List all places of some words that are not yet what a person wants, to be confirmed."""
    surface, label, doc_id = query.text("text").strip(), query.text("label"), query.text("id")
    state = correcting.state()
    places: list[ListedPlace] = []
    unread: list[str] = []
    is_cut = False
    with opened.index.reading() as index:
        labels = all_labels(index)
        for number in _documents(index, surface, doc_id):
            listed = index.execute("SELECT * FROM documents WHERE id = ?", (number,)).fetchone()
            document = correcting.read(index, listed, state)
            if isinstance(document, str):
                unread.append(document)
                continue
            places += _places(document, listed["title"] or listed["doc_id"], surface, label or None)
            if len(places) > LISTED:
                is_cut = True
                break
    values = {
        "text": surface,
        "label": label,
        "doc_id": doc_id,
        "places": places[:LISTED],
        "is_cut": is_cut,
        "unread": unread,
        "labels": sorted({*labels, label} - {""}),
        "seen": len(state.lines),
    }
    return Page("everywhere.html.j2", values)


def corrections(opened: OpenedCollection, correcting: Correcting, query: Query) -> Page:
    """List the log, the newest line first."""
    state = correcting.state()
    lines = [line for line in reversed(state.lines) if line.action != "undo"]
    doc_id, page = query.text("id"), query.number("page") or 0
    if doc_id:
        lines = [line for line in lines if line.doc_id == doc_id]
    shown = lines[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
    with opened.index.reading() as index:
        values = {
            "rows": [(line, line.description, line in state.current.get(line.doc_id, ())) for line in shown],
            "reasons": _reasons(index, correcting, state, shown),
            "paging": Paging(page, len(lines), PAGE_ROWS),
            "doc_id": doc_id,
            "labels": all_labels(index),
        }
    return Page("corrections.html.j2", values)


def moves(opened: OpenedCollection, correcting: Correcting, found: Moves, query: Query) -> Page:
    """Show what stage two would find differently in the rest of a document, to be accepted."""
    doc_id = query.text("id")
    state = correcting.state()
    with opened.index.reading() as index:
        listed = find_document(index, doc_id)
        if listed is None:
            raise NotFoundError(f"there is no document {doc_id!r}")
        document = correcting.read(index, listed, state)
        labels = all_labels(index)
        if isinstance(document, str):
            raise NotFoundError(document)
        obstacle, changes = found.find(index, listed, document)
    values = {
        "listed": listed,
        "doc_id": doc_id,
        "obstacle": obstacle,
        "places": [_listed_place(document, listed["title"] or doc_id, place, label) for place, label in changes],
        "labels": labels,
        "seen": len(state.lines),
    }
    return Page("moves.html.j2", values)


def _documents(index: sqlite3.Connection, surface: str, doc_id: str) -> list[int]:
    """Return the numbers of the documents in which some words may occur."""
    if not doc_id:
        return documents_with(index, surface)
    listed = find_document(index, doc_id)
    if listed is None:
        raise NotFoundError(f"there is no document {doc_id!r}")
    return [listed["id"]]


def _places(document: CurrentDocument, title: str, surface: str, label: str | None) -> Iterator[ListedPlace]:
    for found in find_places(document.row.doc_id, document.text, (), surface):
        place = document.place(found.start, found.end)
        # Who wants no entity has nothing to change where there is none.
        if document.holds(place) and (label or place.found) and not document.is_corrected(place, label):
            yield _listed_place(document, title, place, label)


def _listed_place(document: CurrentDocument, title: str, place: Place, label: str | None) -> ListedPlace:
    text = document.text
    return ListedPlace(
        doc_id=place.doc_id,
        title=title,
        sent_id=document.sentence_of(place.start),
        left=text[max(0, place.start - _CONTEXT) : place.start],
        match=text[place.start : place.end],
        right=text[place.end : place.end + _CONTEXT],
        labels=tuple(dict.fromkeys(mark.type for mark in place.found)),
        change=Change(place.doc_id, place.start, place.end, label).encoded,
    )


def _reasons(
    index: sqlite3.Connection, correcting: Correcting, state: LogState, lines: list[Correction]
) -> dict[str, str]:
    """Return why corrections do not count, by id."""
    reasons: dict[str, str] = {}
    for doc_id in {line.doc_id for line in lines if line in state.current.get(line.doc_id, ())}:
        listed = find_document(index, doc_id)
        document = NO_DOCUMENT if listed is None else correcting.read(index, listed, state)
        if isinstance(document, str):
            reasons |= {line.id: document for line in state.current[doc_id]}
            continue
        statuses = fit_statuses(document.corrections, document.fit, "waiting")
        reasons |= {number: status.reason for number, status in statuses.items() if status.reason}
    return reasons


def card(document: CurrentDocument | str, state: LogState, *, doc_id: str, who: str | None, at: str) -> dict[str, Any]:
    """Return what the reading page shows of corrections: the chosen words, and the log of the document.

    Args:
        who: whose last step can be undone.
        at: the offsets of the chosen words, as in ``15-21``; empty without.
    """
    current = state.current.get(doc_id, ())
    values: dict[str, Any] = {
        "seen": len(state.lines),
        "log": [(line, line.description) for line in reversed(current)][:PAGE_ROWS],
        "logged": len(current),
        "last": next((line.id for line in reversed(current) if line.who == who), ""),
        "chosen": None,
    }
    start, _, end = at.partition("-")
    if isinstance(document, CurrentDocument) and start.isdecimal() and end.isdecimal() and len(at) < 24:
        place = document.place(int(start), int(end))
        if place.start < place.end <= len(document.text):
            surface = document.text[place.start : place.end]
            values["chosen"] = (place, surface, place.found[0].type if place.found else "")
    return values
