"""Files as streams of bytes and lines, and their bytes as text.

A file is decompressed by its suffix (.gz, .zst). A truncated one yields every byte before the cut, the same ones
however it is read, and then reports the cut, so that the lines before it are not lost. Where bytes are corrupt, the
decoder gives up a little earlier (``_STEP_BYTES``). A file that unpacks to far more than its size is cut as well
(``UNPACK_RATIO``), and no record is read beyond ``reader.max_record_bytes``.

A leading byte order mark belongs to the encoding, not to the text, and is removed. Line ends stay as they are.
"""

import codecs
import gzip
import io
import re
import sys
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import PurePath
from typing import Any, BinaryIO, Literal, NamedTuple

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import Lost, Part
from concord.pipeline.readers.records import RecordError, file_changed, too_large
from concord.pipeline.storage.atomic_writes import CODECS
from concord.pipeline.storage.files import open_file

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_STEP_BYTES = 1 << 13
_CHUNK_BYTES = 1 << 16
_READ_BYTES = 1 << 20

UNPACK_RATIO = 100
"""How many times its size is read of a compressed file."""
ALWAYS_UNPACKED_BYTES = 64 << 20
"""A compressed file is read up to here whatever its size: short files may well be repetitive."""

_WINDOW: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 31}
_INVALID = "concord.invalid"
_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError)
Errors = Literal["strict", "replace"]

# Longer marks first: that of UTF-32 starts like that of UTF-16.
_MARKS = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
_SET = "set reader.encoding or convert the file to utf-8"
_FIX = "fix the bytes or set reader.encoding"
_AS_BROWSERS = "concord.as_browsers"
_ROWS_OF = {("euc_jp", b"\xad"): "euc_jis_2004", ("big5hkscs", b"\xa3"): "cp950"}
_WESTERN = "cp1252"
_LATIN = (_WESTERN, "cp1250", "iso8859-2", "cp1254", "cp1257", "cp1258", "cp850", "mac-roman")
_OTHER_SCRIPTS = (
    *("cp1251", "koi8-r", "koi8-u", "iso8859-5", "mac-cyrillic", "cp866", "cp1253", "iso8859-7", "cp1255", "iso8859-8"),
    *("cp1256", "iso8859-6", "cp874", "cp932", "euc_jis_2004", "gb18030", "big5hkscs", "cp949"),
)
_SAMPLE_BYTES = 1 << 16
"""So much of a text is looked at to guess its encoding."""
_SURE = 0.15
"""Another script must be this much likelier than the Latin one; of 720 scraps of manual pages none came out wrong."""
_LEAD = 0.05
"""Another encoding of the Latin script must be this much likelier than Western European."""
_MARKUP = re.compile(rb"<[^<>]*>")
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]+(?:[\x00-\x7f]{1,48}[\x80-\xff]+){0,1000}")
_TURKISH = re.compile(rb"[\xd0\xdd\xde\xf0\xfd\xfe]")
_PUNCTUATION = "\u2018\u2019\u201c\u201d\u201e\u2026\u2013\u2014\u2022\u00ab\u00bb\u00a0\u00ad\u00b7\u00b4"
_SIGNS = "\xa9\xae\xb0"
_RUNS = re.compile(r"(?:(?<=([A-Za-z]))|)([^\x00-\x7f]+)(?=([A-Za-z]?))")
_WITHIN_WORDS = "\u2019\u2013\u2014\u2026\u00ad\u00b7\u00b4\u00a0"
_CONTROLS = re.compile(rb"[\x00-\x06\x0e-\x1a]")
_FEW, _FEW_SHARE = 3, 0.01
"""With ``reader.errors: replace`` so many bad bytes of a record are replaced, or this share of all if that is more."""
_ASCII = bytes(range(0x20, 0x7E))


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
        ends_in_line_feed = config.encoding == "auto" or "\n".encode(config.encoding) == b"\n"
        self.encoding = mark_of(self._stream.read(4)) or (None if ends_in_line_feed else config.encoding)
        self._stream.seek(0)
        if self.encoding is not None:
            text = io.TextIOWrapper(self._stream, self.encoding, _INVALID, newline="\n")
            self._stream = io.BufferedReader(_Transcoded(text), _CHUNK_BYTES)
        # Looked for where the first line ends; one that is longer does not end as those of old Macs did.
        first = re.search(rb"[\r\n]\n?", self._stream.read(_READ_BYTES))
        self._ends = (b"\r", b"\n") if first and first[0] == b"\r" else (b"\n",)
        self._stream.seek(0)

    def read_line(self) -> bytes | RecordError:
        """Read the next line with its line end; empty at the end of the file.

        A RecordError stands for a line that is too long; and once for the line in which a compressed stream breaks off.
        The position is after what was left of that line, and at least one byte further.
        """
        line = rest = self._read(self._most + 1)
        self.position += len(line)
        is_too_long = len(line) > self._most
        while is_too_long and rest and not rest.endswith(self._ends):
            rest = self._read(_READ_BYTES)
            self.position += len(rest)
        if self._damage is not None and self._damage.error is not None and not rest.endswith(self._ends):
            fault, self._damage = self._damage.error, None
            self.position += not line
            return fault
        return too_large(self._most) if is_too_long else line

    def lines(self) -> Iterator[tuple[bytes | RecordError, int]]:
        """Yield the next lines, or why one cannot be read, and where they end."""
        while line := self.read_line():
            yield line, self.position

    def skip_to(self, position: int) -> None:
        """Skip forward to the start of a line; a compressed file is read up to there."""
        self.position = self._stream.seek(position)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _read(self, most: int) -> bytes:
        """Read up to the end of a line, or ``most`` bytes."""
        if len(self._ends) == 1:
            return self._stream.readline(most)
        line = bytearray()
        while ahead := self._stream.peek()[: most - len(line)]:
            end = re.search(b"[\r\n]", ahead)
            line += self._stream.read(end.end() if end else len(ahead))
            if end:
                break
        return bytes(line)


def read_whole(path: str, *, config: ReaderConfig, expected_size: int | None = None) -> bytes:
    """Read a file's decompressed content; RecordError where it is damaged or too large.

    Args:
        expected_size: bytes on disk when the plan was made, else InputError; None accepts any size.
    """
    stream, decompressed = open_stream(path)
    with stream:
        size = decompressed.size_on_disk if decompressed else stream.seek(0, io.SEEK_END)
        if expected_size not in (None, size):
            raise file_changed(path, f"{expected_size} bytes", size)
        stream.seek(0)
        content = read_at_most(stream, config.max_record_bytes + 1)
    if decompressed is not None and decompressed.error is not None:
        raise decompressed.error
    if len(content) > config.max_record_bytes:
        raise too_large(config.max_record_bytes)
    return content


class _DerivedStream(io.RawIOBase):
    """A stream that is made from another one, and whose bytes are found by reading."""

    def __init__(self, source: BinaryIO | io.TextIOWrapper) -> None:
        super().__init__()
        self._source: Any = source
        self._position, self._waiting = 0, b""
        self._restart()

    def _restart(self) -> None:
        """Go back to the start; the source is there already."""

    @abstractmethod
    def _produce(self, size: int) -> bytes:
        """Return the next bytes, about ``size``; none at the end."""

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        # Never in steps of other sizes: what is lost where an error is found must not depend on how it is read.
        self._waiting = self._waiting or self._produce(_CHUNK_BYTES)
        content, self._waiting = self._waiting[: len(buffer)], self._waiting[len(buffer) :]
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        offset += self._position if whence == io.SEEK_CUR else 0
        if offset < self._position:
            self._source.seek(0)
            self._position, self._waiting = 0, b""
            self._restart()
        while self._position < offset and self.read(min(offset - self._position, _CHUNK_BYTES)):
            pass
        return self._position

    @override
    def close(self) -> None:
        self._source.close()
        super().close()


class _Decompressed(_DerivedStream):
    """A decompressed stream; it ends where the file of ``size_on_disk`` bytes is truncated, corrupt or a bomb."""

    error: RecordError | None
    """Why the stream ends before the file does."""
    _decode: Callable[[int], bytes]

    def __init__(self, source: BinaryIO, codec: str) -> None:
        self._codec = codec
        self.size_on_disk = source.seek(0, io.SEEK_END)
        source.seek(0)
        self._most = most_unpacked(self.size_on_disk)
        super().__init__(source)

    @override
    def _restart(self) -> None:
        self.error = None
        if self._codec == "gzip":
            self._decode = gzip.GzipFile(fileobj=self._source, mode="rb").read1
        else:
            self._decode, self._decoder = self._read_frames, zstd.ZstdDecompressor(options=_WINDOW)

    @override
    def _produce(self, size: int) -> bytes:
        if self.error is not None:
            return b""
        try:
            content = self._decode(min(size, _STEP_BYTES))
            if not (content or self.size_on_disk):
                raise EOFError("the file is empty")
        except _ERRORS as error:
            code = "truncated_stream" if isinstance(error, EOFError) else "corrupt_stream"
            self.error = RecordError(
                code,
                f"the stream breaks off at byte {self._position} of its decompressed content: {error}; what is "
                "before was read; rename the file if it is not compressed, else fetch it again, or unpack it yourself",
                loses_file=True,
            )
            return b""
        if self._position + len(content) > self._most:
            content = content[: self._most - self._position]
            self.error = unpacks_too_far(self.size_on_disk, self._most, loses_file=True)
        return content

    def _read_frames(self, size: int) -> bytes:
        """Return the next bytes of frames of zstd, which follow one another; ``ZstdFile`` skips what is none."""
        while True:
            chunk = b""
            if self._decoder.eof:
                chunk = self._decoder.unused_data or self._source.read(_STEP_BYTES)
                if not chunk:
                    return b""
                self._decoder = zstd.ZstdDecompressor(options=_WINDOW)
            elif self._decoder.needs_input:
                chunk = self._source.read(_STEP_BYTES)
                if not chunk:
                    raise EOFError("the file ends before its compressed content")
            content: bytes = self._decoder.decompress(chunk, size)
            if content:
                return content


class _Transcoded(_DerivedStream):
    """The UTF-8 of a text; where its bytes are invalid, so is the UTF-8."""

    @override
    def _produce(self, size: int) -> bytes:
        content: bytes = self._source.read(size).encode("utf-8", "surrogateescape")
        return content


def _to_surrogate(error: UnicodeError) -> tuple[str, int]:
    return "\udcff", error.end if isinstance(error, UnicodeDecodeError) else 0


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


class Encoding(NamedTuple):
    """An encoding, with its confidence (see Decoded) where it was guessed."""

    name: str
    confidence: float | None = None


class Decoded(NamedTuple):
    """A text and the encoding of its bytes.

    Attributes:
        confidence: 0..1, how sure a guessed encoding is; None where it was not guessed.
        meta, meta_nulls, parts, lost: see Document.
        replaced: how many characters U+FFFD stand for bytes that are not of the encoding.
    """

    text: str
    encoding: str | None
    confidence: float | None = None
    meta: str | None = None
    meta_nulls: str | None = None
    parts: tuple[Part, ...] | None = None
    lost: tuple[Lost, ...] = ()
    replaced: int = 0


def decode(content: bytes, *, encoding: str, errors: Errors = "strict") -> Decoded:
    """Decode a whole file; ``encoding`` and ``errors`` as in ReaderConfig. A RecordError names the first bad byte."""
    marked = mark_of(content)
    if encoding != "auto":
        hint = f"it begins with the byte order mark of {marked}: set reader.encoding to {marked} or auto"
        return decode_as(content, encoding, errors=errors, hint=_FIX if marked in (None, encoding) else hint)
    if marked is not None:
        return decode_as(content, marked, errors=errors, hint="convert the file to utf-8")
    if b"\x1b$" in content and content.isascii():
        with suppress(RecordError):
            return decode_as(content, "iso2022_jp_ext")._replace(confidence=1.0)
    guessed = guess(content)
    if guessed is None:
        raise RecordError("invalid_encoding", f"expected utf-8 or letters that show an encoding, got neither; {_SET}")
    return decode_as(content, guessed.name, errors=errors, hint=_SET)._replace(confidence=guessed.confidence)


def encoding_of(content: bytes, encoding: str, declared: Callable[[], str | None]) -> str:
    """Return the encoding that a job sets; for utf-8 and auto that of a mark, UTF-8, or what the content declares."""
    marked = mark_of(content)
    if encoding not in ("utf-8", "auto") or content.startswith(codecs.BOM_UTF8):
        return encoding
    if marked is not None:
        return marked
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return _of_ascii(declared()) or encoding
    # What is ASCII may still be of an encoding of seven bits.
    stated = _of_ascii(declared()) if b"\x1b" in content or b"~{" in content else None
    return stated if stated in ("iso2022_jp_ext", "iso2022_kr", "hz") else encoding


def _of_ascii(encoding: str | None) -> str | None:
    """Return an encoding if what is in it can state it: in UTF-16, say, a statement in ASCII could not be read."""
    with suppress(UnicodeError):
        if encoding is not None and not encoding.startswith("utf") and _ASCII.decode(encoding) == _ASCII.decode():
            return encoding
    return None


def encoding_of_lines(path: str, config: ReaderConfig) -> Encoding:
    """Return the encoding that is set, or UTF-8, or guessed from the first lines of a file that are not ASCII."""
    if config.encoding != "auto":
        return Encoding(config.encoding)
    found = bytearray()
    with closing(LineStream(path, config)) as stream:
        for line, _ in stream.lines():
            if isinstance(line, bytes) and not line.isascii():
                found += line
            if len(found) > _SAMPLE_BYTES:
                break
    return guess(bytes(found)) or Encoding("utf-8")


def mark_of(content: bytes) -> str | None:
    """Return the encoding that a byte order mark names; None without a mark, and with that of UTF-8."""
    return next((name for name, marks in _MARKS.items() if content.startswith(marks)), None)


def guess(content: bytes) -> Encoding | None:
    """Return the encoding that a text is of: UTF-8, also where a few bytes are damaged, or a guess; None without one.

    Texts of the Latin script are taken for Western European, unless their letters say otherwise: a few accents never
    make chardet sure.
    """
    with suppress(UnicodeDecodeError):
        content.decode("utf-8")
        return Encoding("utf-8")
    sample = _sample(content)
    characters = re.findall(r"[^\x00-\x7f]", sample.decode("utf-8", "replace"))
    if characters.count("\ufffd") * 2 < len(characters):
        return Encoding("utf-8")
    if _CONTROLS.search(sample):
        return None
    sure = _likelihoods(sample)
    name = _other_script(sample, sure) or _latin(sample, sure)
    if name is None or _has_two_encodings(sample, name):
        return None
    beyond = sum(byte >= 0x80 for byte in sample)
    # Four characters beyond ASCII make it half as sure as it could be.
    confidence = (sure[name] if name in _OTHER_SCRIPTS else 1.0) * beyond / (beyond + 4)
    return Encoding(name.replace("euc_jis_2004", "euc_jp"), round(confidence, 3))


def _likelihoods(sample: bytes) -> dict[str, float]:
    """Return how likely each encoding is; those in which the sample is invalid or has controls are left out."""
    # Importing it takes a while.
    import chardet

    found = chardet.detect_all(
        sample,
        ignore_threshold=True,
        compat_names=False,
        include_encodings=(*_LATIN, *_OTHER_SCRIPTS),
        no_match_encoding=_WESTERN,
        empty_input_encoding=_WESTERN,
    )
    has_controls = re.search(rb"[\x80-\x9f]", sample) is not None
    likely = {match["encoding"] or "": match["confidence"] for match in found}
    return {name: value for name, value in likely.items() if not (has_controls and name.startswith("iso"))}


def _has_two_encodings(sample: bytes, name: str) -> bool:
    """Tell whether one half of a sample is surely in another encoding: bytes are damaged, or the file is two in one."""
    middle = sample.find(b" ", len(sample) // 2)
    for half in (sample[:middle], sample[middle:]):
        other = _other_script(half, _likelihoods(half)) or name
        if half.decode(other, "replace") != half.decode(name, "replace"):
            return True
    return False


def _other_script(sample: bytes, sure: Mapping[str, float]) -> str | None:
    """Return the likeliest encoding of another script, if it is clearly likelier; its letters follow one another."""
    name = max((name for name in _OTHER_SCRIPTS if name in sure), key=lambda name: sure[name], default=None)
    latin = max((sure[name] for name in _LATIN if name in sure), default=0.0)
    together = sum(map(len, re.findall(rb"[\x80-\xff]{2,}", sample)))
    beyond = sum(byte >= 0x80 for byte in sample)
    if name is None or sure[name] < latin + _SURE or together <= beyond / 5:
        return None
    return name


def _latin(sample: bytes, sure: Mapping[str, float]) -> str | None:
    """Return the likeliest encoding of the Latin script in which the sample reads like words."""
    western = sure.get(_WESTERN, 0.0)
    others = {name: sure[name] for name in _LATIN[1:] if name in sure}
    # Six letters tell Turkish from Icelandic, and more people write it.
    name = max(others, key=lambda name: others[name], default=_WESTERN)
    if name == "cp1254" and others[name] * 1.5 >= western and _TURKISH.search(sample):
        others[name] += western
    lead = others.get(name, 0.0) - western
    is_western = _reads_like_words(sample, _WESTERN)
    if (lead >= _LEAD or (not is_western and others.get(name, 0.0) >= _LEAD)) and _reads_like_words(sample, name):
        return name
    return _WESTERN if is_western and (lead < _LEAD / 2 or lead < western) else None


def _reads_like_words(sample: bytes, encoding: str) -> bool:
    """Tell whether characters beyond ASCII are accents in words of the Latin script, or punctuation between them."""
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError:
        return False
    for before, run, after in _RUNS.findall(text):
        letters = run.strip(_WITHIN_WORDS if before and after else _PUNCTUATION)
        is_word = letters.isalpha()
        if len(letters) > 2 or (len(letters) == 2 and not (is_word and (before or after))):
            return False
        if is_word and letters.isupper() and before.islower():
            return False
        if letters and not is_word and after and (before or letters not in _SIGNS):
            return False
    return True


def _sample(content: bytes) -> bytes:
    """Return what is not ASCII outside of markup, with a little around it; bounded, since guessing takes a while."""
    bare = _MARKUP.sub(b" ", content)
    plain = content if bare.isascii() else bare
    parts: list[bytes] = []
    size = 0
    for match in _BEYOND_ASCII.finditer(plain):
        # A little ASCII on either side speaks for an encoding as well: without it there are few letters.
        parts.append(plain[max(match.start() - 16, 0) : match.end() + 16])
        size += len(parts[-1])
        if size > _SAMPLE_BYTES:
            break
    return b" ".join(parts)


def decode_leniently(content: bytes, encoding: str) -> tuple[str, UnicodeDecodeError | None]:
    """Return a text with U+FFFD for what is not of its encoding, and the first such place."""
    try:
        return content.decode(encoding, _AS_BROWSERS), None
    except UnicodeDecodeError as error:
        return content.decode(encoding, "replace"), error


def decode_as(content: bytes, encoding: str, *, errors: Errors = "strict", hint: str = _FIX) -> Decoded:
    """Decode bytes that are of an encoding; errors, and RecordError, as for ``decode``."""
    text, error = decode_leniently(content, encoding)
    replaced = 0
    if error is not None:
        # Those that the bytes spell are not ignored.
        replaced = text.count("\ufffd") - content.decode(encoding, "ignore").count("\ufffd")
        if errors == "strict" or replaced > max(_FEW, _FEW_SHARE * len(content)):
            many = f", and {replaced:,} such places in all, which is more than a few" if errors == "replace" else ""
            raise RecordError(
                "invalid_utf8" if encoding.startswith("utf-8") else "invalid_encoding",
                f"expected {encoding}, got byte 0x{content[error.start]:02x} at offset {error.start} of the record"
                f" ({error.reason}){many}; {hint}",
            )
    return Decoded(text.removeprefix("\ufeff"), encoding, replaced=replaced)


def _as_browsers(error: UnicodeError) -> tuple[str, int]:
    """Read what browsers do and Python does not: the euro sign of GBK and Big5, and the row of symbols in EUC-JP."""
    if isinstance(error, UnicodeDecodeError):
        place, pair = error.start, error.object[error.start : error.start + 2]
        if error.encoding == "gb18030" and pair[:1] == b"\x80":
            return "\u20ac", place + 1
        if other := _ROWS_OF.get((error.encoding, pair[:1])):
            with suppress(UnicodeDecodeError):
                return pair.decode(other), place + 2
    raise error


codecs.register_error(_AS_BROWSERS, _as_browsers)
codecs.register_error(_INVALID, _to_surrogate)
