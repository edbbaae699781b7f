"""What the planner learns of a record."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ScannedRecord:
    """One record of an input file.

    Attributes:
        position, end: half-open, in the units of Piece.start and Piece.end.
        size: bytes of input, for cutting shards.
        doc_id: the id it takes for itself; None where the record cannot be read.
    """

    position: int
    end: int
    size: int
    doc_id: str | None
