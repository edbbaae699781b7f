"""The tagger that annotated the collection which is viewed, loaded when it is first asked."""

from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, TypeAlias

from concord.models.errors import ConcordError
from concord.models.terms.term_matcher import TermMatcher
from concord.pipeline.plan import Plan

if TYPE_CHECKING:
    # Most collections are read without asking the tagger, and torch takes seconds to import.
    from concord.models.tagger import Tagger

Loaded: TypeAlias = tuple["Tagger", TermMatcher | None]


class OwnTagger:
    """The tagger of a collection with its list of terms. Hold ``lock`` while it works: it answers one at a time."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self.lock = RLock()
        self._loaded: tuple[object, Loaded] | None = None

    def load(self, plan: Plan) -> Loaded | str:
        """Return the tagger of a plan, or why it cannot be loaded; the next call then tries again."""
        key = plan.tagger, plan.tagger_folder, plan.config.tagger
        with self.lock:
            if self._loaded is None or self._loaded[0] != key:
                loaded = _load(plan)
                if isinstance(loaded, str):
                    return loaded
                self._loaded = key, loaded
            return self._loaded[1]


def _load(plan: Plan) -> Loaded | str:
    from concord.models.checkpoint import load_tagger
    from concord.models.saved_tagger import tagger_digest
    from concord.pipeline.corpora.read_terms import read_terms_for

    folder = Path(plan.tagger_folder)
    try:
        if tagger_digest(folder) != plan.tagger.digest:
            return f"The tagger of this collection is not at {folder} any more: another one is."
        # The device of the run may be one that this machine lacks.
        tagger = load_tagger(folder, device="auto")
        return tagger, read_terms_for(tagger, plan.config.tagger.terms, digest=plan.tagger.terms)
    except ConcordError as error:
        return f"The tagger of this collection cannot be loaded: {error}"
