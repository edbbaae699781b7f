"""Input files to documents, by the reader of their format.

Whatever is wrong inside a file becomes a dead letter, never an exception, also where a reader (of another package, say)
raises one. A file that cannot be opened raises an InputError, one whose disk or store fails a StoreError.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, entry_points, version
from itertools import islice
from pathlib import PurePath

from concord.models.errors import ConcordError
from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece
from concord.pipeline.readers.base import CollectionReader, FileReader, Reader
from concord.pipeline.readers.files import read_whole
from concord.pipeline.readers.mail import MailboxReader, MailReader
from concord.pipeline.readers.markup import MarkupReader
from concord.pipeline.readers.office import DocxReader, EpubReader, OdtReader, RtfReader
from concord.pipeline.readers.pdf import PdfReader
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter, file_changed, reason_of
from concord.pipeline.readers.tables import ARROW, CSV, JSONL, PARQUET, TSV, TextReader
from concord.pipeline.readers.web import HtmlReader, WarcReader
from concord.pipeline.storage.atomic_writes import CODECS
from concord.pipeline.storage.files import file_state, read_error

logger = logging.getLogger(__name__)


@cache
def readers() -> Mapping[str, Reader]:
    """Return the readers by the name of their format: the bundled ones, and entry points of other packages.

    An entry point that cannot be loaded is left out with a warning, since the files of other formats do not need it.
    """
    by_format: dict[str, Reader] = {
        "text": TextReader(),
        "jsonl": JSONL,
        "csv": CSV,
        "tsv": TSV,
        "parquet": PARQUET,
        "arrow": ARROW,
        "tei": MarkupReader(),
        "rtf": RtfReader(),
    }
    by_format |= {format: reader for format, reader in OPTIONAL.items() if not missing_libraries(reader)}
    bundled = frozenset(by_format)
    for plugin in entry_points(group="concord.readers"):
        try:
            reader = plugin.load()()
            if not isinstance(reader, FileReader | CollectionReader):
                raise TypeError(f"expected a reader of concord.pipeline.readers.base, got {type(reader).__name__}")
            tuple(reader.suffixes)
        except Exception as error:  # noqa: BLE001 - the code of another package
            logger.warning("%s: cannot be used as the reader of the format %s: %s", plugin.value, plugin.name, error)
        else:
            if plugin.name in bundled:
                logger.warning("%s: is not used, since the format %s has a bundled reader", plugin.value, plugin.name)
            by_format.setdefault(plugin.name, reader)
    return by_format


def reader_for(format: str, *, where: str = "reader.format") -> Reader:
    """Return the reader of a format.

    Raises:
        InputError: when there is none, naming what asks for it.
    """
    reader = readers().get(format)
    if reader is None and format in OPTIONAL:
        missing = " and ".join(missing_libraries(OPTIONAL[format]))
        extra = "html" if format == "html" else "archives"
        raise InputError(f"{where}: reading {format} needs {missing}: pip install 'concord-annotate[{extra}]'")
    if reader is None:
        raise InputError(f"{where}: expected one of the formats {', '.join(readers())}, got {format!r}")
    return reader


def missing_libraries(reader: Reader) -> list[str]:
    """Return the packages that a reader needs and that are not installed."""
    return [name for name in reader.libraries if not _release(name)]


def libraries_of(formats: Iterable[str]) -> dict[str, str]:
    """Return the releases of the libraries that extract the texts of formats, for those that have some."""
    found = {}
    for format in sorted(readers().keys() & set(formats)):
        reader = readers()[format]
        names = [*reader.libraries, *filter(_release, reader.used_if_there)]
        if names:
            found[format] = ", ".join(f"{name} {_release(name)}" for name in names)
    return found


def is_extracted(format: str) -> bool:
    """Tell whether texts are extracted from the files of a format, and compared by the bytes of these."""
    reader = readers().get(format)
    return reader is not None and reader.extracts


def content_sha256(path: str, file_sha256: str, config: ReaderConfig) -> str | None:
    """Return the SHA-256 in hex of the decompressed content of a file, given that of the file; None if it has none."""
    if PurePath(path).suffix.lower() not in CODECS:
        return file_sha256
    try:
        return sha256(read_whole(path, config=config)).hexdigest()
    except RecordError:
        return None


@cache
def _release(library: str) -> str:
    """Return the release of a package that is installed; empty if it is not."""
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def format_of(name: str, *, is_installed: bool = True) -> str | None:
    """Return the format that a file's suffixes name, None if no reader, maybe one that is not installed, knows them.

    Of two readers of one suffix, such as ``.xml``, that of another package counts, which somebody has installed for it.
    """
    suffix = "".join(PurePath(name).suffixes[-2:]).lower()
    available = readers() if is_installed else {**OPTIONAL, **readers()}
    known = [format for format, reader in available.items() if suffix.endswith(tuple(reader.suffixes))]
    return known[-1] if known else None


_FOR_MAIL = partial(format_of, is_installed=False), partial(reader_for, where="reader.attachments")
OPTIONAL: Mapping[str, Reader] = {
    "html": HtmlReader(),
    "pdf": PdfReader(),
    "docx": DocxReader(),
    "odt": OdtReader(),
    "epub": EpubReader(),
    "eml": MailReader(*_FOR_MAIL),
    "mbox": MailboxReader(*_FOR_MAIL),
    "warc": WarcReader(),
}
"""The bundled readers that need an extra, by format."""


def scan_file(
    path: str, *, format: str, name: str, config: ReaderConfig, fault: str | None = None
) -> Iterator[ScannedRecord]:
    """Find a file's records, for the planner; arguments as for ``Reader.scan``.

    Where the reader fails, the last record stands for the rest of the file, and becomes a dead letter.

    Args:
        fault: why the file cannot be opened; it is then one such record.
    """
    end = 0
    try:
        if fault is not None:
            raise RecordError("unreadable_file", fault)
        with _failures(path, format):
            for record in reader_for(format, where=path).scan(path, name=name, config=config):
                end = record.end
                yield record
    except RecordError as failure:
        known = failure.code, str(failure)
        yield ScannedRecord(position=end, end=end + 1, size=1, doc_id=None, loses_file=True, fault=known)


def read_piece(piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
    """Read a piece's records: one document or dead letter for each that the planner counted.

    Raises:
        InputError: when there are more or fewer: the file has changed since the plan was made.
    """
    reader, count = reader_for(piece.format, where=piece.uri), 0
    is_lost = piece.fault is not None
    found = replace(piece, end=piece.end - is_lost, records=piece.records - is_lost, fault=None)
    try:
        with _failures(piece.uri, piece.format):
            for record in reader.read(found, config) if found.records else ():
                count += 1
                yield record
    except RecordError as failure:
        count += 1
        if count != found.records:
            raise InputError(f"{piece.uri}: cannot be read after {count - 1} records ({failure})") from failure
        yield dead_letter(failure, piece, piece.start if count == 1 else found.end - 1, reader.unit)
    if count != found.records:
        raise file_changed(piece.uri, f"{found.records} records", count)
    if piece.fault is not None:
        yield dead_letter(RecordError(*piece.fault), piece, found.end, reader.unit)


def read_records(
    path: str, *, format: str, name: str, config: ReaderConfig, limit: int | None = None, fault: str | None = None
) -> Iterator[tuple[ScannedRecord, Document | DeadLetter]]:
    """Scan a file, or its first records, and then read it; arguments as for ``scan_file``."""
    records = list(islice(scan_file(path, format=format, name=name, config=config, fault=fault), limit))
    if records:
        end, known = records[-1].end, records[-1].fault
        piece = Piece(uri=path, format=format, start=0, end=end, records=len(records), name=name, fault=known)
        yield from zip(records, read_piece(piece, config), strict=True)


def read_text_at(path: str, *, format: str, position: int, config: ReaderConfig) -> str:
    """Read the text of the record that starts at a position (see Document.source_position).

    Raises:
        RecordError: when no text starts there.
    """
    reader = reader_for(format, where=path)
    end = file_state(path).size if isinstance(reader, FileReader) else sys.maxsize
    piece = Piece(uri=path, format=format, start=position, end=end, records=1)
    with _failures(path, format):
        record = next(reader.read(piece, config), None)
    if isinstance(record, Document):
        return record.text
    raise RecordError(
        "no_such_text", "expected a record, got the end of the file" if record is None else record.message
    )


@contextmanager
def _failures(path: str, format: str) -> Iterator[None]:
    """Raise a RecordError in place of what a reader raises, and errors of concord, the disk or the store as such."""
    try:
        yield
    except (RecordError, ConcordError):
        raise
    except Exception as error:
        # Decoders raise OSErrors without a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise read_error(path, error) from error
        code, advice = "unreadable", "fix the file or remove it"
        if isinstance(error, MemoryError):
            code, advice = "out_of_memory", "give workers more memory, or lower reader.max_record_bytes"
        raise RecordError(
            code, f"the reader of the format {format} fails ({reason_of(error)}); nothing after this was read; {advice}"
        ) from error
