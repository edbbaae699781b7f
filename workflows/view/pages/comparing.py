"""The page that shows what differs from an earlier generation, or from another collection."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any

from concord.models.errors import ConcordError
from concord.models.labels import OUTSIDE
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.diff.diff import Diff, compare_opened
from concord.workflows.diff.differences import EntityChange
from concord.workflows.diff.entity_changes import CHANGES
from concord.workflows.diff.page import describe_kind, split_context
from concord.workflows.view.index.finding import PAGE_ROWS, band_name
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.index.search_index import BANDS
from concord.workflows.view.page import NotFoundError, Page, Paging, Query
from concord.workflows.view.pages.text_layout import band
from concord.workflows.view.recent import Recent

LISTED = 5000
"""Changes of a comparison that are kept, the most certain ones."""
OTHER = "other"
_KEPT = 2


@dataclass(slots=True)
class _Comparison:
    """A comparison that is made in the background; ``fault`` says why it could not be."""

    diff: Diff | None = None
    fault: str = ""
    is_done: bool = field(default=False)


class Comparisons:
    """The comparisons of the viewed collection, B, with an A; the last two are kept."""

    def __init__(self, opened: OpenedCollection, against: OutputPath | None = None) -> None:
        """Take the collection, and another one to compare it with."""
        self._opened = opened
        self._against = against
        self._lock = Lock()
        self._made: Recent[tuple[str, str], _Comparison] = Recent(_KEPT)

    def changes(self, query: Query) -> Page:
        """Show what differs, filtered by kind of change, labels and certainty."""
        chosen = query.text("against")
        shown: dict[str, Any] = {"choices": list(self._choices()), "chosen": chosen, "against": self._against}
        if not chosen:
            return Page("changes.html.j2", {**shown, "state": "choose"})
        made = self._make(chosen)
        if not made.is_done:
            return Page("changes.html.j2", {**shown, "state": "working"})
        if made.diff is None:
            return Page("message.html.j2", {"heading": "Not compared", "message": made.fault})
        return Page("changes.html.j2", {**shown, "state": "done", **_found(made.diff, query)})

    def _choices(self) -> Iterator[tuple[str, str]]:
        """Yield the generations that B can be compared with, the newest first: number and number of documents."""
        current = self._opened.snapshot.collection.manifest.generation
        for generation in reversed(OutputFolder(self._opened.output).generations.history()):
            if generation.number != current:
                manifest = generation.manifest()
                yield str(generation.number), str(manifest.annotated + manifest.unchanged)

    def _make(self, chosen: str) -> _Comparison:
        snapshot = self._opened.snapshot
        key = chosen, f"{snapshot.collection.manifest.generation} {len(snapshot.shards)}"
        with self._lock:
            if key not in self._made:
                first = self._open(chosen)
                self._made[key] = made = _Comparison()
                Thread(target=_compare, args=[made, first, snapshot.collection], name="compare", daemon=True).start()
            return self._made[key]

    def _open(self, chosen: str) -> Collection:
        if chosen == OTHER and self._against is not None:
            return open_collection(self._against)
        if not chosen.isdecimal():
            raise NotFoundError(
                f"expected the number of a generation, got {chosen!r}; choose one on the page of changes"
            )
        return open_collection(self._opened.output, generation=int(chosen))


def _compare(made: _Comparison, first: Collection, second: Collection) -> None:
    try:
        made.diff = compare_opened(first, second, listed=LISTED)
    except ConcordError as error:
        made.fault = str(error)
    finally:
        made.fault = made.fault or "the comparison failed; the terminal of 'concord view' says why"
        made.is_done = True


def _found(diff: Diff, query: Query) -> dict[str, Any]:
    kind, first, second, level = query.text("kind"), query.text("a"), query.text("b"), query.number("band")
    changes = diff.differences.changes
    wanted = [
        change
        for change in changes
        if kind in {"", change.kind}
        and first in {"", change.first.label}
        and second in {"", change.second.label}
        and level in {None, band(change.sureness, BANDS)}
    ]
    page = query.number("page") or 0
    return {
        "diff": diff,
        "rows": [_view(change) for change in wanted[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]],
        "paging": Paging(page, len(wanted), PAGE_ROWS),
        "kinds": [(name, describe_kind(name), diff.differences.tally(name).count) for name in CHANGES],
        "bands": [(str(number), band_name(number)) for number in range(len(BANDS) + 1)],
        "labels": _labels(changes),
        "outside": OUTSIDE,
        "total": diff.differences.tally(*CHANGES).count,
        "describe_kind": describe_kind,
    }


def _labels(changes: Sequence[EntityChange]) -> list[str]:
    return sorted({side.label for change in changes for side in (change.first, change.second)} - {OUTSIDE})


def _view(change: EntityChange) -> dict[str, Any]:
    sides = (("A", change.first), ("B", change.second))
    return {"change": change, "sides": [(name, side, split_context(change, side)) for name, side in sides]}
