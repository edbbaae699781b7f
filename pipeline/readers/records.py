"""Why a record cannot be read, and the dead letter it becomes."""

from concord.pipeline.documents import DeadLetter, Piece


class RecordError(Exception):
    """A record that cannot be read. It never leaves the readers: it becomes a dead letter.

    Attributes:
        code: a short stable reason, for counting.
        doc_id: the record's id, where it is known.
    """

    def __init__(self, code: str, message: str, *, doc_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.doc_id = doc_id


def dead_letter(error: RecordError, *, piece: Piece, position: int, unit: str) -> DeadLetter:
    """Give the dead letter of a record.

    Args:
        unit: what positions of the file count: byte or row.
    """
    return DeadLetter(
        doc_id=error.doc_id,
        source_uri=piece.uri,
        position=position,
        stage="read",
        error=error.code,
        message=f"{piece.uri}, {unit} {position}: {error}",
    )
