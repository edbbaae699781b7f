"""The templates of the pages: each page is one HTML file that holds everything it shows and asks for nothing."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

COLOURS = 8
"""How many colours the pages have for entity types."""


def template(name: str) -> Template:
    """Give a template of ``reports/``."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    # Every value is escaped; nothing is ever marked as safe.
    return Environment(
        loader=PackageLoader("concord.workflows", "reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
