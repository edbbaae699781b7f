"""Files as streams of bytes and lines: decompressed by their suffix (.gz, .zst), and in UTF-8.

A truncated compressed file yields every byte before the cut, the same ones however it is read, and then reports the
cut, so that the lines before it are not lost. Where bytes are corrupt, the decoder may give up a little earlier. A file
that unpacks to far more than its size is cut as well (``UNPACK_RATIO``), and no record is read beyond
``reader.max_record_bytes``.
"""

import codecs
import io
import re
import sys
import zlib
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, BinaryIO

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.encodings import mark_of
from concord.pipeline.readers.records import RecordError, file_changed, too_large
from concord.pipeline.storage.atomic_writes import CODECS
from concord.pipeline.storage.files import open_file

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_CHUNK_BYTES = 1 << 16
_LEAST_STEP_BYTES = 1 << 10
_READ_BYTES = 1 << 20

UNPACK_RATIO = 100
"""How many times its size is read of a compressed file."""
ALWAYS_UNPACKED_BYTES = 64 << 20
"""A compressed file is read up to here whatever its size: short files may well be repetitive."""

_NO_START = "no {} begins here: rename a file that is not compressed, cut off what follows the end, or fetch it again"
_ADVICE = {
    "header check": _NO_START.format("gzip member"),
    "frame descriptor": _NO_START.format("zstd frame"),
    "memory": "its window is larger than 2 GiB, or than the free memory: compress it again, with a smaller zstd --long",
    "Dictionary": "it needs the dictionary that it was compressed with: decompress it with zstd -D",
}
"""What to do about an error of a decoder, by its words; other files are damaged."""

_WINDOW: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 31}
_INVALID = "concord.invalid"
_ERRORS = (zlib.error, zstd.ZstdError)
_DEFAULT = ReaderConfig()


def with_codecs(suffix: str) -> tuple[str, ...]:
    """Return a suffix alone and followed by that of each supported compression."""
    return (suffix, *(f"{suffix}{codec}" for codec in CODECS))


def most_unpacked(size: int) -> int:
    """Return how many bytes a file of this size may unpack to."""
    # Of the whole file and not of what was read of it: the cut must be the same however the file is read.
    return max(ALWAYS_UNPACKED_BYTES, UNPACK_RATIO * size)


def unpacks_too_far(size: int, most: int, *, loses_file: bool = False) -> RecordError:
    """Return the error of a file of this size that unpacks to more bytes than ``most_unpacked``."""
    return RecordError(
        "unpacks_too_far",
        f"{size:,} bytes unpack to more than {most:,}; what follows was not read; check the file, and "
        "unpack it, or write it in another format, if it is what you expect",
        loses_file=loses_file,
    )


class LineStream:
    """The lines of a file. They end in the byte 0x0A, or in 0x0D where the file has that alone, as of old Macs.

    Attributes:
        position: the byte of the decompressed stream at which the next line starts.
        encoding: UTF-16, UTF-32 or another encoding in which lines cannot be found, and of which the stream is the
            UTF-8; None for the bytes of the file.
    """

    def __init__(self, path: str, config: ReaderConfig) -> None:
        self.position = 0
        self._most = config.max_record_bytes
        self._stream, self._damage = open_stream(path)
        self.encoding = mark_of(self._stream.read(4)) or (None if _ends_in_line_feed(config) else config.encoding)
        self._stream.seek(0)
        if self.encoding is not None:
            self._stream = io.BufferedReader(_Transcoded(self._stream, self.encoding), _CHUNK_BYTES)
        self._ends = _line_ends(self._stream)
        self._stream.seek(0)

    def read_line(self) -> bytes:
        """Read the next line with its line end; empty at the end of the file.

        Raises:
            RecordError: in place of a line that is too long, with the position after it; and once in place of the line
                in which a compressed stream breaks off, with the position after what was left of that line, and at
                least one byte further.
        """
        line = self._read(self._most + 1)
        self.position += len(line)
        is_too_long, end = len(line) > self._most, line[-1:]
        while is_too_long and end and end not in self._ends:
            rest = self._read(_READ_BYTES)
            self.position += len(rest)
            end = rest[-1:]
        if self._damage is not None and self._damage.error is not None and (not end or end not in self._ends):
            damage, self._damage = self._damage.error, None
            read, self.position = self.position, self.position + (not line)
            # A name for what is raised would be a cycle through this frame, and keep a long line in memory.
            raise _broken_off(damage, read)
        if is_too_long:
            raise too_large(self._most)
        return line

    def skip_to(self, position: int) -> None:
        """Skip forward to the start of a line; a compressed file is read up to there."""
        self.position = self._stream.seek(position)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _read(self, most: int) -> bytes:
        """Read up to the end of a line, or ``most`` bytes."""
        if self._ends == b"\n":
            return self._stream.readline(most)
        line = bytearray()
        while ahead := self._stream.peek()[: most - len(line)]:
            end = re.search(b"[\r\n]", ahead)
            line += self._stream.read(end.end() if end else len(ahead))
            if end:
                break
        return bytes(line)


def read_whole(path: str, *, expected_size: int | None = None, config: ReaderConfig = _DEFAULT) -> bytes:
    """Read a file's decompressed content.

    Args:
        expected_size: bytes on disk when the plan was made; None accepts any size.
        config: bounds what is read.

    Raises:
        RecordError: when a compressed file is truncated or corrupt, or there is more to read than the bounds allow.
        InputError: when it has another size.
    """
    stream, decompressed = open_stream(path)
    with stream:
        if expected_size is not None:
            size = stream.seek(0, io.SEEK_END) if decompressed is None else decompressed.size_on_disk
            if size != expected_size:
                raise file_changed(path, f"{expected_size} bytes", size)
            if decompressed is None:
                stream.seek(0)
        content = read_at_most(stream, config.max_record_bytes + 1)
    if decompressed is not None and decompressed.error is not None:
        raise _broken_off(decompressed.error, len(content))
    if len(content) > config.max_record_bytes:
        raise too_large(config.max_record_bytes)
    return content


class _Derived(io.RawIOBase):
    """A stream that is made from another one, and whose bytes are found by reading."""

    def __init__(self, source: BinaryIO) -> None:
        super().__init__()
        self._source = source
        self._position = 0
        self._restart()

    @abstractmethod
    def _restart(self) -> None:
        """Go back to the start; the source is there already."""

    @abstractmethod
    def _produce(self, size: int) -> bytes:
        """Return the next bytes, at most ``size``; none at the end."""

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        content = self._produce(min(len(buffer), _CHUNK_BYTES))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        offset += self._position if whence == io.SEEK_CUR else 0
        if offset < self._position:
            self._source.seek(0)
            self._position = 0
            self._restart()
        while self._position < offset and self.read(min(offset - self._position, _CHUNK_BYTES)):
            pass
        return self._position

    @override
    def close(self) -> None:
        self._source.close()
        super().close()


class _Decompressed(_Derived):
    """A decompressed stream that ends where the file is truncated, corrupt or a bomb; ``error`` then says which.

    Attributes:
        size_on_disk: bytes of the compressed file.
    """

    error: RecordError | None

    def __init__(self, source: BinaryIO, codec: str) -> None:
        self._codec = codec
        self.size_on_disk = source.seek(0, io.SEEK_END)
        source.seek(0)
        self._most = most_unpacked(self.size_on_disk)
        # Where the stream breaks off is known to a thousandth.
        self._step = min(max(self.size_on_disk // 1000, _LEAST_STEP_BYTES), _CHUNK_BYTES)
        super().__init__(source)

    @override
    def _restart(self) -> None:
        self.error = None
        self._decoder = self._new_decoder()

    @override
    def _produce(self, size: int) -> bytes:
        if self.error is not None:
            return b""
        size = min(size, self._most + 1 - self._position)
        try:
            content = self._decode(size)
        except _ERRORS as error:
            content = self._salvage(size, error)
        if self._position + len(content) > self._most:
            content = content[: self._most - self._position]
            self.error = unpacks_too_far(self.size_on_disk, self._most, loses_file=True)
        return content

    def _decode(self, size: int) -> bytes:
        """Return the next bytes of the members (gzip) or frames (zstd), which follow one another."""
        while True:
            # What zlib did not take is given again; zstd keeps it.
            chunk, is_open = b"" if self._codec == "zstd" else self._decoder.unconsumed_tail, True
            if self._decoder.eof:
                chunk = self._next_start()
                if not chunk:
                    return b""
                self._decoder = self._new_decoder()
            elif self._decoder.needs_input if self._codec == "zstd" else not chunk:
                chunk = self._source.read(self._step)
                is_open = bool(chunk)
            content: bytes = self._decoder.decompress(chunk, size)
            if content:
                return content
            if not (is_open or self._decoder.eof):
                is_empty = not self.size_on_disk
                reason = "the file is empty" if is_empty else "the file ends before its compressed content does"
                self.error = RecordError("truncated_stream", _advice(reason), loses_file=True)
                return b""

    def _next_start(self) -> bytes:
        """Return the first bytes after a member or frame; zeros that fill up a gzip file are skipped."""
        rest: bytes = self._decoder.unused_data or self._source.read(self._step)
        if self._codec != "gzip":
            return rest
        while rest and not rest.strip(b"\0"):
            rest = self._source.read(self._step)
        rest = rest.lstrip(b"\0")
        if rest and not rest.startswith(b"\x1f"):
            raise zlib.error("incorrect header check")
        return rest

    def _new_decoder(self) -> Any:
        return zlib.decompressobj(wbits=31) if self._codec == "gzip" else zstd.ZstdDecompressor(options=_WINDOW)

    def _salvage(self, size: int, error: Exception) -> bytes:
        """Read byte by byte what a decoder that failed has discarded."""
        self._source.seek(0)
        self._restart()
        before, salvaged = self._position, bytearray()
        while before and (skipped := self._decode(min(before, _CHUNK_BYTES))):
            before -= len(skipped)
        try:
            while len(salvaged) < size and (byte := self._decode(1)):
                salvaged += byte
        except _ERRORS:
            self.error = RecordError("corrupt_stream", _advice(str(error)), loses_file=True)
        return bytes(salvaged)


class _Transcoded(_Derived):
    """The UTF-8 of a stream in another encoding; where its bytes are invalid, so is the UTF-8."""

    def __init__(self, source: BinaryIO, encoding: str) -> None:
        self._encoding = encoding
        super().__init__(source)

    @override
    def _restart(self) -> None:
        self._decoder = codecs.getincrementaldecoder(self._encoding)(_INVALID)
        self._waiting, self._is_open = b"", True

    @override
    def _produce(self, size: int) -> bytes:
        while not self._waiting and self._is_open:
            chunk = self._source.read(size)
            self._is_open = bool(chunk)
            self._waiting = self._decoder.decode(chunk, final=not chunk).encode("utf-8", "surrogateescape")
        content, self._waiting = self._waiting[:size], self._waiting[size:]
        return content


def _to_surrogate(error: UnicodeError) -> tuple[str, int]:
    return "\udcff", error.end if isinstance(error, UnicodeDecodeError) else 0


codecs.register_error(_INVALID, _to_surrogate)


def _ends_in_line_feed(config: ReaderConfig) -> bool:
    return config.encoding == "auto" or "\n".encode(config.encoding) == b"\n"


def _line_ends(stream: BinaryIO) -> bytes:
    """Return the bytes that end lines: the line feed, and the carriage return where the first line ends in it alone."""
    while chunk := stream.read(_CHUNK_BYTES):
        if end := re.search(b"[\r\n]", chunk):
            following = chunk[end.end() : end.end() + 1] or stream.read(1)
            return b"\r\n" if end[0] == b"\r" and following != b"\n" else b"\n"
    return b"\n"


def _broken_off(error: RecordError, position: int) -> RecordError:
    message = f"the stream breaks off at byte {position} of its decompressed content: {error}"
    return RecordError(error.code, message, loses_file=error.loses_file)


def _advice(reason: str) -> str:
    advice = next((advice for words, advice in _ADVICE.items() if words in reason), "fetch the file again")
    return f"{reason}; everything before that was read; {advice} and repeat the run"


def read_at_most(stream: BinaryIO, limit: int) -> bytes:
    """Read to the end, or at most ``limit`` bytes; in steps, since a single call would allocate all of them at once."""
    chunks: list[bytes] = []
    while limit and (chunk := stream.read(min(limit, _READ_BYTES))):
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)


def open_stream(path: str) -> tuple[io.BufferedReader, _Decompressed | None]:
    codec = CODECS.get(PurePath(path).suffix.lower())
    if codec is None:
        return open_file(path), None
    raw = _Decompressed(open_file(path), codec)
    return io.BufferedReader(raw, _CHUNK_BYTES), raw
