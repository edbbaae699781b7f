"""The Jinja environment of all HTML pages, what renders and writes them, and the bars of their histograms.

A page is one file that holds everything it shows and requests nothing from the network. Its template extends
``concord.pipeline.report/base.html.j2``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.output_paths import OutputPath


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar: position and size in percent of the chart, the interval that it covers, and its count."""

    left: float
    width: float
    height: float
    start: float
    end: float
    count: int


def load_template(package: str, name: str) -> Template:
    """Return a template that lies in a package, beside the module that renders it."""
    return _environment().get_template(f"{package}/{name}")


def write_page(path: OutputPath, html: str, *, staging: Path | None) -> None:
    """Atomically write a page, replacing any existing file; StoreError if there is no space."""
    with store_errors(path):
        write_atomically(path, html.encode("utf-8", "backslashreplace"), staging=staging)


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


def format_count(value: int) -> str:
    """Return a count in groups of three digits, set apart by narrow no-break spaces."""
    # No language mistakes these for a decimal sign.
    return f"{value:,}".replace(",", "\u202f")


def _percent(share: float | None) -> str:
    return "\u2013" if share is None else f"{100 * share:.1f}\u202f%"


def _share(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:.2f}"


@cache
def _environment() -> Environment:
    # Every value is escaped; nothing is ever marked as safe.
    environment = Environment(
        loader=FunctionLoader(_read_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=format_count, percent=_percent, share=_share)
    return environment


def _read_source(path: str) -> str:
    package, _, name = path.rpartition("/")
    return files(package).joinpath(name).read_text(encoding="utf-8")
