"""The HTML page of a diff, and the wording that it shares with the console."""

from collections.abc import Sequence
from typing import Any

from concord.models.labels import OUTSIDE
from concord.pipeline.report.templates import lay_out_bars, load_template
from concord.pipeline.report.type_colours import type_colours
from concord.workflows.diff.diff import Diff
from concord.workflows.diff.differences import BARS, LIMITS, EntityChange, Side
from concord.workflows.diff.entity_changes import CHANGES


def render_page(diff: Diff) -> str:
    """Return the page as HTML."""
    differences = diff.differences
    bars = differences.bars
    highest = max(int(bars.max()), 1)
    labels, rows = differences.confusion_matrix()
    return load_template("concord.workflows.diff", "diff.html.j2").render(
        diff=diff,
        differences=differences,
        dead=diff.dead_letters,
        listed=diff.documents.list_first(diff.listed),
        changed=differences.tally(*CHANGES).count,
        kinds=[
            (describe_kind(kind), differences.tally(kind))
            for kind in ("same", *CHANGES)
            if differences.tally(kind).count
        ],
        limits=LIMITS,
        bars=lay_out_bars(
            differences.bars.tolist(), bins=BARS, bin_width=1 / BARS, height=lambda count: count / highest
        ),
        labels=labels,
        confusions=rows,
        most=_most_confused(rows, labels),
        changes=[show_change(change) for change in differences.changes],
        colours=type_colours(label for label in labels if label != OUTSIDE),
        differing={name: count for name, count in differences.other.items() if count},
        share=percentage,
        describe_kind=describe_kind,
    )


def describe_kind(kind: str) -> str:
    """Return what a kind of change is called."""
    return {
        "same": "same",
        "relabelled": "different label",
        "moved": "different boundaries",
        "lost": "only in A",
        "gained": "only in B",
    }[kind]


def percentage(part: int, whole: int) -> str:
    """Return a share in percent; a dash if the whole is nothing."""
    return f"{part / whole:.1%}" if whole else "-"


def show_change(change: EntityChange) -> dict[str, Any]:
    """Return a change with what each side says, and the text before, of and after it, for a template."""
    sides = (("A", change.first), ("B", change.second))
    return {"change": change, "sides": [(name, side, _split_context(change, side)) for name, side in sides]}


def _most_confused(rows: Sequence[tuple[str, Sequence[int | None]]], labels: Sequence[str]) -> int:
    """Return the largest number off the diagonal, which gets the darkest shade."""
    off_diagonal = [
        count or 0 for first, counts in rows for second, count in zip(labels, counts, strict=True) if first != second
    ]
    return max(off_diagonal, default=0) or 1


def _split_context(change: EntityChange, side: Side) -> tuple[str, str, str]:
    """Split the context into the text before the side's stretch, the stretch, and the text after it."""
    start, end = side.start_char - change.context_start, side.end_char - change.context_start
    return change.context[:start], change.context[start:end], change.context[end:]
