"""Read a shard's documents."""

from collections.abc import Callable, Mapping, Sequence

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import InputError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Shard
from concord.pipeline.readers.read_file import read_piece
from concord.pipeline.storage.files import file_state
from concord.pipeline.worker.stored_parses import StoredParses

Read = Callable[[Shard], list[Document | ParsedDocument | DeadLetter]]


class ReadStage:
    """A shard's pieces to documents; those whose parse stands already come parsed."""

    def __init__(self, config: ReaderConfig, folder: OutputFolder, *, marks: Mapping[str, str]) -> None:
        """Take how to read, where parses stand, and how files behind URLs were marked when they were planned."""
        self._config = config
        self._folder = folder
        self._marks = marks

    def __call__(self, shard: Shard) -> list[Document | ParsedDocument | DeadLetter]:
        """Read a shard.

        Raises:
            InputError: when a file cannot be opened, or has visibly changed since the plan was made.
            IntegrityError: when the parses that should stand cannot be read.
            StoreError: when a store fails.
        """
        self._check_marks(shard)
        records = [record for piece in shard.pieces for record in read_piece(piece, self._config)]
        if not shard.parses:
            return [*records]
        return with_parses(records, StoredParses(self._folder, shard.parses).find)

    def _check_marks(self, shard: Shard) -> None:
        """Refuse files behind URLs that are no longer the ones that were planned."""
        for uri in dict.fromkeys(piece.uri for piece in shard.pieces if piece.uri in self._marks):
            if str(file_state(uri).changed) != self._marks[uri]:
                raise InputError(f"{uri}: has changed since the plan was made; run the command again")


def with_parses(
    records: Sequence[Document | ParsedDocument | DeadLetter], find: Callable[[Document], ParsedDocument | None]
) -> list[Document | ParsedDocument | DeadLetter]:
    """Put parses in the place of the documents for which there is one."""
    return [(find(record) or record) if isinstance(record, Document) else record for record in records]
