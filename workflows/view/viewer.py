"""What every page and form of the viewer works with."""

import sqlite3
from dataclasses import dataclass

from concord.workflows.view.correcting.collection_tagger import CollectionTagger
from concord.workflows.view.correcting.correction_log import CorrectionLog, LogState
from concord.workflows.view.correcting.review_queue import ReviewQueue
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.index.search_index import all_labels


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
