"""Cuts the records of an input into pieces, and gathers the pieces into shards."""

from concord.pipeline.plan import Piece, Shard, ShardRef
from concord.pipeline.planning.inputs import InputFile
from concord.pipeline.readers.records import ScannedRecord


class ShardCutter:
    """Takes records in the order of the input and closes a shard as soon as it holds enough bytes.

    Attributes:
        records: how many records have been added.
    """

    def __init__(self, shard_bytes: int, *, first_index: int = 0) -> None:
        self.records = 0
        self._shard_bytes = shard_bytes
        self._first_index = first_index
        self._shards: list[Shard] = []
        self._pieces: list[Piece] = []
        self._size = 0
        self._file: InputFile | None = None
        self._first: ScannedRecord | None = None
        self._last: ScannedRecord | None = None
        self._count = 0
        self._duplicates: list[int] = []
        self._retries: list[tuple[int, int]] = []
        self._parses: dict[ShardRef, None] = {}

    def add(
        self,
        file: InputFile,
        record: ScannedRecord,
        *,
        is_duplicate: bool,
        parse: ShardRef | None = None,
        attempts: int = 0,
    ) -> None:
        """Add the next record of the input.

        Args:
            parse: the shard that holds the record's parse, if one does.
            attempts: how often it has been tried again, this time included.
        """
        if file is not self._file:
            self.end_piece()
            self._file = file
        if parse is not None:
            self._parses[parse] = None
        self._first = self._first or record
        self._last = record
        self._count += 1
        self.records += 1
        if is_duplicate:
            self._duplicates.append(record.position)
        if attempts:
            self._retries.append((record.position, attempts))
        # Empty records count too, or a million empty files would be one shard.
        self._size += max(record.size, 1)
        if self._size >= self._shard_bytes:
            self._end_shard()

    def end_piece(self) -> None:
        """Close the piece: the next record does not follow the last one, and pieces hold whole stretches."""
        if self._file is None or self._first is None or self._last is None:
            return
        piece = Piece(
            uri=self._file.path,
            format=self._file.format,
            start=self._first.position,
            end=self._last.end,
            records=self._count,
            duplicates=tuple(self._duplicates),
            retries=tuple(self._retries),
            name=self._file.name,
        )
        self._pieces.append(piece)
        self._first = self._last = None
        self._count = 0
        self._duplicates = []
        self._retries = []

    def finish(self) -> tuple[Shard, ...]:
        """Close the last shard and return all."""
        self._end_shard()
        return tuple(self._shards)

    def _end_shard(self) -> None:
        self.end_piece()
        if self._pieces:
            index = self._first_index + len(self._shards)
            self._shards.append(Shard(index=index, pieces=tuple(self._pieces), parses=tuple(self._parses)))
        self._pieces = []
        self._parses = {}
        self._size = 0
