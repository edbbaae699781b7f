"""What readers say of a record: where it is, or why it cannot be read."""

from dataclasses import dataclass

from typing_extensions import override

from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece


class RecordError(Exception):
    """A record that cannot be read. It never leaves the readers but becomes a dead letter.

    Attributes:
        code: a short stable reason, for counting.
        loses_file: whether it stands for the rest of its file, or all of it.
    """

    def __init__(self, code: str, message: str, *, loses_file: bool = False) -> None:
        super().__init__(code, message)
        self.code = code
        self.loses_file = loses_file

    @override
    def __str__(self) -> str:
        return str(self.args[1])


def too_large(most: int) -> RecordError:
    """Return the error of a record that has more bytes than ``reader.max_record_bytes``."""
    return RecordError(
        "record_too_large",
        f"expected at most {most:,} bytes, got a longer record; split it, or raise reader.max_record_bytes in a retry",
    )


def reason_of(error: BaseException) -> str:
    """Return what an exception of a library says."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def file_changed(path: str, expected: str, got: object) -> InputError:
    """Return the error of a file that is not as it was planned."""
    return InputError(
        f"{path}: expected {expected}, got {got}; the file has changed since the plan was made: run the same command "
        "again"
    )


def dead_letter(error: RecordError, piece: Piece, position: int, unit: str, *, doc_id: str | None = None) -> DeadLetter:
    """Build the dead letter of a record that cannot be read.

    Args:
        unit: that of positions in the file; empty where the whole file is meant.
    """
    return DeadLetter(
        doc_id=doc_id,
        source_uri=piece.uri,
        position=position,
        stage="read",
        error=error.code,
        message=f"{piece.uri}, {unit} {position}: {error}" if unit else f"{piece.uri}: {error}",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ScannedRecord:
    """One record of an input file.

    Attributes:
        position, end: half-open, in the units of Piece.start and Piece.end.
        size: bytes of input, for cutting shards.
        doc_id: None if the record cannot be read.
        loses_file: whether it stands for the rest of the file, or all of it.
        fault: see Piece.fault.
        source_sha256: see Document; None also where scanning does not read the file, whose own digest it is then.
    """

    position: int
    end: int
    size: int
    doc_id: str | None
    loses_file: bool = False
    fault: tuple[str, str] | None = None
    source_sha256: str | None = None
