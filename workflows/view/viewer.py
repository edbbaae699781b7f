"""What every page and form of the viewer works with."""

from dataclasses import dataclass

from concord.workflows.view.comparisons import Comparisons
from concord.workflows.view.correcting.collection_tagger import CollectionTagger
from concord.workflows.view.correcting.correction_log import CorrectionLog
from concord.workflows.view.correcting.review_queue import ReviewQueue
from concord.workflows.view.index.opened import OpenedCollection


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
    comparisons: Comparisons
    key: str
    base: str
