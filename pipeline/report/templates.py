"""The Jinja environment of all HTML pages, and what renders and writes them.

A page is one file that holds everything it shows and requests nothing from the network. Its template extends
``concord.pipeline.report/base.html.j2``.
"""

from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.output_paths import OutputPath


def load_template(package: str, name: str) -> Template:
    """Return a template that lies in a package, beside the module that renders it."""
    return _environment().get_template(f"{package}/{name}")


def write_page(path: OutputPath, html: str, *, staging: Path | None) -> None:
    """Atomically write a page, replacing any existing file; StoreError if there is no space."""
    with store_errors(path):
        write_atomically(path, html.encode("utf-8", "backslashreplace"), staging=staging)


def format_count(value: int) -> str:
    """Return a count in groups of three digits, set apart by narrow no-break spaces."""
    # No language mistakes these for a decimal sign.
    return f"{value:,}".replace(",", "\u202f")


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
    environment.filters.update(count=format_count, share=_share)
    return environment


def _read_source(path: str) -> str:
    package, _, name = path.rpartition("/")
    return files(package).joinpath(name).read_text(encoding="utf-8")
