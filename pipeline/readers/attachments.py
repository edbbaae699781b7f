"""What e-mails attach, as documents of their own: each is read by the reader of its format, from the message's bytes.

Which attachments there are follows from the message alone, so that scanning need not read them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple

import orjson

from concord.pipeline.config import ReaderConfig
from concord.pipeline.errors import InputError
from concord.pipeline.readers import messages
from concord.pipeline.readers.base import FORMATS, FileReader, as_record_errors
from concord.pipeline.readers.fields import meta_of
from concord.pipeline.readers.files import Decoded
from concord.pipeline.readers.records import RecordError, too_large
from concord.pipeline.storage.atomic_writes import CODECS

MOST_ATTACHMENTS = 1000
MOST_NESTED = 5
"""A message within so many others is read, but not what it attaches."""

_NOT_READ = ("image/", "audio/", "video/")
_FORMATS = {
    "text/plain": "text",
    "text/html": "html",
    **dict.fromkeys(messages.MESSAGES, "eml"),
    "application/pdf": "pdf",
    "application/rtf": "rtf",
    "text/rtf": "rtf",
    "application/epub+zip": "epub",
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
}


class Attachment(NamedTuple):
    """A part that a message attaches.

    Attributes:
        name: of its file, or its content type.
        message, outermost: the one that attaches it, and the one in which all this is nested.
        fault: why it is not read.
    """

    part: Any
    name: str
    message: Any
    outermost: Any
    fault: RecordError | None = None


def attachments_of(content: bytes, config: ReaderConfig) -> list[Attachment]:
    """Return what a message attaches, in order, each message among it followed by its own; none if it cannot be read.

    Pictures, sounds and films are left out.
    """
    try:
        message, parts = _parts_of(lambda: messages.parse(content))
    except RecordError:  # the message itself is then the dead letter
        return []
    found = list(islice(_attachments(message, parts, message, config, 0), MOST_ATTACHMENTS + 1))
    if len(found) > MOST_ATTACHMENTS:
        reason = (
            f"expected at most {MOST_ATTACHMENTS:,} attachments, got more; neither this nor those after it are read"
        )
        found[-1] = found[-1]._replace(fault=RecordError("too_many_attachments", reason))
    return found


def read_attachment(number: int, attachment: Attachment, config: ReaderConfig) -> tuple[Decoded, dict[str, Any]]:
    """Return the text of an attachment, and what becomes its meta: what its file says, and which message it is from.

    Raises:
        RecordError: when it cannot be read, naming it.
    """
    headers = messages.headers_of(attachment.message, config)
    try:
        if attachment.fault is not None:
            raise attachment.fault
        with as_record_errors("attachment"):
            found = _read(attachment, config)
            found.text.encode()
        if len(found.text) > config.max_record_bytes:
            raise too_large(config.max_record_bytes)
    except RecordError as error:
        of = headers.get("message_id") or headers.get("subject") or "without a subject"
        message = f"attachment {number} ({attachment.name!r}) of the message {of!r}: {error}"
        raise RecordError(error.code, message) from None
    meta: dict[str, Any] = orjson.loads(found.meta or "{}")
    kept = ("subject", "date", "from", "message_id")
    message_meta = {name: headers[name] for name in kept if name in headers}
    return found, meta | {"file": attachment.name, "message": message_meta}


def with_meta(text: Decoded, meta: dict[str, Any], config: ReaderConfig) -> Decoded:
    """Return an extracted text with what becomes its meta."""
    return text._replace(meta=meta_of(meta, config=config)[0])


def _parts_of(parse: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Return a message and what it attaches; raise RecordError where it cannot be taken apart."""
    with as_record_errors("message"):
        message, parts = parse(), list[Any]()
        messages.shown(message, parts)
        return message, parts


def _attachments(
    message: Any, parts: list[Any], outermost: Any, config: ReaderConfig, depth: int
) -> Iterator[Attachment]:
    for part in parts:
        name = messages.name_of(part, config)
        if part.kind.startswith(_NOT_READ):
            continue
        attachment = Attachment(part, name, message, outermost)
        inner = None
        if _format(attachment) == "eml":
            try:
                inner = _parts_of(partial(_message_in, part))
            except RecordError as error:
                attachment = attachment._replace(fault=error)
        if inner is not None and depth == MOST_NESTED:
            reason = f"expected messages nested at most {MOST_NESTED} deep, got more; save it as a file of its own"
            attachment, inner = attachment._replace(fault=RecordError("nested_too_deep", reason)), None
        yield attachment
        if inner is not None:
            yield from _attachments(*inner, outermost, config, depth + 1)


def _message_in(part: Any) -> Any:
    """Return the message that a part is."""
    return part.children[0] if part.children else messages.parse(part.content)


def _format(attachment: Attachment) -> str | None:
    """Return the format that the name of an attachment states, or else its type."""
    by_type = _FORMATS.get(attachment.part.kind)
    is_packed = PurePath(attachment.name).suffix.lower() in CODECS
    if is_packed or attachment.part.kind.startswith("multipart/"):
        return None
    # A message is no file, and "RE: report.pdf" only what somebody calls it.
    return by_type if by_type == "eml" else FORMATS[-1].of(attachment.name) or by_type


def _read(attachment: Attachment, config: ReaderConfig) -> Decoded:
    format = _format(attachment)
    try:
        reader = FORMATS[-1].reader(format) if format else None
    except InputError as error:
        raise RecordError("missing_library", f"{error}, and retry it") from None
    if format == "eml":
        return with_meta(*messages.read_message(_message_in(attachment.part), config), config)
    if format in ("text", "html") and attachment.part.kind in ("text/plain", "text/html"):
        return messages.text_of(attachment.part, config)
    if not isinstance(reader, FileReader):
        raise RecordError(
            "unknown_format",
            f"expected a file whose name or type shows a format that holds one document, got {attachment.name!r} "
            f"({attachment.part.kind}); save it as a file of its own if it is to be read",
        )
    return reader.extract_checked(attachment.part.content, config)
