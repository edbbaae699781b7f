"""The page of a diff: what changed between two annotations, the surest contradictions side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from concord.models.labels import OUTSIDE
from concord.workflows.diff.diff import Diff, confusions, listed_documents, share, told_kind
from concord.workflows.diff.row_differences import BARS, CHANGES, LIMITS, EntityChange, Side
from concord.workflows.reports.templates import COLOURS, template

_TEMPLATE = "diff.html.j2"


def render_page(diff: Diff) -> str:
    """Give the page as HTML."""
    found = diff.differences
    kinds, rows = confusions(found)
    return template(_TEMPLATE).render(
        diff=diff,
        found=found,
        letters=diff.letters,
        listed=listed_documents(diff),
        changed=found.tally(*CHANGES).count,
        kinds=[(told_kind(kind), found.tally(kind)) for kind in ("same", *CHANGES) if found.tally(kind).count],
        limits=LIMITS,
        bars=_bars(found.bars),
        labels=kinds,
        confusions=rows,
        most=_most_confused(rows, kinds),
        changes=[_change_view(change) for change in found.changes],
        colours={label: number % COLOURS for number, label in enumerate(kinds) if label != OUTSIDE},
        differing={name: count for name, count in found.other.items() if count},
        share=share,
        told_kind=told_kind,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    """Changes by sureness, ``start`` to ``end``; left, width and height in percent of the chart."""

    left: float
    width: float
    height: float
    start: float
    end: float
    count: int


def _bars(counts: Sequence[int]) -> list[_Bar]:
    highest = max(counts, default=0) or 1
    return [
        _Bar(
            left=100 * number / BARS,
            width=100 / BARS,
            height=100 * count / highest,
            start=number / BARS,
            end=(number + 1) / BARS,
            count=count,
        )
        for number, count in enumerate(counts)
    ]


def _most_confused(rows: Sequence[tuple[str, Sequence[int | None]]], kinds: Sequence[str]) -> int:
    """Give the largest number beside the diagonal: what is shaded most."""
    beside = [count or 0 for one, counts in rows for other, count in zip(kinds, counts, strict=True) if one != other]
    return max(beside, default=0) or 1


def _change_view(change: EntityChange) -> dict[str, Any]:
    sides = (("A", change.first), ("B", change.second))
    return {"change": change, "sides": [(name, side, _parted(change, side)) for name, side in sides]}


def _parted(change: EntityChange, side: Side) -> tuple[str, str, str]:
    """Part the context into what stands before the side's stretch, the stretch, and what stands behind."""
    start, end = side.start_char - change.context_start, side.end_char - change.context_start
    return change.context[:start], change.context[start:end], change.context[end:]
