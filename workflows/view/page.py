"""What all pages share: the parameters of an address, links, pages of rows, and what cannot be shown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

from concord.models.errors import ConcordError


class NotFoundError(Exception):
    """The address names something that the collection does not hold; the message says what."""


class UnavailableError(ConcordError):
    """A text, document or tagger that cannot be read now, or never; the message says why."""


CSV_ROWS = 100_000
"""Rows of a list as CSV."""


class Table(NamedTuple):
    """What a page lists, as it is sent as CSV."""

    columns: Sequence[str]
    rows: Iterable[Iterable[Any]]


class Page(NamedTuple):
    """A template with what it shows, and the table of its list."""

    template: str
    values: Mapping[str, Any]
    table: Table | None = None


class Window(NamedTuple):
    """Which rows of a list are shown."""

    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class Query:
    """An address: its path and parameters. A parameter that cannot be read is as if it were absent."""

    path: str
    parameters: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return a parameter; the empty string without it."""
        return self.parameters.get(name, "")

    def number(self, name: str) -> int | None:
        """Return a parameter that is a whole number from 0 on."""
        value = self.parameters.get(name, "")
        return int(value) if value.isascii() and value.isdecimal() and len(value) <= 9 else None

    def one_of(self, name: str, choices: Mapping[str, object]) -> str:
        """Return a parameter if it is one of some choices, else the first of them."""
        value = self.parameters.get(name, "")
        return value if value in choices else next(iter(choices))

    def window(self, rows: int) -> Window:
        """Return the page of rows that is asked for, ``rows`` long; as CSV the first ``CSV_ROWS``."""
        return Window(CSV_ROWS, 0) if self.text("csv") else Window(rows, (self.number("page") or 0) * rows)

    def link(self, **changes: Any) -> str:
        """Return this address with other parameters; None removes one. Another choice starts at the first page."""
        return link(self.path, **{**self.parameters, "page": None, **changes})


class Paging(NamedTuple):
    """Which page of rows is shown, 0-based, and how many rows there are on all pages."""

    page: int
    total: int
    rows: int

    @property
    def pages(self) -> int:
        """How many pages there are, at least one."""
        return max(1, -(-self.total // self.rows))


def link(path: str, /, **parameters: Any) -> str:
    """Return an address; parameters that are None or empty are left out."""
    given = {name: value for name, value in parameters.items() if value is not None and value != ""}
    return f"{path}?{urlencode(given)}" if given else path
