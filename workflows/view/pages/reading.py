"""The page on which a document is read."""

import sqlite3
from collections import Counter
from typing import Any

from concord.models.errors import ConcordError
from concord.pipeline.output.tables import normalize_name
from concord.workflows.view.correcting.correction_log import Correcting, LogState
from concord.workflows.view.correcting.current_document import CurrentDocument, with_corrections
from concord.workflows.view.correcting.review_queue import Queue, sentence_changes
from concord.workflows.view.index.document import read_page
from concord.workflows.view.index.finding import (
    Line,
    all_labels,
    find_document,
    names_of_document,
    neighbours,
    places_of_name,
    search,
)
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.page import NotFoundError, Page, Query
from concord.workflows.view.pages.correcting import card
from concord.workflows.view.pages.finding import letters_of
from concord.workflows.view.pages.text_layout import STRENGTHS, UNCERTAIN, KnownNames, lay_out

SHOWN_NAMES = 40


def document(opened: OpenedCollection, correcting: Correcting, query: Query, *, queue: Queue) -> Page:
    """Show a page of a document with its corrections; of one that could not be annotated, its dead letters."""
    doc_id, name = query.text("id"), query.text("name")
    with opened.index.reading() as index:
        listed = find_document(index, doc_id)
        letters = letters_of(index, doc_id)
        if listed is None:
            if not letters:
                raise NotFoundError(f"there is no document {doc_id!r}")
            return Page("dead_document.html.j2", {"doc_id": doc_id, "letters": letters})
        tree = query.number("tree")
        page = read_page(
            opened,
            index,
            listed,
            page=query.number("page"),
            sentence=query.number("sentence"),
            trees=tree is not None,
        )
        state, log_fault = _state(correcting)
        current: CurrentDocument | str = ""
        if page.text is not None and (correcting.who or state.by_document.get(doc_id)):
            current = correcting.read(index, listed, state)
        if isinstance(current, CurrentDocument):
            page = with_corrections(page, current)
        names = names_of_document(index, listed["id"])
        known = KnownNames(
            {row["name"]: f"{row['labels'].replace(',', ', ')} ({row['entities']})" for row in names}
            | _corrected_names(current)
        )
        before, after = neighbours(index, listed["rank"])
        values: dict[str, Any] = {
            "listed": listed,
            "page": page,
            "paragraphs": lay_out(page, known, tree=tree),
            "names": names[:SHOWN_NAMES],
            "more_names": len(names) - SHOWN_NAMES,
            "name": name,
            "tree": tree,
            "before": before,
            "after": after,
            "labels": all_labels(index),
            "letters": letters,
            "uncertain": UNCERTAIN,
            "strengths": STRENGTHS,
            "can_correct": isinstance(current, CurrentDocument) and correcting.who and not query.text("save"),
            "fetches": correcting.who is not None,
            "log_fault": log_fault,
            "at": query.text("at"),
            **queue.at(query.number("queue"), doc_id),
            **card(current, state, doc_id=doc_id, who=correcting.who, at=query.text("at")),
        }
        if values["queued"] is not None and isinstance(current, CurrentDocument):
            values["accepts"], values["found"] = sentence_changes(current, values["queued"].sent_id)
        if name:
            values["places"], values["count"] = places_of_name(index, name, document=listed["id"])
            values["unlabelled"] = _unlabelled(index, name, listed["id"])
    return Page("document.html.j2", values)


def _state(correcting: Correcting) -> tuple[LogState, str]:
    """Return the log, or an empty one with the reason why it cannot be read."""
    try:
        return correcting.state(), ""
    except ConcordError as error:
        return LogState.of(()), str(error)


def _corrected_names(current: CurrentDocument | str) -> dict[str, str]:
    """Return the names that people have labelled in the document, with what they are there."""
    if isinstance(current, str):
        return {}
    marks = (one.new for one in current.fit.corrections if one.new is not None)
    return {normalize_name(mark.text): f"{mark.type} (corrected)" for mark in marks}


def _unlabelled(index: sqlite3.Connection, name: str, document: int) -> list[Line]:
    """Return the places of a name in a document that are in no entity, as far as the sentences can be searched."""
    within: Counter[int] = Counter()
    for sent_id, longer in index.execute(
        "SELECT sent_id, name FROM entities WHERE document = ? AND instr(name, ?)", (document, name)
    ):
        within[sent_id] += longer.count(name)
    found: list[Line] = []
    for line in search(index, name, column="forms", document=document, page=0)[0]:
        if line.match != name:
            continue
        if within[line.sent_id]:
            within[line.sent_id] -= 1
        else:
            found.append(line)
    return found
