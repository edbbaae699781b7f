"""The page of the queue: one sentence to review as a card, with the list of all of them."""

import sqlite3
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Any

from concord.models.labels import OUTSIDE
from concord.pipeline.corrections.correction import Correction
from concord.pipeline.output.tables import normalize_name
from concord.workflows.view.correction_log import Change, LogState, with_corrections
from concord.workflows.view.index.opened import read_page
from concord.workflows.view.index.queries import get_document, names_of_document
from concord.workflows.view.index.search_index import PAGE_ROWS
from concord.workflows.view.page import Page, Query, UnavailableError
from concord.workflows.view.pages.correcting import choose
from concord.workflows.view.pages.text_layout import NO_ENTITY, KnownNames, label_name, lay_out
from concord.workflows.view.viewer import QueueRow, Viewer


def review(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """Show a sentence of the queue, by default the first that nobody has said anything about, and list the others."""
    queue = viewer.queue.rows()
    if queue is None:
        return Page("review.html.j2", {"state": "working"})
    state = viewer.log.state()
    rows = [row._replace(state=_state_of(state, row)) for row in queue]
    open_ranks = [row.sentence.rank for row in rows if not row.state]
    rank = query.number("rank") or next(iter(open_ranks), 0)
    row = rows[rank - 1] if 0 < rank <= len(rows) else None
    start = (rank - 1) // PAGE_ROWS * PAGE_ROWS if row else 0
    last = state.last_step(viewer.log.who, state.lines)
    values = {
        "state": "done",
        "rows": rows[start : start + PAGE_ROWS],
        "row": row,
        "before": rank - 1 if row else 0,
        "after": next((number for number in open_ranks if number > rank), 0),
        "done": len(rows) - len(open_ranks),
        "total": len(rows),
        "today": state.steps_today(viewer.log.who),
        "fetches": viewer.log.who is not None,
        **({} if row is None else _card_values(viewer, index, query, state, row)),
        "last": last,
        "last_rank": next((row.sentence.rank for row in queue if last and _is_about(last, row)), 0),
    }
    return Page("review.html.j2", values)


def _card_values(
    viewer: Viewer, index: sqlite3.Connection, query: Query, state: LogState, row: QueueRow
) -> Mapping[str, Any]:
    sentence = row.sentence
    current, fault, asked = None, "", ""
    document = get_document(index, sentence.doc_id)
    page = read_page(viewer.opened, index, document, only=(sentence.sent_id - 1, row.last + 1))
    text = normalize_name(page.slice(*page.bounds))
    names = {name.name: ", ".join(name.labels) for name in names_of_document(index, document.id, within=text)}
    try:
        current = viewer.log.read(index, document, state)
    except UnavailableError as error:
        fault = str(error)
    chosen, label, accepts = None, sentence.type, list[Change]()
    if current is not None:
        page = with_corrections(page, current)
        asked = current.text[sentence.asked_start : sentence.asked_end]
        entities = current.place(sentence.asked_start, sentence.asked_end).found
        label = entities[0].type if entities else OUTSIDE
        marks = current.place(row.start, row.end).found
        accepts = [Change(sentence.doc_id, mark.start, mark.end, mark.type) for mark in marks]
        chosen = choose(current, query.text("at") or f"{sentence.asked_start}-{sentence.asked_end}")
    words = Change(sentence.doc_id, row.start, row.end, None)
    known = KnownNames(names, asked=(sentence.asked_start, sentence.asked_end))
    card = {
        # The words whose label is the least certain, and this label.
        "asked": asked,
        "label": label_name(label),
        "why": sentence.reason.replace(f"{OUTSIDE} ", f"{NO_ENTITY} ", sentence.reason.startswith(f"{OUTSIDE} ")),
        "sentences": list(chain.from_iterable(lay_out(page, known, tree=None))),
        "accepts": [change.encoded for change in accepts or [words]],
        "entities": len(accepts),
        # The whole sentence, for a flag.
        "words": words,
    }
    return {
        "card": card,
        "document": document,
        "chosen": chosen,
        "name": "",
        "here": partial(query.link, rank=sentence.rank, at=None, save=None),
        "back": query.link(rank=sentence.rank, save=None),
        "asked": sentence.asked_start,
        "fault_of_text": fault,
        "can_correct": viewer.log.who is not None and current is not None and not query.text("save"),
        "seen": len(state.lines),
    }


def _state_of(state: LogState, row: QueueRow) -> str:
    """Return what people did about a sentence: flagged, done, or nothing yet."""
    doc_id = row.sentence.doc_id
    if any(_is_about(flag, row) for flag in state.flags.get(doc_id, ())):
        return "flagged"
    return "done" if any(_is_about(correction, row) for correction in state.current.get(doc_id, ())) else ""


def _is_about(line: Correction, row: QueueRow) -> bool:
    return line.doc_id == row.sentence.doc_id and row.start <= line.result.start < row.end
