"""Read stage: a shard's pieces to documents."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import InputError, PlanError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Shard
from concord.pipeline.readers.read_file import libraries_of, read_piece
from concord.pipeline.storage.files import file_state
from concord.pipeline.worker.stored_parses import Parses, read_stored_parses


class ReadStage:
    """Reads shards, and attaches existing parses to their documents.

    Args:
        folder: where committed shards hold parses.
        etags: etag or time of each input behind a URL when it was planned.
        libraries: see Plan.libraries.
    """

    def __init__(
        self,
        config: ReaderConfig,
        folder: OutputFolder,
        *,
        etags: Mapping[str, str],
        libraries: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if (here := libraries_of(libraries)) != libraries:
            raise PlanError(
                f"expected the libraries with which the input was planned, {dict(libraries)}, got {here} on this "
                "worker: their texts may differ; install the same releases on all machines, or run the command again"
            )
        self._config = config
        self._folder = folder
        self._etags = etags

    def run(self, shard: Shard, *, parses: Parses | None = None) -> list[Document | ParsedDocument | DeadLetter]:
        """Read a shard, in input order; documents with a stored or given parse come parsed.

        Raises:
            InputError: when a file cannot be opened, or has visibly changed since the plan was made.
        """
        for uri in dict.fromkeys(piece.uri for piece in shard.pieces if piece.uri in self._etags):
            if str(file_state(uri).changed) != self._etags[uri]:
                raise InputError(f"{uri}: has changed since the plan was made; run the command again")
        records = [record for piece in shard.pieces for record in read_piece(piece, self._config)]
        sources = [*read_stored_parses(self._folder, shard.parses), *([parses] if parses is not None else [])]
        return [_parse_from(sources, record) if isinstance(record, Document) else record for record in records]


def _parse_from(sources: Sequence[Parses], document: Document) -> Document | ParsedDocument:
    """Return the document's first parse in the sources; the document itself where none has it."""
    return next((parsed for parses in sources if (parsed := parses.find(document)) is not None), document)
