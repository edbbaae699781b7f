"""The bars of a histogram, laid out for a page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar: position and size in percent of the chart, the interval that it covers, and its count."""

    left: float
    width: float
    height: float
    start: float
    end: float
    count: int


def lay_out_bars(
    counts: Sequence[int], *, bins: int, bin_width: float, height: Callable[[int], float]
) -> tuple[Bar, ...]:
    """Return the bars of a histogram, without the empty ones.

    Args:
        counts: of the first bins, from 0 on.
        bins: how many bins the chart is wide.
        bin_width: in the unit of the axis.
        height: takes a count, returns the share of the chart's height.
    """
    return tuple(
        Bar(
            left=100 * number / bins,
            width=100 / bins,
            height=100 * height(count),
            start=number * bin_width,
            end=(number + 1) * bin_width,
            count=count,
        )
        for number, count in enumerate(counts)
        if count
    )
