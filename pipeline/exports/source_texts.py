"""The raw texts of annotated documents: those that the collection stores, or else read from the input.

A text of the input is the one that was annotated if its SHA-256 is the same. It is looked up at the document's
position; if another text is there, because records were inserted or removed, it is searched for in the whole file.
"""

from hashlib import sha256

from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.output.document_rows import DocumentRow
from concord.pipeline.plan import Plan
from concord.pipeline.readers.read_file import read_text_at, scan_file
from concord.pipeline.readers.records import RecordError

SOURCE_CHANGED = "source_changed"


class SourceTexts:
    """Reads texts from the input of a plan; fastest in the order of the collection."""

    def __init__(self, plan: Plan) -> None:
        self._config = plan.config.reader
        self._formats = {source.uri: source.format for source in plan.sources}
        # The last file whose texts had moved: its URI, and SHA-256 -> position.
        self._index: tuple[str, dict[str, int]] = ("", {})

    def find(self, row: DocumentRow) -> str | DeadLetter:
        """Return a document's stored text, or that of the input; a dead letter if neither has it.

        Raises:
            InputError: when a file of many records is gone or cannot be opened.
        """
        if row.text is not None:
            return row.text
        try:
            text = self._find(row)
        except InputError:
            # Without a text file one document is missing; without a file of many records the input itself is.
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
            f"{row.text_sha256}, found no such text: the input has changed; annotate it again "
            "(with output.keep_text=true the collection stores the texts)",
        )

    def _find(self, row: DocumentRow) -> str | None:
        uri, index = self._index
        if uri != row.source_uri:
            text = self._text_at(row.source_uri, row.source_position)
            if text is not None and _digest(text) == row.text_sha256:
                return text
            index = {}
            for record in scan_file(row.source_uri, format=self._formats[row.source_uri], name="", config=self._config):
                text = self._text_at(row.source_uri, record.position)
                if text is not None:
                    index[_digest(text)] = record.position
            self._index = (row.source_uri, index)
        position = index.get(row.text_sha256)
        text = None if position is None else self._text_at(row.source_uri, position)
        return text if text is not None and _digest(text) == row.text_sha256 else None

    def _text_at(self, uri: str, position: int) -> str | None:
        try:
            return read_text_at(uri, format=self._formats[uri], position=position, config=self._config)
        except RecordError:
            return None


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
