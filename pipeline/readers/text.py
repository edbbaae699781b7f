"""Text files: each is one document whose id is its path below the input folder."""

from collections.abc import Iterator, Sequence

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.plan import Piece
from concord.pipeline.readers.encodings import Decoded, decode
from concord.pipeline.readers.fields import duplicate_id
from concord.pipeline.readers.reader import Reader
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter
from concord.pipeline.readers.streams import read_whole, with_codecs
from concord.pipeline.storage.files import file_state


class TextReader(Reader):
    """Reads files of one document each."""

    suffixes: Sequence[str] = with_codecs(".txt")
    libraries: Sequence[str] = ()
    """The packages that it needs, whose releases decide which text is found."""
    unit = "byte"

    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        """Return the text in the decompressed content of a file.

        Raises:
            RecordError: when there is none.
        """
        return decode(content, encoding=config.encoding, errors=config.errors)

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        # Without reading it.
        size = file_state(path).size
        yield ScannedRecord(position=0, end=size, size=size, doc_id=name)

    @override
    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        try:
            content = read_whole(piece.uri, expected_size=piece.end, config=config)
            decoded = self.extract(content, config)
            if piece.duplicates:
                raise duplicate_id(piece.name)
        except RecordError as error:
            error.doc_id = piece.name
            yield dead_letter(error, piece=piece, position=0, unit=self.unit)
            return
        yield text_document(decoded, piece)

    @override
    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        return self.extract(read_whole(path, config=config), config).text


def text_document(decoded: Decoded, piece: Piece) -> Document:
    """Return the document that a file becomes as a whole."""
    return Document(
        doc_id=piece.name,
        text=decoded.text,
        source_uri=piece.uri,
        source_position=0,
        meta=decoded.meta,
        encoding=decoded.encoding,
        encoding_confidence=decoded.confidence,
        replaced=decoded.replaced,
        parts=decoded.parts,
    )
