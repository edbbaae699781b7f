"""Web archives (.warc): each response that is an HTML page is a document, and so is each page that is a resource.

Positions are bytes of the file, at which a record is found without reading those before it: also where each record is
compressed by itself, as is usual (.warc.gz). Of a file that is compressed as a whole, they are those of its content.
"""

import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import PurePath
from typing import Any, Protocol

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.base import ArchiveReader, RawRecord, as_record_errors
from concord.pipeline.readers.extraction import Mark, begin
from concord.pipeline.readers.fields import meta_of
from concord.pipeline.readers.files import (
    Decoded,
    decode,
    most_unpacked,
    open_stream,
    read_at_most,
    unpacks_too_far,
    with_codecs,
)
from concord.pipeline.readers.records import RecordError, too_large
from concord.pipeline.readers.web import read_page
from concord.pipeline.storage.files import file_state, open_file

_HEAD_BYTES = 1 << 16
"""In so many bytes of a record stands what it is."""
_CHUNK_BYTES = 1 << 16
_LEAST_BYTES = 1 << 10
_READ_BYTES = 1 << 20
_ADVICE = "fetch the file again and repeat the run"
_VERSION = b"WARC/"
_START = re.compile(rb"WARC/\d\.\d\r\n")
_MEMBER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n")
_BLANK = b"\r\n\r\n"
_PAGES = ("text/html", "application/xhtml+xml")
_TEXT = "text/plain"
"""What crawlers make of pages (WET files)."""
_LIKE_PAGE = re.compile(rb"(?i)[\s\xef\xbb\xbf]*(?:<!--.{0,500}?-->\s*)?<(?:!doctype html|html)\b", re.DOTALL)


class WarcReader(ArchiveReader):
    """Reads the pages of files."""

    suffixes = with_codecs(".warc")
    libraries = ("fastwarc", "resiliparse")

    @override
    def finds(self, path: str, config: ReaderConfig) -> bool:
        return super().finds(path, config) or (_is_gzip(path) and _has_members(path))

    @override
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[RawRecord]:
        source: _Source = _Members(path, config) if _is_gzip(path) and _has_members(path) else _Whole(path, config)
        with closing(source):
            position: int | None = start
            while position is not None:
                begin(Mark(position))
                raw, position = _next(source, position, config)
                if raw is not None:
                    yield raw

    @override
    def extract(self, raw: RawRecord, config: ReaderConfig) -> Decoded:
        content: Any = raw.content
        record = _page_of(content)
        payload = _payload(content, config)
        if _media_type(record) == _TEXT:
            page, title = decode(payload, encoding=config.encoding, errors=config.errors), ""
        else:
            page, title = read_page(
                payload,
                config,
                charset=(record.http_charset or "").strip("\"' ") or None,
                main_content=config.main_content,
                is_xml=_media_type(record) == _PAGES[1],
            )
        fields = _fields(record) | ({"title": title} if title else {})
        return page._replace(meta=meta_of(fields, config=config)[0])


class _Source(Protocol):
    """A file of records, each of which begins at a position."""

    def take(self, position: int) -> tuple[bytes | RecordError, int] | None:
        """Return a record, or only its first bytes where it is no page, and its end; None at the end of the file.

        Raises:
            RecordError: when its end is not found.
        """

    def find(self, position: int) -> tuple[int, bool]:
        """Return where the next record begins behind one that is broken, or the end of the file, and which it is."""

    def close(self) -> None:
        """Close the file."""


def _next(source: _Source, start: int, config: ReaderConfig) -> tuple[RawRecord | None, int | None]:
    """Return the record at a position, None if it is no page, and its end, None at the end of the file."""
    end = start
    try:
        taken = source.take(start)
        if taken is None:
            return None, None
        content, end = taken
        if isinstance(content, RecordError):
            raise content
        with as_record_errors("record of a web archive"):
            header, length = _header_of(content)
            record = _page_of(content)
            if record is None:
                return None, end
            if length > len(content) - header or content[header + length :].strip():
                raise RecordError(
                    "invalid_warc",
                    f"expected one record of {length:,} bytes, got {len(content) - header:,}; fetch the file again, or "
                    "compress each record by itself",
                )
        return RawRecord(start, end, content, _fields(record).get(config.id_field)), end
    except RecordError as error:
        if end == start:
            end, is_found = source.find(start)
            end = max(end, start + 1)
            error.loses_file = error.loses_file or not is_found
        return RawRecord(start, end, error.with_traceback(None)), end


def _fields(record: Any) -> dict[str, str]:
    names = {"url": "WARC-Target-URI", "date": "WARC-Date", "truncated": "WARC-Truncated"}
    fields = {name: record.headers.get(header) for name, header in names.items()}
    return {name: value.strip("<>") for name, value in fields.items() if value}


def _is_gzip(path: str) -> bool:
    return PurePath(path).suffix.lower() == ".gz"


def _page_of(content: bytes) -> Any:
    """Return FastWARC's record for the bytes of one, or for its first bytes; None if it is no page."""
    from fastwarc.warc import WarcRecord, WarcRecordType

    record = WarcRecord.from_bytes(content)
    if record.record_type == WarcRecordType.response and record.is_http:
        # In quirks mode lines may end in a line feed alone, as in ClueWeb.
        record.parse_http(auto_decode="none", quirks_mode=True)
        status = record.http_headers.status_code
        if status is None and record.http_headers.status_line:
            raise RecordError("invalid_http", "expected a server's answer of HTTP, got something else")
        if status is None or not 200 <= status < 300:
            return None
    elif record.record_type == WarcRecordType.conversion:
        return record if _media_type(record) == _TEXT else None
    elif record.record_type != WarcRecordType.resource:
        return None
    media = _media_type(record)
    is_page = media in _PAGES or (not media and _LIKE_PAGE.match(record.reader.read(1000)))
    return record if is_page else None


def _media_type(record: Any) -> str:
    media = record.http_content_type if record.is_http_parsed else record.headers.get("Content-Type")
    return (media or "").partition(";")[0].strip().lower()


def _payload(content: bytes, config: ReaderConfig) -> bytes:
    """Return the page within a record. Some archives store it decoded, and its headers say otherwise."""
    from fastwarc.warc import WarcRecord

    def read(auto_decode: Any) -> bytes:
        record = WarcRecord.from_bytes(content)
        if record.is_http:
            record.parse_http(auto_decode=auto_decode, quirks_mode=True)
        page: bytes = record.reader.read(config.max_record_bytes + 1)
        return page

    try:
        page = read("all")
    except OSError as error:
        page = read("none")
        if not page.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            raise RecordError(
                "invalid_http", f"expected a page that can be decoded, got one that cannot ({error})"
            ) from None
    if len(page) > config.max_record_bytes:
        raise too_large(config.max_record_bytes)
    return page


def _header_of(content: bytes) -> tuple[int, int]:
    """Return the length of a record's header, and that of what follows it as the header states it."""
    end = content.find(_BLANK)
    stated = _LENGTH.search(content, 0, end + 2) if end >= 0 else None
    if stated is None or not content.startswith(_VERSION):
        raise RecordError("invalid_warc", f"expected the header of a record, got {content[:20]!r}; {_ADVICE}")
    return end + len(_BLANK), int(stated[1])


def _is_wanted(content: bytes) -> bool:
    """Tell whether the record with these first bytes is a page, or must be looked at to know what is wrong with it."""
    try:
        return _page_of(content) is not None
    except (OSError, RecordError):
        return True


class _Whole(_Source):
    """Records that follow one another in a file, or in the content of one that is compressed as a whole."""

    def __init__(self, path: str, config: ReaderConfig) -> None:
        self._most = config.max_record_bytes
        self._stream, self._damage = open_stream(path)
        self._size = None if self._damage else file_state(path).size

    def take(self, position: int) -> tuple[bytes | RecordError, int] | None:
        self._stream.seek(position)
        header = bytearray()
        while len(header) < _HEAD_BYTES and not header.endswith(_BLANK):
            line = self._stream.readline(_HEAD_BYTES)
            header += line if header or line.strip() else b""
            position += 0 if header else len(line)
            # Another record's first line is no header of this one.
            if not line or (line != header and line.startswith(_VERSION)):
                break
        if not header:
            self._raise_damage()
            return None
        _, length = _header_of(bytes(header))
        end = position + len(header) + length
        content = bytes(header) + self._stream.read(min(length, _HEAD_BYTES))
        taken: bytes | RecordError = content
        if length > _HEAD_BYTES and _is_wanted(content):
            if length <= self._most:
                content += read_at_most(self._stream, length - _HEAD_BYTES)
                taken = content
            else:
                taken = too_large(self._most)
        reached = self._stream.seek(end)
        if (reached if self._size is None else self._size) < end:
            self._raise_damage()
            raise RecordError("truncated_stream", f"the file ends within a record; {_ADVICE}")
        blank = self._stream.read(len(_BLANK))
        if blank.strip():
            raise RecordError(
                "invalid_warc",
                f"expected the end of a record {length:,} bytes after its header, got {blank!r}; {_ADVICE}",
            )
        return taken, end + len(blank)

    def find(self, position: int) -> tuple[int, bool]:
        # What is compressed cannot be read again.
        offset, before = self._stream.tell() if self._size is None else self._stream.seek(position + 1), b""
        while chunk := self._stream.read(_CHUNK_BYTES):
            if start := _START.search(before + chunk):
                return offset - len(before) + start.start(), True
            offset += len(chunk)
            before = chunk[-16:]
        return offset, False

    def close(self) -> None:
        self._stream.close()

    def _raise_damage(self) -> None:
        if self._damage is not None and self._damage.error is not None:
            error, self._damage = self._damage.error, None
            raise error


class _Members(_Source):
    """Records that are gzip members of a file."""

    def __init__(self, path: str, config: ReaderConfig) -> None:
        self._config = config
        self._file = open_file(path)
        # What was read already, from a position on.
        self._ahead = (0, b"")

    def take(self, position: int) -> tuple[bytes | RecordError, int] | None:
        chunk = self._read_at(position)
        while chunk and not chunk.strip(b"\0"):
            chunk = self._file.read(_CHUNK_BYTES)
        if not chunk:
            return None
        decoder, content, size = zlib.decompressobj(wbits=31), bytearray(), 0
        is_wanted: bool | None = None
        while not decoder.eof:
            try:
                unpacked = decoder.decompress(chunk, _READ_BYTES)
            except zlib.error as error:
                raise RecordError("corrupt_stream", f"expected a gzip member, got {error}; {_ADVICE}") from None
            size += len(unpacked)
            packed = self._file.tell() - position
            if size > most_unpacked(packed):
                raise unpacks_too_far(packed, most_unpacked(packed))
            if is_wanted is not False and len(content) <= self._config.max_record_bytes:
                content += unpacked
            if is_wanted is None and (decoder.eof or len(content) >= _HEAD_BYTES):
                is_wanted = _is_wanted(bytes(content))
            chunk = decoder.unconsumed_tail or (b"" if decoder.eof else self._file.read(_CHUNK_BYTES))
            if not (chunk or unpacked or decoder.eof):
                raise RecordError("truncated_stream", f"the file ends within a record; {_ADVICE}")
        end = self._file.tell() - len(decoder.unused_data)
        self._ahead = (end, decoder.unused_data)
        if is_wanted and len(content) > self._config.max_record_bytes:
            return too_large(self._config.max_record_bytes), end
        return bytes(content), end

    def find(self, position: int) -> tuple[int, bool]:
        offset, before = self._file.seek(position + 1), b""
        self._ahead = (0, b"")
        while chunk := self._file.read(_CHUNK_BYTES):
            content = before + chunk
            for start in (match.start() for match in _MEMBER.finditer(content)):
                if _begins_record(content[start : start + _LEAST_BYTES]):
                    return offset - len(before) + start, True
            offset += len(chunk)
            # Whatever begins there is looked at again, with what follows it.
            before = content[-_LEAST_BYTES:]
        return offset, False

    def close(self) -> None:
        self._file.close()

    def _read_at(self, position: int) -> bytes:
        """Read some bytes at a position; only the last ones of a file are less than a few."""
        start, ahead = self._ahead
        if start != position or len(ahead) < _LEAST_BYTES:
            self._file.seek(position)
            ahead = self._file.read(_CHUNK_BYTES)
        self._ahead = (0, b"")
        return ahead


def _begins_record(member: bytes) -> bool:
    try:
        return zlib.decompressobj(wbits=31).decompress(member, len(_VERSION)) == _VERSION
    except zlib.error:
        return False


def _has_members(path: str) -> bool:
    """Tell whether each record of a gzip file is compressed by itself, as the first one is."""
    with open_file(path) as file:
        try:
            content = zlib.decompressobj(wbits=31).decompress(file.read(_CHUNK_BYTES), _READ_BYTES)
            header, length = _header_of(content)
        except (zlib.error, RecordError):
            return False
    return not content[header + length :].strip()
