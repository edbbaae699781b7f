"""The page of the queue of sentences to review, and what the reading page shows of the queue."""

from collections.abc import Iterator, Mapping
from typing import Any

from concord.workflows.view.correcting.correction_log import Change, LogState
from concord.workflows.view.correcting.current_document import CurrentDocument
from concord.workflows.view.correcting.review_queue import Selection
from concord.workflows.view.index.finding import PAGE_ROWS
from concord.workflows.view.page import Page, Paging, Query
from concord.workflows.view.viewer import Viewer


def review(viewer: Viewer, query: Query) -> Page:
    """List the queue with what has been looked at."""
    selection = viewer.queue.select()
    if selection.fault:
        viewer.queue.forget(selection)
        return Page("message.html.j2", {"heading": "No queue", "message": selection.fault})
    if selection.value is None:
        return Page("review.html.j2", {"state": "working"})
    reviewed = list(_reviewed(viewer.log.state(), selection.value))
    rows = list(zip(selection.value.sentences, reviewed, strict=True))
    page = query.number("page") or 0
    values = {
        "state": "done",
        "rows": rows[page * PAGE_ROWS : (page + 1) * PAGE_ROWS],
        "done": sum(reviewed),
        "total": len(rows),
        "first": next((sentence for sentence, is_reviewed in rows if not is_reviewed), None),
        "paging": Paging(page, len(rows), PAGE_ROWS),
    }
    return Page("review.html.j2", values)


def queue_values(viewer: Viewer, rank: int | None, doc_id: str, document: CurrentDocument | None) -> Mapping[str, Any]:
    """Return what the reading page of a document shows of the queue at a rank: the sentence, and its neighbours.

    Nothing is shown if the sentence at this rank is in another document, as an old address may have it.
    """
    selection = None if rank is None else viewer.queue.select().value
    sentences = {} if selection is None else {sentence.rank: sentence for sentence in selection.sentences}
    if rank is None or rank not in sentences or sentences[rank].doc_id != doc_id:
        return {"queued": None}
    changes, entities = ([], 0) if document is None else _acceptance(document, sentences[rank].sent_id)
    return {
        "queued": sentences[rank],
        "queue_before": sentences.get(rank - 1),
        "queue_after": sentences.get(rank + 1),
        "queue_total": len(sentences),
        "accepts": [change.encoded for change in changes],
        "sentence_entities": entities,
    }


def _acceptance(document: CurrentDocument, sent_id: int) -> tuple[list[Change], int]:
    """Return the changes that accept a sentence as it is, its pieces included, and how many entities it has.

    They accept each of its entities; without one they say that this is right.
    """
    if sent_id >= len(document.starts):
        return [], 0
    words = document.words_from(document.starts[sent_id])
    doc_id, start, end = document.row.doc_id, words[0][0], words[-1][1]
    marks = document.place(start, end).found
    changes = [Change(doc_id, mark.start, mark.end, mark.type) for mark in marks]
    return changes or [Change(doc_id, start, end, None)], len(marks)


def _reviewed(state: LogState, selection: Selection) -> Iterator[bool]:
    """Yield for each sentence whether a person has corrected or accepted something in it."""
    for sentence, (start, end) in zip(*selection, strict=True):
        corrections = state.current.get(sentence.doc_id, ())
        yield any(start <= correction.result.start < end for correction in corrections)
