"""E-mail: messages in files of their own (.eml) and in mailboxes (.mbox). The raw text is the body of the message.

Attachments are named in ``meta``, and are records of their own if ``reader.attachments`` asks for them.
"""

import re
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.attachments import Attachment, attachments_of, read_attachment, with_meta
from concord.pipeline.readers.base import ArchiveReader, RawRecord, as_record_errors
from concord.pipeline.readers.files import Decoded, LineStream, read_whole, with_codecs
from concord.pipeline.readers.messages import HEADERS, headers_of, parse, parse_headers, read_message
from concord.pipeline.readers.records import RecordError, ScannedRecord, too_large
from concord.pipeline.storage.files import file_state

_ATTACHED = ("lxml", "pypdfium2", "striprtf")
"""The packages for what may be attached: mail is read without them, but another release may find another text."""

_FROM = b"From "
_DATED = re.compile(rb"From .*[A-Z][a-z]{2},? +(?:[A-Z][a-z]{2} +\d{1,2}|\d{1,2} +[A-Z][a-z]{2} +\d{4}) +\d\d:\d\d")
_ADDRESS = re.compile(rb"From <?[^\s@]+@\S+")
_OF_GIT = re.compile(rb"From [0-9a-f]{40,64} Mon Sep 17 00:00:00 2001\s*")
"""The line above a patch, which nobody has sent; it begins a message in files of patches alone."""
_HEADER = re.compile(rb">?From |[!-9;-~]+:")
_QUOTED_FROM = re.compile(rb"(?m)^>(>*From )")


class _MessageReader(ArchiveReader):
    libraries = ("resiliparse",)
    used_if_there = _ATTACHED

    def __init__(self) -> None:
        # What the message attaches whose attachments were read last.
        self._last: tuple[bytes, list[Attachment]] = b"", []

    @override
    def extract(self, raw: RawRecord, config: ReaderConfig) -> Decoded:
        content: Any = raw.content
        if not raw.attachment:
            text, meta = _read(content, config)
            return with_meta(text, meta, config)
        if self._last[0] is not content:
            self._last = content, attachments_of(content, config)
        return with_meta(*read_attachment(raw.attachment, self._last[1][raw.attachment - 1], config), config)


class MailReader(_MessageReader):
    """Reads files of one message each, and maybe what it attaches."""

    suffixes = with_codecs(".eml")
    unit = ""

    @override
    def opens_to_scan(self, config: ReaderConfig) -> bool:
        return config.attachments

    @override
    def id_of(self, raw: RawRecord, name: str) -> str:
        return f"{name}#{raw.attachment}" if raw.attachment else name

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig, start: int = 0) -> Iterator[ScannedRecord]:
        if self.opens_to_scan(config):
            yield from super().scan(path, name=name, config=config, start=start)
        else:
            yield ScannedRecord(position=0, end=1, size=file_state(path).size, doc_id=name)

    @override
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[RawRecord]:
        content: bytes | RecordError
        try:
            content = read_whole(path, config=config)
        except RecordError as error:
            content = error
        records = RawRecord(0, 1, content), *(RawRecord(n, n + 1, content, None, n) for n in _numbers(content, config))
        yield from records[start:]


class MailboxReader(_MessageReader):
    """Reads files of many messages, each of which begins at a line ``From ...``; positions are bytes.

    The n-th attachment of a message is said to start n bytes after it.
    """

    suffixes = with_codecs(".mbox")

    @override
    def finds(self, path: str, config: ReaderConfig) -> bool:
        return super().finds(path, config) and not config.attachments

    @override
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[RawRecord]:
        with closing(Mailbox(path, config)) as mailbox:
            if not config.attachments:
                mailbox.skip_to(start)
            while (taken := mailbox.take()) is not None:
                yield from (raw for raw in _records(*taken, config) if raw.start >= start)


def _records(start: int, end: int, content: bytes | RecordError, config: ReaderConfig) -> Iterator[RawRecord]:
    numbers = _numbers(content, config)
    ends = [start + number for number in numbers] + [end]
    if isinstance(content, bytes) and config.id_field in HEADERS:
        doc_id = headers_of(parse_headers(content), config).get(config.id_field)
    else:
        doc_id = None
    for number, here in enumerate(ends):
        yield RawRecord(start + number, here, content, doc_id, number)


def _numbers(content: bytes | RecordError, config: ReaderConfig) -> range:
    """Return the numbers of what a message attaches, if that is wanted."""
    if not config.attachments or isinstance(content, RecordError):
        return range(0)
    return range(1, len(attachments_of(content, config)) + 1)


def _read(content: bytes, config: ReaderConfig) -> tuple[Decoded, dict[str, Any]]:
    with as_record_errors("message"):
        return read_message(parse(content), config)


class Mailbox:
    """The messages of a file.

    Attributes:
        position: the byte at which the next message starts.
    """

    def __init__(self, path: str, config: ReaderConfig) -> None:
        self.position = 0
        self._config = config
        self._stream = LineStream(path, config.model_copy(update={"encoding": "utf-8"}))
        # Lines, or errors in place of lines, and where they end: two are read ahead.
        self._ahead: deque[tuple[bytes | RecordError, int]] = deque()
        self._has_patches = self._has_more() and _is_of_git(self._ahead[0][0])

    def take(self) -> tuple[int, int, bytes | RecordError] | None:
        """Return where the next message begins and ends, and its content; None at the end of the file."""
        start, lines = self.position, list[bytes]()
        fault: RecordError | None = None
        before = b"\n"
        while self._has_more() and not (self.position > start and self._is_start(before)):
            line, self.position = self._ahead.popleft()
            if isinstance(line, RecordError):
                fault = fault or line
            elif self.position - start > self._config.max_record_bytes:
                fault, before = fault or too_large(self._config.max_record_bytes), line
            else:
                lines.append(line)
                before = line
        if self.position == start:
            return None
        if fault is None and not lines[0].startswith(_FROM):
            if not any(map(bytes.strip, lines)):
                return self.take()
            fault = RecordError("invalid_mbox", f"expected a line that begins with 'From ', got {lines[0][:20]!r}")
        if fault is not None:
            return start, self.position, fault
        return start, self.position, _QUOTED_FROM.sub(rb"\1", b"".join(lines[1:]))

    def skip_to(self, position: int) -> None:
        """Skip forward to the start of a message."""
        if position > self.position:
            self._ahead.clear()
            self._stream.skip_to(position)
            self.position = position

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _has_more(self) -> bool:
        """Read two lines ahead; tell whether there is one."""
        while len(self._ahead) < 2:
            try:
                line: bytes | RecordError = self._stream.read_line()
            except RecordError as error:
                line = error.with_traceback(None)
            if not line:
                break
            self._ahead.append((line, self._stream.position))
        return bool(self._ahead)

    def _is_start(self, before: bytes) -> bool:
        """Tell whether a message begins at the next line: with a date, or with an address after a blank line.

        A header follows. A line of git begins none, unless the file has begun with one.
        """
        line, after = self._ahead[0][0], self._ahead[-1][0]
        if isinstance(line, RecordError) or isinstance(after, RecordError) or not line.startswith(_FROM):
            return False
        is_sent = _DATED.match(line) or (_ADDRESS.match(line) and not before.strip())
        is_shown = bool(is_sent) and (self._has_patches or not _is_of_git(line))
        return is_shown and len(self._ahead) > 1 and _HEADER.match(after) is not None


def _is_of_git(line: bytes | RecordError) -> bool:
    return isinstance(line, bytes) and _OF_GIT.fullmatch(line) is not None
