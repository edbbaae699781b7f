"""The raw texts of annotated documents: an output folder does not hold them, they are read again from the input.

A text counts as the one that was annotated if its SHA-256 is the same. It is looked for at the document's address;
where that holds another text - lines have been put in before it since - in the whole file.
"""

from collections.abc import Mapping
from hashlib import sha256

from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.output.document_rows import DocumentRow
from concord.pipeline.plan import Plan
from concord.pipeline.readers.read_file import read_text_at, scan_file
from concord.pipeline.readers.records import RecordError

SOURCE_CHANGED = "source_changed"


class SourceTexts:
    """Reads texts from the input of a plan; fastest when asked in the order of the collection."""

    def __init__(self, plan: Plan) -> None:
        """Take the plan that the collection's manifest stands for."""
        self._config = plan.config.reader
        self._formats = {source.uri: source.format for source in plan.sources}
        # Of the one file last found to have its texts elsewhere.
        self._index: tuple[str, Mapping[str, int]] = ("", {})

    def find(self, row: DocumentRow) -> str | DeadLetter:
        """Give a document's text, or a dead letter where the input no longer holds it.

        Raises:
            InputError: when a file of many records is gone or cannot be opened.
            StoreError: when its disk fails.
        """
        try:
            text = self._find(row)
        except InputError:
            # A text file that is gone is one document less; with a file of many records the input itself is gone.
            if self._formats[row.source_uri] != "text":
                raise
            text = None
        if text is not None:
            return text
        return DeadLetter(
            doc_id=row.doc_id,
            source_uri=row.source_uri,
            position=row.source_position,
            stage="read",
            error=SOURCE_CHANGED,
            message=f"{row.source_uri}: expected the text of document {row.doc_id!r} with the SHA-256 "
            f"{row.text_sha256}, found no such text; the input has changed since: annotate it again",
        )

    def _find(self, row: DocumentRow) -> str | None:
        uri, index = self._index
        if uri != row.source_uri:
            text = self._text_at(row.source_uri, row.source_position)
            if text is not None and _digest(text) == row.text_sha256:
                return text
            index = self._indexed(row.source_uri)
        position = index.get(row.text_sha256)
        text = None if position is None else self._text_at(row.source_uri, position)
        return text if text is not None and _digest(text) == row.text_sha256 else None

    def _indexed(self, uri: str) -> Mapping[str, int]:
        """Find every text of a file by its SHA-256, and remember where."""
        index = {}
        for record in scan_file(uri, format=self._formats[uri], name="", config=self._config):
            text = self._text_at(uri, record.position)
            if text is not None:
                index[_digest(text)] = record.position
        self._index = (uri, index)
        return index

    def _text_at(self, uri: str, position: int) -> str | None:
        try:
            return read_text_at(uri, format=self._formats[uri], position=position, config=self._config)
        except RecordError:
            return None


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
