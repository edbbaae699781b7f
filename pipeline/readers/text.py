"""Text files: each is one document whose id is its path below the input folder."""

from collections.abc import Iterator

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.plan import Piece
from concord.pipeline.readers.encodings import decode
from concord.pipeline.readers.fields import duplicate_id
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter
from concord.pipeline.readers.streams import read_whole, with_codecs
from concord.pipeline.storage.files import file_state


class TextReader:
    """Reads files of one document each."""

    suffixes = with_codecs(".txt")

    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        """Find the one record of a file, without reading it."""
        size = file_state(path).size
        yield ScannedRecord(position=0, end=size, size=size, doc_id=name)

    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        """Read the file."""
        try:
            content = read_whole(piece.uri, expected_size=piece.end, config=config)
            decoded = decode(content, encoding=config.encoding)
            if piece.duplicates:
                raise duplicate_id(piece.name)
        except RecordError as error:
            error.doc_id = piece.name
            yield dead_letter(error, piece=piece, position=0, unit="byte")
            return
        yield Document(
            doc_id=piece.name,
            text=decoded.text,
            source_uri=piece.uri,
            source_position=0,
            encoding=decoded.encoding,
            encoding_confidence=decoded.confidence,
        )

    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        """Read the text of a file."""
        return decode(read_whole(path, config=config), encoding=config.encoding).text
