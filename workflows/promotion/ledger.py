"""The ledger of a model: one line for every move of its champion, each with the hash of the line before.

A line is JSON text. Changing or removing one breaks the chain there, unless all following lines are rewritten.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from concord.models.config import first_fault

TAG = "concord.ledger."
LONGEST_LINE = 5000
"""Characters: the width of the column in MLflow's database, which MLflow itself does not check."""
LONGEST_REASON = 1000
BEGINNING = "0" * 64
Action = Literal["promote", "rollback"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A move of the champion.

    Attributes:
        who: user and host.
        when: UTC, ISO 8601.
        came_from, went_to: versions; None where there was no champion.
        digest: of the bundle of ``went_to``, in hex.
        evidence: sha256 of the evidence; ``evidence_place`` is its address in the store.
        gate: sha256 of the gate's file.
        promotion_set: sha256 that names the corpora of the gate.
        uses: how often they were used before, to promote any model.
        forced: whether the champion was moved although the gate failed.
    """

    action: Action
    who: str
    when: str
    came_from: int | None
    went_to: int
    digest: str | None = None
    evidence: str | None = None
    evidence_place: str | None = None
    gate: str | None = None
    promotion_set: str | None = None
    uses: int | None = None
    forced: bool = False
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry(Move):
    """A move as a line of the ledger.

    Attributes:
        number: of the line, from 1.
        previous: sha256 in hex of the line before; zeros for the first.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    number: int
    previous: str

    @classmethod
    def of(cls, move: Move, *, number: int, previous: str) -> "Entry":
        """Return the line of a move."""
        return cls(number=number, previous=previous, **asdict(move))


@dataclass(frozen=True, kw_only=True, slots=True)
class Break:
    """A line at which the chain is broken."""

    line: int
    message: str


def write_line(entry: Entry) -> str:
    """Return the text of a line; raise ValueError when it is too long for a tag."""
    text = json.dumps(asdict(entry), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    if len(text) > LONGEST_LINE:
        raise ValueError(f"ledger line {entry.number}: expected {LONGEST_LINE:,} characters at most, got {len(text):,}")
    return text


def read_line(text: str) -> Entry:
    """Read the text of a line; raise ValueError when it is not a line of the ledger."""
    try:
        return TypeAdapter(Entry).validate_json(text, strict=True)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from error


def line_hash(text: str) -> str:
    """Return the sha256 of a line, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def tag_of(number: int) -> str:
    """Return the tag of a line; tags sort in the order of their numbers."""
    return f"{TAG}{number:08d}"


def lines_of(tags: Mapping[str, str]) -> list[str]:
    """Return the lines among a model's tags, in order."""
    return [tags[key] for key in _keys(tags)]


def next_number(tags: Mapping[str, str]) -> int:
    """Return the number of the next line, which is unused even if lines are missing."""
    keys = _keys(tags)
    return int(keys[-1].removeprefix(TAG)) + 1 if keys else 1


def check_chain(lines: Sequence[str], *, champion: int | None) -> list[Break]:
    """Check that every line is valid and has the hash of the one before, and that the last one led to the champion.

    Without the last check, removing lines at the end would go unnoticed.
    """
    breaks: list[Break] = []
    number, previous, last_champion = 1, BEGINNING, None
    for text in lines:
        try:
            entry = read_line(text)
        except ValueError as error:
            breaks.append(Break(line=number, message=f"expected a ledger line, got {text[:60]!r}: {error}"))
        else:
            breaks += _faults(entry, number, previous=previous)
            number, last_champion = entry.number, entry.went_to
        number, previous = number + 1, line_hash(text)
    if champion != last_champion:
        last, actual = map(describe_version, (last_champion, champion))
        message = f"the ledger ends with {last} as champion, the alias is at {actual}"
        breaks.append(Break(line=number - 1, message=f"{message}: it was moved by other means, or lines are missing"))
    return breaks


def describe_version(version: int | None) -> str:
    """Return ``version N``, or ``none``."""
    return "none" if version is None else f"version {version}"


def _faults(entry: Entry, number: int, *, previous: str) -> list[Break]:
    messages = []
    if entry.number != number:
        messages.append(f"expected line {number}, got {entry.number}: a line is missing")
    if entry.previous != previous:
        messages.append(f"expected {previous[:12]} as the hash of the line before, got {entry.previous[:12]}")
    return [Break(line=number, message=message) for message in messages]


def _keys(tags: Mapping[str, str]) -> list[str]:
    return sorted(key for key in tags if key.startswith(TAG) and key.removeprefix(TAG).isdigit())
