"""Files as streams of bytes and lines, decompressed by their suffix (.gz, .zst).

A truncated compressed file yields every byte before the cut, the same ones however it is read, and then reports the
cut, so that the lines before it are not lost. Where bytes are corrupt, the decoder may give up a little earlier. A file
that unpacks to far more than its size is cut as well (``reader.max_unpack_ratio``), and no record is read beyond
``reader.max_record_bytes``.
"""

import io
from pathlib import PurePath
from typing import Any, BinaryIO

import pyarrow as pa
from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.records import RecordError, file_changed, too_large
from concord.pipeline.storage.atomic_writes import CODECS
from concord.pipeline.storage.files import open_file, open_for_arrow

_CHUNK_BYTES = 1 << 16
_READ_BYTES = 1 << 20

ALWAYS_UNPACKED_BYTES = 64 << 20
"""A compressed file is read up to here whatever its size: short files may well be repetitive."""


_DEFAULT = ReaderConfig()


def with_codecs(suffix: str) -> tuple[str, ...]:
    """Return a suffix alone and followed by that of each supported compression."""
    return (suffix, *(f"{suffix}{codec}" for codec in CODECS))


class LineStream:
    """The lines of a file, separated by the byte 0x0A only.

    Attributes:
        position: the byte of the decompressed stream at which the next line starts.
    """

    def __init__(self, path: str, config: ReaderConfig) -> None:
        self.position = 0
        self._most = config.max_record_bytes
        self._stream, self._damage = _open(path, config)

    def read_line(self) -> bytes:
        """Read the next line with its line end; empty at the end of the file.

        Raises:
            RecordError: in place of a line that is too long, with the position after it; and once in place of the line
                in which a compressed stream breaks off, with the position after what was left of that line, and at
                least one byte further.
        """
        line = self._stream.readline(self._most + 1)
        self.position += len(line)
        is_too_long, end = len(line) > self._most, line[-1:]
        while is_too_long and end not in (b"", b"\n"):
            rest = self._stream.readline(_READ_BYTES)
            self.position += len(rest)
            end = rest[-1:]
        if self._damage is not None and self._damage.error is not None and end != b"\n":
            damage, self._damage = self._damage.error, None
            read, self.position = self.position, self.position + (not line)
            # A name for what is raised would be a cycle through this frame, and keep a long line in memory.
            raise _broken_off(damage, read)
        if is_too_long:
            raise too_large(self._most)
        return line

    def skip_to(self, position: int) -> None:
        """Skip forward to the start of a line; a compressed file is read up to there."""
        if self._stream.seekable():
            self.position = self._stream.seek(position)
        while self.position < position:
            skipped = len(self._stream.read(min(position - self.position, _CHUNK_BYTES)))
            if not skipped:
                return
            self.position += skipped

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def read_whole(path: str, *, expected_size: int | None = None, config: ReaderConfig = _DEFAULT) -> bytes:
    """Read a file's decompressed content.

    Args:
        expected_size: bytes on disk when the plan was made; None accepts any size.
        config: bounds what is read.

    Raises:
        RecordError: when a compressed file is truncated or corrupt, or there is more to read than the bounds allow.
        InputError: when it has another size.
    """
    stream, decompressed = _open(path, config)
    with stream:
        if expected_size is not None:
            size = stream.seek(0, io.SEEK_END) if decompressed is None else decompressed.size_on_disk
            if size != expected_size:
                raise file_changed(path, f"{expected_size} bytes", size)
            if decompressed is None:
                stream.seek(0)
        content = _read_at_most(stream, config.max_record_bytes + 1)
    if decompressed is not None and decompressed.error is not None:
        raise _broken_off(decompressed.error, len(content))
    if len(content) > config.max_record_bytes:
        raise too_large(config.max_record_bytes)
    return content


class _Decompressed(io.RawIOBase):
    """A decompressed stream that ends where the file is truncated, corrupt or a bomb; ``error`` then says which.

    Attributes:
        size_on_disk: bytes of the compressed file.
    """

    def __init__(self, path: str, codec: str, config: ReaderConfig) -> None:
        super().__init__()
        self.error: RecordError | None = None
        self._path = path
        self._codec = codec
        self._position = 0
        self._source = self._reopen(0)
        # Of the whole file and not of what was read of it: the cut must be the same however the file is read.
        self._most = max(ALWAYS_UNPACKED_BYTES, int(config.max_unpack_ratio * self.size_on_disk))
        if self.size_on_disk == 0:
            self.error = RecordError("truncated_stream", _advice("the file is empty"))

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        if self.error is not None:
            return 0
        size = min(len(buffer), _CHUNK_BYTES, self._most + 1 - self._position)
        try:
            content = self._source.read(size)
        except OSError as error:
            if error.errno is not None:
                raise
            content = self._salvage(size, str(error))
        if self._position + len(content) > self._most:
            content = content[: self._most - self._position]
            self.error = RecordError(
                "unpacks_too_far",
                f"{self.size_on_disk:,} bytes unpack to more than {self._most:,}; what follows was not read; check the "
                "file, or raise reader.max_unpack_ratio in a retry if it is what you expect",
            )
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    @override
    def close(self) -> None:
        self._source.close()
        super().close()

    def _salvage(self, size: int, reason: str) -> bytes:
        """Read byte by byte what a failed read of Arrow has discarded."""
        self._source.close()
        self._source = self._reopen(self._position)
        salvaged = bytearray()
        try:
            while len(salvaged) < size and (byte := self._source.read(1)):
                salvaged += byte
        except OSError as error:
            if error.errno is not None:
                raise
        if len(salvaged) < size:
            code = "truncated_stream" if "runcated" in reason else "corrupt_stream"
            self.error = RecordError(code, _advice(reason))
        return bytes(salvaged)

    def _reopen(self, position: int) -> Any:
        file = open_for_arrow(self._path)
        self.size_on_disk: int = file.size()
        source = pa.CompressedInputStream(file, self._codec)
        while position and (skipped := source.read(min(position, _CHUNK_BYTES))):
            position -= len(skipped)
        return source


def _broken_off(error: RecordError, position: int) -> RecordError:
    return RecordError(error.code, f"the stream breaks off at byte {position} of its decompressed content: {error}")


def _advice(reason: str) -> str:
    return f"{reason}; everything before that was read; fetch the file again and repeat the run"


def _read_at_most(stream: BinaryIO, limit: int) -> bytes:
    """Read to the end, or at most ``limit`` bytes; in steps, since a single call would allocate all of them at once."""
    chunks: list[bytes] = []
    while limit and (chunk := stream.read(min(limit, _READ_BYTES))):
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)


def _open(path: str, config: ReaderConfig) -> tuple[BinaryIO, _Decompressed | None]:
    codec = CODECS.get(PurePath(path).suffix.lower())
    if codec is None:
        return open_file(path), None
    raw = _Decompressed(path, codec, config)
    return io.BufferedReader(raw, _CHUNK_BYTES), raw
