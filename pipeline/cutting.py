"""Records to pieces, pieces to shards."""

from pipeline.inputs import InputFile
from pipeline.readers.scanned import ScannedRecord
from pipeline.records import Piece, Shard


class ShardCutter:
    """Gathers records in the order of the input and closes a shard when it holds enough bytes.

    Attributes:
        records: how many records have been added.
    """

    def __init__(self, shard_bytes: int) -> None:
        self.records = 0
        self._shard_bytes = shard_bytes
        self._shards: list[Shard] = []
        self._pieces: list[Piece] = []
        self._size = 0
        self._file: InputFile | None = None
        self._first: ScannedRecord | None = None
        self._last: ScannedRecord | None = None
        self._count = 0
        self._duplicates: list[int] = []

    def add(self, file: InputFile, record: ScannedRecord, *, is_duplicate: bool) -> None:
        """Add the next record of the input."""
        if file is not self._file:
            self._end_piece()
            self._file = file
        self._first = self._first or record
        self._last = record
        self._count += 1
        self.records += 1
        if is_duplicate:
            self._duplicates.append(record.position)
        # Empty records weigh something too, or a million empty files would be one shard.
        self._size += max(record.size, 1)
        if self._size >= self._shard_bytes:
            self._end_shard()

    def finish(self) -> tuple[Shard, ...]:
        """Close the last shard and give all."""
        self._end_shard()
        return tuple(self._shards)

    def _end_shard(self) -> None:
        self._end_piece()
        if self._pieces:
            self._shards.append(Shard(index=len(self._shards), pieces=tuple(self._pieces)))
        self._pieces = []
        self._size = 0

    def _end_piece(self) -> None:
        if self._file is None or self._first is None or self._last is None:
            return
        piece = Piece(
            uri=self._file.path,
            format=self._file.format,
            start=self._first.position,
            end=self._last.end,
            records=self._count,
            duplicates=tuple(self._duplicates),
            name=self._file.name,
        )
        self._pieces.append(piece)
        self._first = self._last = None
        self._count = 0
        self._duplicates = []
