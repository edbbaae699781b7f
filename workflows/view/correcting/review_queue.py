"""The queue of sentences to review: those that the tagger is least sure of, one after the other."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any

from concord.models.errors import ConcordError
from concord.pipeline.corrections.fitting import Offsets
from concord.pipeline.exchange.review_queue import QueuedSentence, Quotas, select_sentences
from concord.pipeline.output.collection import Collection
from concord.pipeline.output.document_rows import read_collection
from concord.workflows.view.correcting.correction_log import Change, Correcting, LogState
from concord.workflows.view.correcting.current_document import CurrentDocument
from concord.workflows.view.index.finding import PAGE_ROWS
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.page import Page, Paging, Query

logger = logging.getLogger(__name__)

QUOTAS = Quotas(size=200, per_document=5, per_type=None, seed=1)
"""Those of ``concord view``; the same as the defaults of ``concord review``."""


@dataclass(slots=True)
class _Selection:
    """The sentences of one state of the collection, selected in the background; ``fault`` says why they are not."""

    sentences: Sequence[QueuedSentence] = ()
    bounds: Sequence[Offsets] = ()
    fault: str = ""
    is_done: bool = False


class Queue:
    """The queue of the collection as it is; a new generation has a queue of its own."""

    def __init__(self, opened: OpenedCollection, quotas: Quotas) -> None:
        """Take the collection, and how many sentences to select."""
        self._opened = opened
        self._quotas = quotas
        self._lock = Lock()
        self._selection = _Selection()
        self._state = ""

    def page(self, correcting: Correcting, query: Query) -> Page:
        """List the queue with what has been looked at."""
        selection = self._select()
        if not selection.is_done:
            return Page("review.html.j2", {"state": "working"})
        if selection.fault:
            with self._lock:
                if self._selection is selection:
                    self._state = ""  # the next request tries again
            return Page("message.html.j2", {"heading": "No queue", "message": selection.fault})
        looked = _looked_at(correcting.state(), selection.sentences, selection.bounds)
        page = query.number("page") or 0
        following = (one for one, done in zip(selection.sentences, looked, strict=True) if not done)
        values = {
            "state": "done",
            "rows": list(zip(selection.sentences, looked, strict=True))[page * PAGE_ROWS : (page + 1) * PAGE_ROWS],
            "done": sum(looked),
            "total": len(looked),
            "first": next(following, None),
            "paging": Paging(page, len(looked), PAGE_ROWS),
        }
        return Page("review.html.j2", values)

    def at(self, number: int | None, doc_id: str) -> dict[str, Any]:
        """Return what the reading page of a document shows of the queue at a rank: the sentence, and those before and
        after; nothing if the sentence at this rank is in another document, as an old address may have it."""
        selection = self._select() if number is not None else _Selection()
        found = {one.rank: one for one in selection.sentences}
        if number is None or number not in found or found[number].doc_id != doc_id:
            return {"queued": None}
        return {
            "queued": found[number],
            "queue_before": found.get(number - 1),
            "queue_after": found.get(number + 1),
            "queue_total": len(found),
        }

    def _select(self) -> _Selection:
        snapshot = self._opened.snapshot
        state = f"{snapshot.collection.manifest.generation} {len(snapshot.shards)}"
        with self._lock:
            if state != self._state:
                self._state, self._selection = state, _Selection()
                Thread(
                    target=self._fill, args=[self._selection, snapshot.collection], name="queue", daemon=True
                ).start()
            return self._selection

    def _fill(self, selection: _Selection, collection: Collection) -> None:
        try:
            sentences = select_sentences((one for one in read_collection(collection) if one.sentences), self._quotas)
            selection.sentences, selection.bounds = sentences, _bounds(collection, sentences)
        except ConcordError as error:
            selection.fault = str(error)
        except Exception as error:
            # Without a fault the page would show an empty queue.
            logger.exception("the queue of %s cannot be selected", self._opened.output)
            selection.fault = (
                f"The queue cannot be selected: {type(error).__name__}: {error}; the terminal of 'concord view' shows "
                "where"
            )
        finally:
            selection.is_done = True


def sentence_changes(document: CurrentDocument, sent_id: int) -> tuple[list[str], int]:
    """Return the values that accept a sentence as it is, those of its pieces included, and how many entities it has.

    They accept each of its entities; without one they say that this is right.
    """
    if sent_id >= len(document.starts):
        return [], 0
    words = document.words_from(document.starts[sent_id])
    doc_id, start, end = document.row.doc_id, words[0][0], words[-1][1]
    found = document.place(start, end).found
    changes = [Change(doc_id, mark.start, mark.end, mark.type) for mark in found] or [Change(doc_id, start, end, None)]
    return [change.encoded for change in changes], len(found)


def _looked_at(state: LogState, sentences: Sequence[QueuedSentence], bounds: Sequence[Offsets]) -> list[bool]:
    """Return of each sentence whether a person has said something about its words."""
    return [
        any(start <= one.result.start < end for one in state.current.get(sentence.doc_id, ()))
        for sentence, (start, end) in zip(sentences, bounds, strict=True)
    ]


def _bounds(collection: Collection, sentences: Sequence[QueuedSentence]) -> list[Offsets]:
    """Return where each sentence starts and ends, its pieces included."""
    found: dict[tuple[str, int], Offsets] = {}
    wanted = {sentence.doc_id for sentence in sentences}
    for document in read_collection(collection, wanted=wanted.__contains__):
        first = 0
        for row in (sentence.row for sentence in document.sentences):
            first = first if row.continues else row.sent_id
            start = found.get((document.row.doc_id, first), (row.start_char, 0))[0]
            found[document.row.doc_id, first] = start, row.end_char
    return [found[sentence.doc_id, sentence.sent_id] for sentence in sentences]
