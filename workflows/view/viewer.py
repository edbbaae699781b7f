"""What every page and form of the viewer works with: the collection, its index, log, queue and tagger."""

import logging
import sqlite3
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Lock, RLock, Thread
from typing import TYPE_CHECKING, NamedTuple

from concord.models.data.outputs import AttentionMap
from concord.models.errors import ConcordError
from concord.pipeline.corrections.correction import read_log_of
from concord.pipeline.exchange.review_queue import QueuedSentence, Quotas, select_sentences
from concord.pipeline.output.collection import (
    CollectedDocument,
    Collection,
    read_collection,
    spaced_text,
    tagged_sentences,
    whole_sentences,
)
from concord.pipeline.plan import Plan
from concord.workflows.view.correction_log import CorrectionLog
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.index.search_index import all_labels
from concord.workflows.view.page import UnavailableError

if TYPE_CHECKING:
    # Most collections are read without asking the tagger, and torch takes seconds to import.
    from concord.models.taggers.base import Tagger

logger = logging.getLogger(__name__)

QUOTAS = Quotas(size=200, per_document=5, per_type=None, seed=1)
"""Those of ``concord view``; the same as the defaults of ``concord review``."""
MAX_WORDS = 3000
"""Words of a document whose attention is computed: the number of weights grows with the square."""


class QueueRow(NamedTuple):
    """A sentence of the queue as the list shows it.

    Attributes:
        start, end: of the sentence, its pieces included, in code points of the raw text.
        last: number of its last piece.
        text: its words.
        state: what people did: ``done``, ``flagged`` or nothing yet.
    """

    sentence: QueuedSentence
    start: int
    end: int
    last: int
    text: str
    state: str = ""


class ReviewQueue:
    """The queue of the collection as it is, selected in the background; a new generation has a queue of its own."""

    def __init__(self, opened: OpenedCollection, quotas: Quotas) -> None:
        self._opened = opened
        self._quotas = quotas
        self._lock = Lock()
        self._selected: tuple[Collection, Future[Sequence[QueueRow]]] | None = None

    def rows(self) -> Sequence[QueueRow] | None:
        """Return the sentences by rank; None while they are being selected.

        Raises:
            UnavailableError: when they cannot be selected; the next call tries again.
        """
        collection = self._opened.collection
        with self._lock:
            if self._selected is None or self._selected[0] is not collection:
                self._selected = collection, Future()
                Thread(target=self._select, args=self._selected, name="queue", daemon=True).start()
            selected = self._selected[1]
            if not selected.done():
                return None
            if selected.exception() is not None:
                self._selected = None
        return selected.result()

    def _select(self, collection: Collection, selected: Future[Sequence[QueueRow]]) -> None:
        try:
            selected.set_result(_select(collection, self._quotas))
        except ConcordError as error:
            selected.set_exception(error)
        except Exception as error:
            # Without a fault the page would be loaded again for ever.
            logger.exception("The queue cannot be selected")
            reason = f"{type(error).__name__}: {error}; the terminal of 'concord view' shows where"
            selected.set_exception(UnavailableError(f"The queue cannot be selected: {reason}"))


def _select(collection: Collection, quotas: Quotas) -> Sequence[QueueRow]:
    documents = (document for document in read_collection(collection) if document.sentences)
    sentences = select_sentences(documents, quotas, log=read_log_of(collection.output))
    by_address = {(sentence.doc_id, sentence.sent_id): sentence for sentence in sentences}
    doc_ids = {sentence.doc_id for sentence in sentences}
    rows: list[QueueRow] = []
    for document in read_collection(collection, wanted=doc_ids.__contains__):
        for pieces in whole_sentences(document):
            first, last = pieces[0], pieces[-1]
            queued = by_address.get((document.row.doc_id, first.sent_id))
            if queued is not None:
                text = spaced_text(chain.from_iterable(piece.tokens for piece in pieces))
                rows.append(QueueRow(queued, first.start_char, last.end_char, last.sent_id, text))
    return sorted(rows, key=lambda row: row.sentence.rank)


class CollectionTagger:
    """The tagger of a collection, which answers one request at a time."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._loaded: tuple[object, Tagger] | None = None
        self._attention: tuple[object, Sequence[Mapping[str, AttentionMap]]] = (None, ())

    def load(self, plan: Plan) -> "Tagger":
        """Return the tagger of a plan; UnavailableError if it cannot be loaded, and the next call tries again."""
        key = plan.tagger.digest, plan.tagger_folder
        with self._lock:
            if self._loaded is None or self._loaded[0] != key:
                self._loaded = key, _load(plan)
            return self._loaded[1]

    def attention_maps(
        self, collection: Collection, document: CollectedDocument
    ) -> Sequence[Mapping[str, AttentionMap]]:
        """Return the attention maps of each sentence.

        Raises:
            UnavailableError: when the document is too long, or the tagger cannot be loaded or has no document memory.
        """
        if document.row.n_tokens > MAX_WORDS:
            raise UnavailableError(f"The weights of documents of more than {MAX_WORDS:,} words are not computed.")
        manifest, row = collection.manifest, document.row
        key = manifest.plan, manifest.generation, row.doc_id, row.text_sha256
        with self._lock:
            if key != self._attention[0]:
                self._attention = key, self.load(collection.plan).attention_maps(tagged_sentences(document))
            maps = self._attention[1]
        if not any("memory" in names for names in maps):
            raise UnavailableError("The tagger of this collection has no document memory.")
        return maps


def _load(plan: Plan) -> "Tagger":
    from concord.models.bundles.checkpoint import load_tagger
    from concord.models.bundles.manifest import tagger_digest

    folder = Path(plan.tagger_folder)
    try:
        if tagger_digest(folder) == plan.tagger.digest:
            # The device of the run may be one that this machine lacks.
            return load_tagger(folder, device="auto")
    except ConcordError as error:
        raise UnavailableError(f"The tagger of this collection cannot be loaded: {error}") from None
    raise UnavailableError(f"The tagger of this collection is not at {folder} any more: another one is.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Viewer:
    """A collection that is viewed.

    Attributes:
        key: what the forms of its pages must contain.
        base: the path below which browsers see the pages; empty for none.
    """

    opened: OpenedCollection
    log: CorrectionLog
    queue: ReviewQueue
    tagger: CollectionTagger
    key: str
    base: str

    def types(self, index: sqlite3.Connection) -> list[str]:
        """Return the entity types of the tables, sorted, and after them those that people have named since."""
        state, _ = self.log.readable_state()  # the pages of documents say what is wrong with the log
        return list(dict.fromkeys([*all_labels(index), *state.types]))
