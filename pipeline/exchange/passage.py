"""The unit of every import: a document, or a passage of one, as an annotator left it."""

from dataclasses import dataclass
from typing import NamedTuple


class AnnotatedSpan(NamedTuple):
    """An entity of a file; offsets are half-open, in code points of the passage."""

    start: int
    end: int
    type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatedPassage:
    """What a file says about a document.

    Attributes:
        where: file and place, for messages.
        start: offset of the passage in the raw text, in code points.
        text: as exported, with normalized line ends; None for a whole document in a format without the text.
    """

    where: str
    doc_id: str
    spans: tuple[AnnotatedSpan, ...]
    start: int = 0
    text: str | None = None
