"""The tagger that annotated the viewed collection, loaded when it is first asked, with its last answers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from concord.models.errors import ConcordError
from concord.models.outputs import AttentionMap
from concord.models.terms.term_matcher import TermMatcher
from concord.pipeline.corrections.correction import Mark
from concord.pipeline.output.collection import Collection
from concord.pipeline.output.document_rows import CollectedDocument, DocumentRow
from concord.pipeline.plan import Plan
from concord.workflows.corrections.ripple import find_moves, tagged_sentences
from concord.workflows.view.correcting.current_document import CurrentDocument
from concord.workflows.view.page import UnavailableError

if TYPE_CHECKING:
    # Most collections are read without asking the tagger, and torch takes seconds to import.
    from concord.models.tagger import Tagger

MAX_WORDS = 3000
"""Words of a document whose attention is computed: the number of weights grows with the square."""
_KEPT = 4

AnswerT = TypeVar("AnswerT")
Loaded: TypeAlias = tuple["Tagger", TermMatcher | None]


class CollectionTagger:
    """The tagger of a collection with its list of terms, which answers one request at a time."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._loaded: tuple[object, Loaded] | None = None
        self._attention: dict[tuple[Any, ...], Sequence[Mapping[str, AttentionMap]]] = {}
        self._ripples: dict[tuple[Any, ...], Sequence[tuple[Mark | None, Mark | None]]] = {}

    def load(self, plan: Plan) -> Loaded:
        """Return the tagger of a plan; UnavailableError if it cannot be loaded, and the next call tries again."""
        key = plan.tagger, plan.tagger_folder, plan.config.tagger
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

        def ask() -> Sequence[Mapping[str, AttentionMap]]:
            tagger, _ = self.load(collection.plan)
            return list(tagger.attention_maps(tagged_sentences(document)))

        with self._lock:
            maps = _remember(self._attention, _key(collection, document.row), ask)
        if not any("memory" in names for names in maps):
            raise UnavailableError("The tagger of this collection has no document memory.")
        return maps

    def ripple(
        self, collection: Collection, document: CurrentDocument, read: Callable[[], CollectedDocument]
    ) -> Sequence[tuple[Mark | None, Mark | None]]:
        """Return the entities that change elsewhere in a document if its corrections are certain: old and new mark.

        Args:
            read: reads the document with all columns, which is needed only for an answer that is not kept.

        Raises:
            UnavailableError: when nothing is corrected, or the tagger cannot be loaded or has no second stage.
        """
        if not document.corrections:
            raise UnavailableError("Nothing is corrected in this document yet.")

        def ask() -> Sequence[tuple[Mark | None, Mark | None]]:
            tagger, terms = self.load(collection.plan)
            if tagger.threshold is None:
                raise UnavailableError("The tagger has one stage: what it finds does not depend on corrections.")
            options = collection.plan.config.tagger
            return find_moves(tagger, read(), document.text, document.corrections, options=options, terms=terms)

        key = *_key(collection, document.row), *(correction.id for correction in document.corrections)
        with self._lock:
            return _remember(self._ripples, key, ask)


def _key(collection: Collection, row: DocumentRow) -> tuple[Any, ...]:
    return collection.manifest.plan, collection.manifest.generation, row.doc_id, row.text_sha256


def _remember(answers: dict[tuple[Any, ...], AnswerT], key: tuple[Any, ...], ask: Callable[[], AnswerT]) -> AnswerT:
    """Return the answer for a key, computed if it is none of the last ones."""
    if key not in answers:
        answers[key] = ask()
        while len(answers) > _KEPT:
            del answers[next(iter(answers))]
    return answers[key]


def _load(plan: Plan) -> Loaded:
    from concord.models.checkpoint import load_tagger
    from concord.models.saved_tagger import tagger_digest
    from concord.pipeline.corpora.read_terms import read_terms_for

    folder = Path(plan.tagger_folder)
    try:
        if tagger_digest(folder) != plan.tagger.digest:
            raise UnavailableError(f"The tagger of this collection is not at {folder} any more: another one is.")
        # The device of the run may be one that this machine lacks.
        tagger = load_tagger(folder, device="auto")
        return tagger, read_terms_for(tagger, plan.config.tagger.terms, digest=plan.tagger.terms)
    except UnavailableError:
        raise
    except ConcordError as error:
        raise UnavailableError(f"The tagger of this collection cannot be loaded: {error}") from None
