"""Files as streams of bytes and lines, decompressed by their suffix (.gz, .zst).

A cut compressed file gives every byte before the cut, the same ones however it is read, and then says that it
is cut; so the lines before the cut are not lost. Where bytes are damaged, the decoder may give up a little earlier.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Protocol, TypeVar

import pyarrow as pa
from typing_extensions import override

from concord.pipeline.readers.records import RecordError
from concord.pipeline.storage.files import file_state, open_file, open_for_arrow
from concord.pipeline.storage.urls import is_url

CODECS = {".gz": "gzip", ".zst": "zstd"}

_CHUNK_BYTES = 1 << 16


def with_codecs(suffix: str) -> tuple[str, ...]:
    """Return a suffix alone and followed by that of each supported compression."""
    return (suffix, *(f"{suffix}{codec}" for codec in CODECS))


class Cursor(Protocol):
    """A file opened for reading that knows where it stands and moves forward."""

    position: int

    def skip_to(self, position: int) -> None:
        """Move forward to a position."""

    def close(self) -> None:
        """Let the file go."""


class LineStream:
    """The lines of a file, cut at the byte 0x0A and at nothing else.

    Attributes:
        position: the byte of the decompressed stream at which the next line starts.
    """

    def __init__(self, path: str) -> None:
        self.position = 0
        self._stream, self._damage = _open(path)

    def read_line(self) -> bytes:
        """Give the next line with its line end; nothing at the end of the file.

        Raises:
            RecordError: once, in place of the line in which a compressed stream breaks off. Position then
                stands behind what was left of that line, and at least one byte further.
        """
        line = self._stream.readline()
        self.position += len(line)
        if self._damage is not None and self._damage.error is not None and not line.endswith(b"\n"):
            error, broken_at, self._damage = self._damage.error, self.position, None
            self.position += not line
            raise RecordError(
                error.code, f"the stream breaks off at byte {broken_at} of its decompressed content: {error}"
            )
        return line

    def skip_to(self, position: int) -> None:
        """Move forward to the start of a line; a compressed file is read up to there."""
        if self._stream.seekable():
            self.position = self._stream.seek(position)
        while self.position < position:
            skipped = len(self._stream.read(min(position - self.position, _CHUNK_BYTES)))
            if not skipped:
                return
            self.position += skipped

    def close(self) -> None:
        """Let the file go."""
        self._stream.close()


def read_whole(path: str) -> bytes:
    """Give a file's decompressed content.

    Raises:
        RecordError: when a compressed file is cut or damaged.
    """
    stream, damage = _open(path)
    with stream:
        content = stream.read()
    if damage is not None and damage.error is not None:
        error = damage.error
        raise RecordError(
            error.code, f"the stream breaks off at byte {len(content)} of its decompressed content: {error}"
        )
    return content


CursorT = TypeVar("CursorT", bound=Cursor)

# The cursor of the last piece that was read to its end. The next piece of a compressed file (or of a large
# Parquet row group) mostly follows it; opened anew for each piece, such a file would cost time that grows
# with the square of its size.
_parked: dict[Any, Any] = {}


@contextmanager
def cursor_at(path: str, position: int, *, opened_by: Callable[[str], CursorT]) -> Iterator[CursorT]:
    """Give a cursor on a file that stands at a position, taking up the last piece's where that is possible."""
    key = (opened_by, path, *_version(path))
    cursor: CursorT | None = _parked.pop(key, None)
    if cursor is not None and cursor.position > position:
        cursor.close()
        cursor = None
    if cursor is None:
        cursor = opened_by(path)
    try:
        cursor.skip_to(position)
        yield cursor
    except BaseException:
        cursor.close()
        raise
    while _parked:
        _parked.popitem()[1].close()
    _parked[key] = cursor


def _version(path: str) -> tuple[object, ...]:
    """Give what tells a file from another that bore its name."""
    if is_url(path):
        return file_state(path)
    status = Path(path).stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


class _Decompressed(io.RawIOBase):
    """A decompressed stream that ends at a damage; ``error`` then says what it is."""

    def __init__(self, path: str, codec: str) -> None:
        super().__init__()
        self.error: RecordError | None = None
        self._path = path
        self._codec = codec
        self._position = 0
        self._source = self._reopen(0)
        if file_state(path).size == 0:
            self.error = RecordError("truncated_stream", _advice("the file is empty"))

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        if self.error is not None:
            return 0
        wanted = min(len(buffer), _CHUNK_BYTES)
        try:
            content = self._source.read(wanted)
        except OSError as error:
            if error.errno is not None:
                raise
            content = self._salvage(wanted, str(error))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    @override
    def close(self) -> None:
        self._source.close()
        super().close()

    def _salvage(self, wanted: int, reason: str) -> bytes:
        """Read again byte by byte what a failed read of Arrow has swallowed."""
        self._source.close()
        self._source = self._reopen(self._position)
        salvaged = bytearray()
        try:
            while len(salvaged) < wanted and (byte := self._source.read(1)):
                salvaged += byte
        except OSError as error:
            if error.errno is not None:
                raise
        if len(salvaged) < wanted:
            code = "truncated_stream" if "runcated" in reason else "corrupt_stream"
            self.error = RecordError(code, _advice(reason))
        return bytes(salvaged)

    def _reopen(self, position: int) -> Any:
        source = pa.CompressedInputStream(open_for_arrow(self._path), self._codec)
        while position and (skipped := source.read(min(position, _CHUNK_BYTES))):
            position -= len(skipped)
        return source


def _advice(reason: str) -> str:
    return f"{reason}; what came before it was read; fetch the file again and repeat the run"


def _open(path: str) -> tuple[BinaryIO, _Decompressed | None]:
    codec = CODECS.get(PurePath(path).suffix.lower())
    if codec is None:
        return open_file(path), None
    raw = _Decompressed(path, codec)
    return io.BufferedReader(raw, _CHUNK_BYTES), raw
