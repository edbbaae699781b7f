"""The queue of sentences to review: those that the tagger is least sure of, one after the other."""

from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from concord.pipeline.corrections.fitting import Offsets
from concord.pipeline.corrections.log import read_log_of
from concord.pipeline.exchange.review_queue import QueuedSentence, Quotas, select_sentences
from concord.pipeline.output.collection import Collection
from concord.pipeline.output.document_rows import read_collection
from concord.workflows.view.background import Background
from concord.workflows.view.index.opened import OpenedCollection

QUOTAS = Quotas(size=200, per_document=5, per_type=None, seed=1)
"""Those of ``concord view``; the same as the defaults of ``concord review``."""


class Selection(NamedTuple):
    """The sentences of a queue by rank, and where each starts and ends, its pieces included."""

    sentences: Sequence[QueuedSentence]
    bounds: Sequence[Offsets]


class ReviewQueue:
    """The queue of the collection as it is, selected in the background; a new generation has a queue of its own."""

    def __init__(self, opened: OpenedCollection, quotas: Quotas) -> None:
        self._opened = opened
        self._quotas = quotas
        self._lock = Lock()
        self._selection: tuple[str, Background[Selection]] | None = None

    def select(self) -> Background[Selection]:
        """Return the selection for the collection as it is."""
        snapshot = self._opened.snapshot
        with self._lock:
            if self._selection is None or self._selection[0] != snapshot.state:
                failure = "The queue cannot be selected"
                selection = Background(lambda: _select(snapshot.collection, self._quotas), failure=failure)
                self._selection = snapshot.state, selection
            return self._selection[1]

    def forget(self, selection: Background[Selection]) -> None:
        """Forget a selection that failed, so that the next request tries again."""
        with self._lock:
            if self._selection is not None and self._selection[1] is selection:
                self._selection = None


def _select(collection: Collection, quotas: Quotas) -> Selection:
    documents = (document for document in read_collection(collection) if document.sentences)
    sentences = select_sentences(documents, quotas, log=read_log_of(collection.output))
    return Selection(sentences, _bounds(collection, sentences))


def _bounds(collection: Collection, sentences: Sequence[QueuedSentence]) -> list[Offsets]:
    """Return where each sentence starts and ends, its pieces included."""
    bounds: dict[tuple[str, int], Offsets] = {}
    doc_ids = {sentence.doc_id for sentence in sentences}
    for document in read_collection(collection, wanted=doc_ids.__contains__):
        first = 0
        for row in (sentence.row for sentence in document.sentences):
            first = first if row.continues else row.sent_id
            start, _ = bounds.get((document.row.doc_id, first), (row.start_char, 0))
            bounds[document.row.doc_id, first] = start, row.end_char
    return [bounds[sentence.doc_id, sentence.sent_id] for sentence in sentences]
