"""The HTML page of a diff, and the wording that it shares with the console."""

from collections.abc import Sequence
from typing import NamedTuple

from concord.models.labels.spans import OUTSIDE
from concord.pipeline.report.templates import lay_out_bars, load_template
from concord.pipeline.report.type_colours import type_colours
from concord.workflows.diff.diff import BARS, LIMITS, Diff, EntityChange, Side

KINDS = {
    "same": "same",
    "relabelled": "different label",
    "moved": "different boundaries",
    "lost": "only in A",
    "gained": "only in B",
}
"""What kinds of changes are called."""
DOCUMENTS = {
    "same_text": "same text",
    "renamed": "of them renamed",
    "changed": "different text",
    "only_first": "only in A",
    "only_second": "only in B",
}


class ShownChange(NamedTuple):
    """A change with what A and B say, each with the text before, of and after its stretch."""

    change: EntityChange
    sides: Sequence[tuple[str, Side, tuple[str, str, str]]]


def render_page(diff: Diff) -> str:
    """Return the page as HTML."""
    differences = diff.differences
    highest = max(int(differences.bars.max()), 1)
    labels, rows = differences.confusion_matrix()
    off_diagonal = [
        count or 0 for first, counts in rows for second, count in zip(labels, counts, strict=True) if first != second
    ]
    return load_template("concord.workflows.diff", "diff.html.j2").render(
        diff=diff,
        differences=differences,
        dead=diff.dead_letters,
        documents=diff.documents._asdict(),
        document_kinds=DOCUMENTS,
        kinds=KINDS,
        limits=LIMITS,
        bars=lay_out_bars(
            differences.bars.tolist(), bins=BARS, bin_width=1 / BARS, height=lambda count: count / highest
        ),
        labels=labels,
        confusions=rows,
        # It gets the darkest shade.
        most=max(off_diagonal, default=0) or 1,
        changes=[show_change(change) for change in differences.changes],
        colours=type_colours(label for label in labels if label != OUTSIDE),
        share=percentage,
    )


def percentage(part: int, whole: int) -> str:
    """Return a share in percent; a dash if the whole is nothing."""
    return f"{part / whole:.1%}" if whole else "-"


def show_change(change: EntityChange) -> ShownChange:
    """Return a change as a template shows it."""
    sides = (("A", change.first), ("B", change.second))
    return ShownChange(change, [(name, side, _split_context(change, side)) for name, side in sides])


def _split_context(change: EntityChange, side: Side) -> tuple[str, str, str]:
    """Split the context into the text before the side's stretch, the stretch, and the text after it."""
    start, end = side.start_char - change.context_start, side.end_char - change.context_start
    return change.context[:start], change.context[start:end], change.context[end:]
