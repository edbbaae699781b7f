"""The raw texts of annotated documents: those that the collection stores, or else read from the input.

A text of the input is the one that was annotated if its SHA-256 is the same. It is looked up at the document's
position; if another text is there, because records were inserted or removed, it is searched for in the whole file.

A row of a collection names its file, and somebody else may have written it: only the inputs of the plan are read.
"""

from collections.abc import Mapping
from typing import Self

from concord.pipeline.config import ReaderConfig
from concord.pipeline.corrections.correction import text_digest
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.output.collection import DocumentRow
from concord.pipeline.plan import Plan
from concord.pipeline.readers.read_file import format_of, read_text_at, scan_file
from concord.pipeline.readers.records import RecordError
from concord.pipeline.storage.files import is_url

SOURCE_CHANGED = "source_changed"


class SourceTexts:
    """Reads texts from the input of a run; fastest in the order of the collection."""

    def __init__(self, config: ReaderConfig, formats: Mapping[str, str] | None = None, *, fetch: bool = True) -> None:
        """Prepare to read as a run did.

        Args:
            formats: of the input files, by path or URL, and no others are read; by default any, by its suffix.
            fetch: whether files behind URLs are read.
        """
        self._config = config
        self._formats = formats
        self._fetch = fetch
        # The last file whose texts had moved: its URI, and SHA-256 -> position.
        self._index: tuple[str, dict[str, int]] = ("", {})
        self._fault = ""

    @classmethod
    def of(cls, plan: Plan, *, fetch: bool = True) -> Self:
        """Prepare to read the input of a plan."""
        return cls(plan.config.reader, {source.uri: source.format for source in plan.sources}, fetch=fetch)

    def find(self, row: DocumentRow) -> str | DeadLetter:
        """Return a document's stored text, or that of the input; a dead letter if neither has it.

        Raises:
            InputError: when a file of many records is gone or cannot be opened, and for one that is not to be read.
        """
        if row.raw_text is not None:
            return row.raw_text
        self._check(row.source_uri)
        self._fault = ""
        try:
            text = self._find(row)
        except InputError:
            # Without a text file one document is missing; without a file of many records the input itself is.
            if self._format(row.source_uri) != "text":
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
            f"{row.text_sha256}, found no such text{self._fault}: the input has changed; annotate it again "
            "(with output.keep_text=true the collection stores the texts)",
        )

    def read(self, row: DocumentRow) -> str:
        """Return a document's stored text, or that of the input.

        Raises:
            InputError: when neither has the text that was annotated.
        """
        text = self.find(row)
        if isinstance(text, DeadLetter):
            raise InputError(text.message)
        return text

    def _check(self, uri: str) -> None:
        if self._formats is not None and uri not in self._formats:
            raise InputError(f"{uri}: is not read, because it is none of the inputs in the plan of the collection")
        if is_url(uri) and not self._fetch:
            raise InputError(
                f"{uri}: is not fetched unless asked for, as by 'concord view --fetch'; with output.keep_text=true the "
                "collection stores the texts"
            )

    def _find(self, row: DocumentRow) -> str | None:
        uri, index = self._index
        if uri != row.source_uri:
            text = self._text_at(row, row.source_position)
            if text is not None:
                return text
            index = {}
            format = self._format(row.source_uri)
            for record in scan_file(row.source_uri, format=format, name="", config=self._config):
                text = self._text_in(self._config, row.source_uri, record.position)
                if text is not None:
                    index[text_digest(text)] = record.position
            self._index = (row.source_uri, index)
        position = index.get(row.text_sha256)
        return None if position is None else self._text_at(row, position)

    def _text_at(self, row: DocumentRow, position: int) -> str | None:
        """Return the text at a position if it is the one of a row, which knows its encoding if it was guessed."""
        for encoding in dict.fromkeys((self._config.encoding, row.encoding or self._config.encoding)):
            config = self._config.model_copy(update={"encoding": encoding})
            text = self._text_in(config, row.source_uri, position)
            if text is not None and text_digest(text) == row.text_sha256:
                return text
        return None

    def _text_in(self, config: ReaderConfig, uri: str, position: int) -> str | None:
        try:
            return read_text_at(uri, format=self._format(uri), position=position, config=config)
        except RecordError as error:
            self._fault = f" ({error})"
            return None

    def _format(self, uri: str) -> str:
        format = (self._formats or {}).get(uri) or (
            format_of(uri) if self._config.format == "auto" else self._config.format
        )
        if format is None:
            raise InputError(f"{uri}: its name does not show its format; set reader.format")
        return format
