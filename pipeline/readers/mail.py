"""E-mail: messages in files of their own (.eml) and in mailboxes (.mbox). The raw text is the body of the message.

Attachments are named in ``meta``, and are records of their own if ``reader.attachments`` asks for them.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.plan import Piece
from concord.pipeline.readers.attachments import Attachment, attachments_of, read_attachment, with_meta
from concord.pipeline.readers.extracting import PositionedReader, as_record_errors
from concord.pipeline.readers.fields import Record, duplicate_id
from concord.pipeline.readers.files import Decoded, Encoding, LineStream, read_whole, with_codecs
from concord.pipeline.readers.messages import HEADERS, headers_of, parse, parse_headers, read_message
from concord.pipeline.readers.reader import RecordStream
from concord.pipeline.readers.records import RecordError, ScannedRecord, dead_letter, too_large
from concord.pipeline.readers.tables import TextReader, text_document

_ATTACHED = ("lxml", "pypdfium2", "striprtf")
"""The packages for what may be attached: mail is read without them, but another release may find another text."""

_FROM = b"From "
_DATED = re.compile(rb"From .*[A-Z][a-z]{2},? +(?:[A-Z][a-z]{2} +\d{1,2}|\d{1,2} +[A-Z][a-z]{2} +\d{4}) +\d\d:\d\d")
_ADDRESS = re.compile(rb"From <?[^\s@]+@\S+")
_OF_GIT = re.compile(rb"From [0-9a-f]{40,64} Mon Sep 17 00:00:00 2001\s*")
"""The line above a patch, which nobody has sent; it begins a message in files of patches alone."""
_HEADER = re.compile(rb">?From |[!-9;-~]+:")
_QUOTED_FROM = re.compile(rb"(?m)^>(>*From )")


class MailReader(TextReader):
    """Reads files of one message each."""

    suffixes = with_codecs(".eml")
    libraries = ("resiliparse",)
    used_if_there = _ATTACHED

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        return with_meta(*_read(content, config))

    @override
    def scan(self, path: str, *, name: str, config: ReaderConfig) -> Iterator[ScannedRecord]:
        for record in super().scan(path, name=name, config=config):
            attachments = _attachments_in(path, config)
            yield replace(record, end=1) if config.attachments else record
            for number in range(1, len(attachments) + 1):
                yield ScannedRecord(position=number, end=number + 1, size=1, doc_id=f"{name}#{number}")

    @override
    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        if not config.attachments:
            yield from super().read(piece, config)
            return
        attachments = _attachments_in(piece.uri, config)
        for number in range(piece.start, min(piece.end, len(attachments) + 1)):
            doc_id = f"{piece.name}#{number}" if number else piece.name
            try:
                text = with_meta(*read_attachment(number, attachments[number - 1], config)) if number else None
                text = text or self.extract(read_whole(piece.uri, config=config), config)
                if number in piece.duplicates:
                    raise duplicate_id(doc_id)
            except RecordError as error:
                error.doc_id = doc_id
                yield dead_letter(error, piece=piece, position=number, unit="")
            else:
                yield replace(text_document(text, piece), doc_id=doc_id, source_position=number)

    @override
    def text_at(self, path: str, position: int, config: ReaderConfig) -> str:
        if not position:
            return super().text_at(path, position, config)
        attachments = _attachments_in(path, config)
        if position > len(attachments):
            raise RecordError("no_such_record", f"expected attachment {position}, got only {len(attachments)}")
        return read_attachment(position, attachments[position - 1], config)[0].text


class MailboxReader(PositionedReader):
    """Reads files of many messages, each of which begins at a line ``From ...``; positions are bytes."""

    suffixes = with_codecs(".mbox")
    libraries = ("resiliparse",)
    used_if_there = _ATTACHED

    @override
    def open(self, path: str, config: ReaderConfig, *, columns: Sequence[str] | None = None) -> RecordStream:
        mailbox = Mailbox(path, config, columns)
        return WithAttachments(mailbox, config) if config.attachments else mailbox


def _read(content: bytes, config: ReaderConfig) -> tuple[Decoded, dict[str, Any]]:
    with as_record_errors("message"):
        return read_message(parse(content), config)


def _attachments_in(path: str, config: ReaderConfig) -> list[Attachment]:
    """Return the attachments of a file's message if they are wanted; none if it cannot be read."""
    with suppress(RecordError):
        return attachments_of(read_whole(path, config=config), config) if config.attachments else []
    return []


class Mailbox:
    """The messages of a file.

    Attributes:
        position: the byte at which the next message starts.
    """

    def __init__(self, path: str, config: ReaderConfig, columns: Sequence[str] | None) -> None:
        self.position = 0
        self._config = config
        self._with_text = columns is None or config.text_field in columns
        self._stream = LineStream(path, config.model_copy(update={"encoding": "utf-8"}))
        # Lines, or errors in place of lines, and where they end: two are read ahead.
        self._ahead: deque[tuple[bytes | RecordError, int]] = deque()
        self._has_patches = self._has_more() and _is_of_git(self._ahead[0][0])

    def read(self) -> Record | None:
        """Read the next message; None at the end of the file."""
        taken = self.take()
        return None if taken is None else self.record(*taken)

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

    def record(self, start: int, end: int, content: bytes | RecordError) -> Record:
        """Return the record of a message."""
        size = end - start
        if isinstance(content, RecordError):
            return Record(start, end, content, size)
        try:
            if not self._with_text:
                is_named = self._config.id_field in HEADERS
                fields = headers_of(parse_headers(content), self._config) if is_named else {}
                return Record(start, end, fields, size)
            text, meta = _read(content, self._config)
        except RecordError as error:
            return Record(start, end, error.with_traceback(None), size)
        return Record(start, end, {**meta, self._config.text_field: text.text}, size, **_kept(text))

    def attached(self, number: int, attachment: Attachment, start: int, end: int) -> Record:
        """Return the record of an attachment of the message that starts at a byte."""
        id_field = self._config.id_field
        # Where the message has no such field, one of the file is no id.
        fields: dict[str, Any] = {id_field: headers_of(attachment.outermost, self._config).get(id_field)}
        place = start + number
        if not self._with_text:
            return Record(place, end, fields, 1, attachment=number)
        try:
            text, meta = read_attachment(number, attachment, self._config)
        except RecordError as error:
            return Record(place, end, error.with_traceback(None), 1, attachment=number)
        fields = {**meta, **fields, self._config.text_field: text.text}
        return Record(place, end, fields, 1, attachment=number, **_kept(text))

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


def _kept(text: Decoded) -> dict[str, Any]:
    """Return what a record keeps of the text that it is made of."""
    encoding = None if text.encoding is None else Encoding(text.encoding, text.confidence)
    return {"encoding": encoding, "replaced": text.replaced, "parts": text.parts or ()}


class WithAttachments:
    """The messages of a mailbox, each followed by what it attaches; the n-th of that is said to start n bytes after it.

    To find one of these, the mailbox is passed through from where it stands.
    """

    def __init__(self, mailbox: Mailbox, config: ReaderConfig) -> None:
        self.position = 0
        self._mailbox = mailbox
        self._config = config
        self._taken: tuple[int, int, bytes | RecordError] | None = None
        self._waiting: Iterator[Record] = iter(())

    def read(self) -> Record | None:
        """Read the next message or attachment; None at the end of the file."""
        record = next(self._waiting, None)
        if record is None:
            self._taken = self._mailbox.take()
            if self._taken is None:
                return None
            self._waiting = self._records(*self._taken, self.position)
            return self.read()
        self.position = record.end
        return record

    def skip_to(self, position: int) -> None:
        """Skip forward to the start of a message or attachment."""
        if position == self.position:
            return
        taken = self._taken or self._mailbox.take()
        while taken is not None and taken[1] <= position:
            taken = self._mailbox.take()
        self._taken = taken
        self._waiting = iter(()) if taken is None else self._records(*taken, position)
        self.position = position

    def close(self) -> None:
        """Close the file."""
        self._mailbox.close()

    def _records(self, start: int, end: int, content: bytes | RecordError, first: int) -> Iterator[Record]:
        """Yield what stands in a message, from a position on."""
        attachments = [] if isinstance(content, RecordError) else attachments_of(content, self._config)
        if first <= start:
            yield self._mailbox.record(start, end, content)._replace(end=start + 1 if attachments else end)
        for number, attachment in enumerate(attachments, start=1):
            if first <= start + number:
                here = end if number == len(attachments) else start + number + 1
                yield self._mailbox.attached(number, attachment, start, here)
