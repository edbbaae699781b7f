"""Files whose text a library extracts: each is one document, with its pages or chapters as parts.

A page that cannot be read is a dead letter of its own, and the document is made of the others. So the file is read when
it is scanned as well: only that shows which pages those are.
"""

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from typing import Any
from zipfile import ZipFile

import orjson
from typing_extensions import override

from concord.models.data.sentence import line_breaks
from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document, Part
from concord.pipeline.plan import Piece
from concord.pipeline.readers.fields import duplicate_id, record_id
from concord.pipeline.readers.files import Decoded, most_unpacked, read_whole, unpacks_too_far
from concord.pipeline.readers.reader import StreamReader, file_version
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter, reason_of, too_large
from concord.pipeline.readers.tables import TextReader, text_document


class ExtractingReader(TextReader):
    """Reads files of one document each.

    A record's position is 0 for the document, and the number of the page (from 1) for a page that cannot be read.
    """

    unit = "page"

    @abstractmethod
    def parse(self, content: bytes, config: ReaderConfig) -> Decoded:
        """Return the text in the decompressed content of a file, with its parts; ``extracted`` makes one of these.

        Whatever it raises becomes a dead letter; RecordError says best what is wrong with the file.
        """

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        with as_record_errors(f"{self.suffixes[0]} file"):
            found = self.parse(content, config)
            found.text.encode()
        if len(found.text) > config.max_record_bytes:
            raise too_large(config.max_record_bytes)
        return found

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        found = self._read(path, config)
        size, lost = (1, {}) if isinstance(found, RecordError) else (len(found.text.encode()), found.lost)
        yield ScannedRecord(position=0, end=1, size=size, doc_id=name)
        for number in lost:
            yield ScannedRecord(position=number, end=number + 1, size=1, doc_id=None)

    @override
    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        found = self._read(piece.uri, config)
        if piece.start == 0:
            fault = duplicate_id(piece.name) if piece.duplicates else found
            if isinstance(fault, RecordError):
                fault.doc_id = piece.name
                yield dead_letter(fault, piece=piece, position=0, unit="")
            else:
                yield text_document(fault, piece)
        for number, error in {} if isinstance(found, RecordError) else found.lost.items():
            if piece.start <= number < piece.end:
                yield dead_letter(error, piece=piece, position=number, unit=self.unit)

    @override
    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        found = self._read(path, config)
        if isinstance(found, RecordError):
            raise found
        return found.text

    def _read(self, path: str, config: ReaderConfig) -> Decoded | RecordError:
        """Read a file, or return what was read of it last: it is usually scanned and then read."""
        key = (self, config, path, *file_version(path))
        if key not in _last:
            _last.clear()
            try:
                _last[key] = self.extract(read_whole(path, config=config), config)
            except RecordError as error:
                _last[key] = error.with_traceback(None)
        return _last[key]


@contextmanager
def as_record_errors(kind: str) -> Iterator[None]:
    """Raise a RecordError in place of whatever a library raises for a damaged file of a kind."""
    try:
        yield
    except RecordError:
        raise
    except MemoryError:
        raise RecordError(
            "out_of_memory", "no memory to read it; give workers more, or lower reader.max_record_bytes"
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever a library raises
        raise RecordError(
            "unreadable",
            f"expected a {kind}, got one that cannot be read ({reason_of(error)}); open it with the program "
            "that it was made with and save it again, or remove it",
        ) from None


class PositionedReader(StreamReader):
    """Reads files of many records, whose texts are not extracted when they are scanned."""

    unit = "byte"

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        with closing(self.open(path, config, columns=(config.id_field,))) as stream:
            while (record := stream.read()) is not None:
                doc_id, size = None, record.end - record.start
                with suppress(RecordError):  # it becomes a dead letter when it is read
                    doc_id = record_id(record, name=name, config=config)
                loses_file = isinstance(record.fields, RecordError) and record.fields.loses_file
                yield ScannedRecord(
                    position=record.start, end=record.end, size=size, doc_id=doc_id, loses_file=loses_file
                )


_last: dict[tuple[object, ...], Decoded | RecordError] = {}


def extracted(
    parts: Iterable[tuple[str, str, str]],
    *,
    meta: Mapping[str, Any] | None = None,
    lost: Mapping[int, RecordError] | None = None,
    between: str = "\n\n",
    join_lines: bool = False,
) -> Decoded:
    """Return a text made of parts, given as kind, label and text; those without a kind are only text.

    Args:
        meta: what else the file says; empty values are left out.
        between: stands between two parts.
        join_lines: join lines that ``SOFT_BREAK`` stands between, and the words that are broken there.
    """
    text: list[str] = []
    starts: list[Part] = []
    length = 0
    for kind, label, content in parts:
        if not kind and not content:
            continue
        if text:
            text.append(between)
            length += len(between)
        if kind:
            starts.append(Part(kind, label, length))
        text.append(content)
        length += len(content)
    whole = "".join(text).rstrip()
    if join_lines:
        whole, starts = _joined(whole, starts)
    fields = {key: _without_zeros(value) for key, value in (meta or {}).items() if value}
    return Decoded(
        whole,
        encoding=None,
        meta=orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode() if fields else None,
        # A page without text at the end begins where the text ends.
        parts=tuple(part._replace(start=min(part.start, len(whole))) for part in starts),
        lost=lost or {},
    )


def _without_zeros(value: Any) -> Any:
    """Return a value without what some programs put at the end of a title."""
    return value.replace("\0", "").encode(errors="replace").decode() if isinstance(value, str) else value


def _joined(text: str, parts: Sequence[Part]) -> tuple[str, list[Part]]:
    """Return a text with its lines joined, and where its parts then begin."""
    breaks = line_breaks(text)
    bounds = [0, *chain.from_iterable(breaks), len(text)]
    joined = "".join(text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True))
    moved, before = [], 0
    ends = iter([*breaks, (len(text) + 1, 0)])
    start, end = next(ends)
    for part in parts:
        while end and end <= part.start:
            before += end - start
            start, end = next(ends)
        moved.append(part._replace(start=part.start - before))
    return _SOFT.sub(" ", joined).replace(HARD_BREAK, "\n"), moved


SOFT_BREAK = "\n"
"""Ends a line within a paragraph; two of them end the paragraph."""
HARD_BREAK = "\r"
"""Ends a line that is not joined with the next one."""
_SOFT = re.compile(r"(?<![\n\r])\n(?![\n\r])")


def read_member(archive: ZipFile, name: str, *, size: int, config: ReaderConfig) -> bytes:
    """Return a file of a zip archive of ``size`` bytes.

    Raises:
        RecordError: when it unpacks to more than the bounds of the configuration.
        KeyError: when there is no such file.
    """
    info = archive.getinfo(name)
    # zipfile reads no more than is stated here.
    if info.file_size > most_unpacked(size):
        raise unpacks_too_far(size, most_unpacked(size))
    if info.file_size > config.max_record_bytes:
        raise too_large(config.max_record_bytes)
    return archive.read(info)
