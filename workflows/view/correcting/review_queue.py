"""The sentences of the viewed collection to review, which a thread selects while the page is loaded again."""

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import Lock, Thread
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from concord.models.errors import ConcordError
from concord.pipeline.corrections.correction import read_log_of
from concord.pipeline.exchange.review_queue import QueuedSentence, Quotas, select_sentences
from concord.pipeline.output.collection import Collection, TokenRow, read_collection, whole_sentences
from concord.workflows.view.index.opened import OpenedCollection

ValueT = TypeVar("ValueT")

logger = logging.getLogger(__name__)


class Background(Generic[ValueT]):
    """A value that a thread computes.

    Attributes:
        value: None until it is computed, or if it cannot be.
        fault: why it cannot be computed; empty until then.
    """

    def __init__(self, compute: Callable[[], ValueT], *, failure: str) -> None:
        """Start the thread; ``failure`` begins the message about an unexpected error, as in ``No queue``."""
        self.value: ValueT | None = None
        self.fault = ""
        Thread(target=self._run, args=[compute, failure], name="background", daemon=True).start()

    def _run(self, compute: Callable[[], ValueT], failure: str) -> None:
        try:
            self.value = compute()
        except ConcordError as error:
            self.fault = str(error)
        except Exception as error:
            # Without a fault the page would be loaded again for ever.
            logger.exception(failure)
            self.fault = f"{failure}: {type(error).__name__}: {error}; the terminal of 'concord view' shows where"


QUOTAS = Quotas(size=200, per_document=5, per_type=None, seed=1)
"""Those of ``concord view``; the same as the defaults of ``concord review``."""


class QueueRow(NamedTuple):
    """A sentence of the queue as the list shows it.

    Attributes:
        start, end: of the sentence, its pieces included, in code points of the raw text.
        last: number of its last piece.
        text: its words.
    """

    sentence: QueuedSentence
    start: int
    end: int
    last: int
    text: str


Selection: TypeAlias = Sequence[QueueRow]
"""A queue by rank."""


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
    by_address = {(sentence.doc_id, sentence.sent_id): sentence for sentence in sentences}
    doc_ids = {sentence.doc_id for sentence in sentences}
    rows: list[QueueRow] = []
    for document in read_collection(collection, wanted=doc_ids.__contains__):
        for pieces in whole_sentences(document):
            first, last = pieces[0].row, pieces[-1].row
            queued = by_address.get((document.row.doc_id, first.sent_id))
            if queued is not None:
                text = _text(token for piece in pieces for token in piece.tokens)
                rows.append(QueueRow(queued, first.start_char, last.end_char, last.sent_id, text))
    return sorted(rows, key=lambda row: row.sentence.rank)


def _text(words: Iterable[TokenRow]) -> str:
    """Return words as they follow each other in a text, with single spaces; those of one slice are one."""
    text, end = "", 0
    for word in words:
        if word.start_char >= end:
            text += f"{' ' if text and word.start_char > end else ''}{word.text}"
            end = word.end_char
    return text
