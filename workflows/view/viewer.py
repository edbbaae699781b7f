"""What every page and form of the viewer works with: the collection, its index, log, queue and tagger."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from concord.models.data.outputs import AttentionMap
from concord.models.errors import ConcordError
from concord.pipeline.output.collection import CollectedDocument, Collection, tagged_sentences
from concord.pipeline.plan import Plan
from concord.workflows.view.correcting.correction_log import CorrectionLog, LogState
from concord.workflows.view.correcting.review_queue import ReviewQueue
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.index.search_index import all_labels
from concord.workflows.view.page import UnavailableError

if TYPE_CHECKING:
    # Most collections are read without asking the tagger, and torch takes seconds to import.
    from concord.models.taggers.base import Tagger

MAX_WORDS = 3000
"""Words of a document whose attention is computed: the number of weights grows with the square."""
_KEPT = 4


class CollectionTagger:
    """The tagger of a collection, which answers one request at a time."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._loaded: tuple[object, Tagger] | None = None
        self._attention: dict[tuple[Any, ...], Sequence[Mapping[str, AttentionMap]]] = {}

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
            if key not in self._attention:
                self._attention[key] = self.load(collection.plan).attention_maps(tagged_sentences(document))
                while len(self._attention) > _KEPT:
                    del self._attention[next(iter(self._attention))]
            maps = self._attention[key]
        if not any("memory" in names for names in maps):
            raise UnavailableError("The tagger of this collection has no document memory.")
        return maps


def _load(plan: Plan) -> "Tagger":
    from concord.models.bundles.checkpoint import load_tagger
    from concord.models.bundles.manifest import tagger_digest

    folder = Path(plan.tagger_folder)
    try:
        if tagger_digest(folder) != plan.tagger.digest:
            raise UnavailableError(f"The tagger of this collection is not at {folder} any more: another one is.")
        # The device of the run may be one that this machine lacks.
        return load_tagger(folder, device="auto")
    except UnavailableError:
        raise
    except ConcordError as error:
        raise UnavailableError(f"The tagger of this collection cannot be loaded: {error}") from None


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

    def types(self, index: sqlite3.Connection, state: LogState) -> list[str]:
        """Return the entity types of the tables, sorted, and after them those that people have named since."""
        return list(dict.fromkeys([*all_labels(index), *state.types]))
