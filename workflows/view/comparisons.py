"""Comparisons of the viewed collection, B, with an earlier generation or another collection, A."""

from collections.abc import Iterator
from threading import Lock

from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.diff.diff import Diff, compare_collections
from concord.workflows.view.background import Background
from concord.workflows.view.index.opened import OpenedCollection, Snapshot
from concord.workflows.view.page import NotFoundError

LISTED = 5000
"""Changes of a comparison that are kept, the most certain ones."""
OTHER = "other"
_KEPT = 2


class Comparisons:
    """Makes comparisons in the background; the last two are kept."""

    def __init__(self, opened: OpenedCollection, against: OutputPath | None = None) -> None:
        self.against = against
        self._opened = opened
        self._lock = Lock()
        self._kept: dict[tuple[str, str], Background[Diff]] = {}

    def choices(self) -> Iterator[tuple[str, str]]:
        """Yield the generations that B can be compared with, the newest first: number and number of documents."""
        current = self._opened.snapshot.collection.manifest.generation
        for generation in reversed(self._opened.folder.generations.history()):
            if generation.number != current:
                manifest = generation.manifest()
                yield str(generation.number), str(manifest.annotated + manifest.unchanged)

    def compare(self, choice: str) -> Background[Diff]:
        """Return the comparison with a generation, given by its number, or with the other collection: ``OTHER``.

        Raises:
            NotFoundError: when the choice is neither.
            PlanError: when there is no such generation.
        """
        with self._lock:
            snapshot = self._opened.snapshot
            key = (choice, snapshot.state)
            comparison = self._kept.pop(key, None) or self._start(choice, snapshot)
            self._kept = dict([*self._kept.items(), (key, comparison)][-_KEPT:])
            return comparison

    def _start(self, choice: str, snapshot: Snapshot) -> Background[Diff]:
        first, second = self._open(choice), snapshot.collection
        failure = f"the comparison of generation {snapshot.state.split()[0]} with {choice} failed"
        return Background(lambda: compare_collections(first, second, listed=LISTED), failure=failure)

    def _open(self, choice: str) -> Collection:
        if choice == OTHER and self.against is not None:
            return open_collection(self.against)
        if not choice.isdecimal():
            raise NotFoundError(
                f"expected the number of a generation, got {choice!r}; choose one on the page of changes"
            )
        return open_collection(self._opened.folder, generation=int(choice))
