"""The page that shows what differs from an earlier generation, or from another collection."""

from collections.abc import Mapping
from typing import Any

from concord.models.labels.spans import OUTSIDE
from concord.workflows.diff.diff import Diff
from concord.workflows.diff.entity_changes import CHANGES
from concord.workflows.diff.page import KINDS, show_change
from concord.workflows.view.index.search_index import BANDS, PAGE_ROWS, all_labels, band_name
from concord.workflows.view.page import Page, Paging, Query
from concord.workflows.view.pages.text_layout import band
from concord.workflows.view.viewer import Viewer


def changes(viewer: Viewer, query: Query) -> Page:
    """Show what differs, filtered by kind of change, labels and certainty."""
    comparisons, choice = viewer.comparisons, query.text("against")
    values = {"choices": list(comparisons.choices()), "choice": choice, "against": comparisons.against}
    if not choice:
        return Page("changes.html.j2", {**values, "state": "choose"})
    comparison = comparisons.compare(choice)
    if comparison.fault:
        return Page("message.html.j2", {"heading": "Not compared", "message": comparison.fault})
    if comparison.value is None:
        return Page("changes.html.j2", {**values, "state": "working"})
    return Page("changes.html.j2", {**values, "state": "done", **_diff_values(viewer, comparison.value, query)})


def _diff_values(viewer: Viewer, diff: Diff, query: Query) -> Mapping[str, Any]:
    kind, first, second, level = query.text("kind"), query.text("a"), query.text("b"), query.number("band")
    changes = diff.differences.changes
    with viewer.opened.index.reading() as index:
        labels = all_labels(index)
    rows = [
        change
        for change in changes
        if kind in {"", change.kind}
        and first in {"", change.first.label}
        and second in {"", change.second.label}
        and (level is None or (change.sureness is not None and level == band(change.sureness, BANDS)))
    ]
    found = {side.label for change in changes for side in (change.first, change.second)}
    page = query.number("page") or 0
    return {
        "diff": diff,
        "rows": [show_change(change) for change in rows[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]],
        "paging": Paging(page, len(rows), PAGE_ROWS),
        "kinds": [(name, KINDS[name], diff.differences.kinds[name].count) for name in CHANGES],
        "bands": [(str(number), band_name(number)) for number in range(len(BANDS) + 1)],
        # Those of the collection first, which then have the colours of other pages.
        "labels": list(dict.fromkeys([*labels, *sorted(found - {OUTSIDE})])),
        "outside": OUTSIDE,
        "total": diff.differences.changed,
        "kind_names": KINDS,
    }
