"""What people corrected: one entity of one document, with enough of its text to find it again, and the log of it all.

The log, ``corrections.jsonl`` in the folder of a collection, only ever grows; one line is one correction. Writers take
turns by a lock on the file; what one appends is on disk before the next reads or writes. A process that is killed can
leave a line that is cut short at the end, or some lines of a step (what was appended by one call). Readers ignore them,
and the next writer ends them with a mark, so that they stay ignored.
"""

import errno
import fcntl
import logging
import os
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import AfterValidator, Field, ValidationError, model_validator

from concord.models.config import Config, first_fault
from concord.models.errors import ConfigError
from concord.models.regular_files import LARGEST_JSON, open_descriptor
from concord.pipeline.errors import InputError
from concord.pipeline.storage.atomic_writes import crash_point, store_errors, sync
from concord.pipeline.storage.output_paths import OutputPath

logger = logging.getLogger(__name__)

Action = Literal["accept", "relabel", "drop", "add", "flag", "undo"]

CONTEXT = 32
"""Code points before and after an entity by which it is found again in a changed text."""
MAX_COMMENT = 1000
_DESCRIBED = 60
_TYPE = re.compile(r"[^\s|=\x00-\x1f\x7f]{1,100}")
LOG_NAME = "corrections.jsonl"
_CUT = b" (cut short)"
"""Ends a line that a killed process left. No correction ends like this, because it ends with a brace."""
_MORE = b',"more":true}'
"""Ends each line of a step but its last."""


def check_type(label: str) -> str:
    """Return the name of an entity type; raise ValueError if labels and exports cannot hold it."""
    if _TYPE.fullmatch(label) is None:
        raise ValueError("expected an entity type of 1 to 100 characters without white space, '|' and '='")
    return label


def check_name(name: str) -> str:
    """Return the name of a person; raise ValueError if it is empty, too long or does not print."""
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise ValueError("expected a name of 1 to 200 printable characters")
    return name


class Mark(Config):
    """An entity as a person sees it."""

    start: int = Field(ge=0)
    end: int
    """Start and end: half-open, in code points of the raw text."""
    type: Annotated[str, AfterValidator(check_type)]
    text: str
    """The slice of the raw text."""
    canonical: Annotated[str, AfterValidator(check_name)] | None = None
    """Whom or what it names, where a person said so: the entity shares the identity of the document that has this
    canonical name, or has one of its own."""

    @model_validator(mode="after")
    def _has_its_length(self) -> Self:
        if self.end - self.start != len(self.text) or not self.text:
            raise ValueError(f"expected a text as long as its offsets {self.start} to {self.end} say")
        return self

    def overlaps(self, other: "Mark") -> bool:
        """Return whether the two share a code point."""
        return self.start < other.end and other.start < self.end

    def is_same(self, other: "Mark") -> bool:
        """Return whether the two are one entity, whomever it names."""
        return (self.start, self.end, self.type) == (other.start, other.end, other.type)

    def moved(self, distance: int) -> "Mark":
        """Return the same mark, a number of code points later."""
        return self.model_copy(update={"start": self.start + distance, "end": self.end + distance})


class Correction(Config):
    """One line of the log: what a person said about one entity, that an earlier line no longer counts, or a flag."""

    id: str = Field(min_length=1, max_length=100)
    """Unique in the log."""
    action: Action
    doc_id: str
    who: Annotated[str, AfterValidator(check_name)]
    when: str
    """UTC, as in ``2026-11-22T18:00:00.123456Z``; what a person did in one step has one time."""
    tagger: str = ""
    """Signature of the tagger that made the entities which the person saw."""
    generation: int = 0
    """The generation of the collection that the person saw."""
    text_sha256: str = ""
    """SHA-256 of the raw text in UTF-8, hex."""
    old: Mark | None = None
    new: Mark | None = None
    """``accept`` has two marks of one entity, ``relabel`` two that differ in type or offsets and overlap, ``drop`` only
    the old one, ``add`` only the new one, ``undo`` none. A ``drop`` of the type ``O`` says of words in no entity that
    this is right. A ``flag`` has an old one of the type ``O``: words to look at again, whose labels it leaves as they
    are."""
    before: str = Field(default="", max_length=CONTEXT)
    after: str = Field(default="", max_length=CONTEXT)
    """The code points before and after ``anchor``."""
    settles: bool = False
    """Whether the person chose it among what several people had said."""
    undoes: str | None = None
    """The id of the earlier line that no longer counts; only of ``undo``."""
    comment: str = Field(default="", max_length=MAX_COMMENT)
    """Why the words are to be looked at again; only of ``flag``."""

    @model_validator(mode="after")
    def _has_its_marks(self) -> Self:
        old, new = self.old, self.new
        is_same = old is not None and new is not None and old.is_same(new)
        expected = {
            "accept": is_same,
            "relabel": old is not None and new is not None and not is_same and old.overlaps(new),
            "drop": old is not None and new is None,
            "add": old is None and new is not None,
            "flag": old is not None and new is None,
            "undo": old is None and new is None,
        }
        if not expected[self.action] or (self.undoes is not None) != (self.action == "undo"):
            raise ValueError(f"the fields old, new and undoes are not those of the action {self.action!r}")
        return self

    @classmethod
    def of(
        cls, old: Mark | None, new: Mark | None, *, text: str, seen: "Seen", who: str, digest: str | None = None
    ) -> Self:
        """Return the correction of an old mark to a new one; with the same mark twice it accepts the mark.

        Args:
            digest: the ``text_digest`` of the text, where it is known.

        Raises:
            ValueError: when no action goes with these marks, or a mark is not in the text.
        """
        action: Action = (
            "drop" if new is None else "add" if old is None else "accept" if old.is_same(new) else "relabel"
        )
        anchor = old or new
        for mark in filter(None, (old, new)):
            if text[mark.start : mark.end] != mark.text:
                raise ValueError(f"expected the text at {mark.start} to be {mark.text!r}")
        if anchor is None:
            raise ValueError("expected an old mark, a new one or both")
        return cls(
            **_stamp(who),
            **seen.model_dump(),
            action=action,
            text_sha256=text_digest(text) if digest is None else digest,
            old=old,
            new=new,
            before=text[max(0, anchor.start - CONTEXT) : anchor.start],
            after=text[anchor.end : anchor.end + CONTEXT],
        )

    def undone(self, *, who: str) -> Self:
        """Return the line that undoes this one, which may be an ``undo`` itself."""
        return type(self)(
            **_stamp(who),
            action="undo",
            doc_id=self.doc_id,
            tagger=self.tagger,
            generation=self.generation,
            text_sha256=self.text_sha256,
            undoes=self.id,
        )

    @property
    def decides(self) -> bool:
        """Whether it says what is an entity; an ``undo`` and a ``flag`` do not."""
        return self.action not in {"undo", "flag"}

    @property
    def anchor(self) -> Mark:
        """The mark by which the place is found: the old one, or the new one where there is no old; not of an undo."""
        return self.marks[0]

    @property
    def result(self) -> Mark:
        """The mark whose words the correction decides: the new one, or the old one if dropped; not of an undo."""
        return self.marks[-1]

    @property
    def description(self) -> str:
        """What it says, in words, as in ``Geneva: PER to LOC``; long texts are cut."""
        old, new = self.old, self.new
        if self.action == "flag" and old is not None:
            return f"{_cut(old.text)}: flagged{self.comment and f', {self.comment}'}"
        if new is None:
            return "undone" if old is None else f"{_cut(old.text)}: no entity"
        if old is None:
            return f"{_cut(new.text)}: added as {new.type}"
        if new.canonical is not None:
            return f"{_cut(new.text)}: {new.type}, names {_cut(new.canonical)}"
        if old == new:
            return f"{_cut(new.text)}: {new.type} accepted"
        if old.text == new.text:
            return f"{_cut(old.text)}: {old.type} to {new.type}"
        return f"{_cut(old.text)} {old.type} to {_cut(new.text)} {new.type}"

    def moved(self, distance: int) -> Self:
        """Return the same correction, a number of code points later."""
        marks = {"old": self.old and self.old.moved(distance), "new": self.new and self.new.moved(distance)}
        return self.model_copy(update=marks)

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Old and new, as far as there are such."""
        return tuple(mark for mark in (self.old, self.new) if mark is not None)


class Seen(Config):
    """What a person looked at: a document of a generation, with the signature of its tagger."""

    doc_id: str
    tagger: str
    generation: int


def current_corrections(log: Iterable[Correction]) -> dict[str, tuple[Correction, ...]]:
    """Return the corrections of each document that no line has undone, in the order of the log.

    An undo that is undone does not count. Flags and documents without a correction are left out.
    """
    lines = list(log)
    undone = undone_ids(lines)
    return group_by_document(line for line in lines if line.decides and line.id not in undone)


def group_by_document(corrections: Iterable[Correction]) -> dict[str, tuple[Correction, ...]]:
    """Return the corrections of each document that has any, by its id, in their order."""
    by_document: defaultdict[str, list[Correction]] = defaultdict(list)
    for correction in corrections:
        by_document[correction.doc_id].append(correction)
    return {doc_id: tuple(of_document) for doc_id, of_document in by_document.items()}


def undone_ids(log: Sequence[Correction]) -> set[str]:
    """Return the ids of the lines that no longer count: those that another line undoes which counts itself."""
    undone: set[str] = set()
    for line in reversed(log):
        if line.undoes is not None and line.id not in undone:
            undone.add(line.undoes)
    return undone


def corrections_digest(corrections: Sequence[Correction]) -> str:
    """Return the SHA-256, in hex, of all that decides what corrections do to a document's rows."""
    kept = {"action", "text_sha256", "old", "new", "before", "after"}
    values = [correction.model_dump(mode="json", include=kept) for correction in corrections]
    return sha256(orjson.dumps(values, option=orjson.OPT_SORT_KEYS)).hexdigest()


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, in hex, as the table of documents has it."""
    return sha256(text.encode()).hexdigest()


def log_path(output: OutputPath) -> Path:
    """Return the path of a collection's log; ConfigError for a collection in an object store, which cannot append."""
    if not isinstance(output, Path):
        raise ConfigError(
            f"{output}: expected a collection in a folder, got one in an object store, to which no line can be "
            "appended; copy the collection to a folder to correct it"
        )
    return output / LOG_NAME


def read_log_of(output: OutputPath) -> list[Correction]:
    """Read the corrections of a collection; there are none in an object store."""
    return read_log(log_path(output)) if isinstance(output, Path) else []


def read_log(path: Path) -> list[Correction]:
    """Read all corrections, undone ones and ``undo`` included, in the order in which they were made.

    Without the file there are none. A step that a killed writer left unfinished is ignored with a warning.

    Raises:
        InputError: for any other line that is no correction, or whose id was taken; the message says which. When the
            log is a link, or no file.
    """
    try:
        with os.fdopen(_open(path, os.O_RDONLY), "rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
            content = stream.read()
    except FileNotFoundError:
        return []
    return _parse_log(content, path)


def _open(path: Path, flags: int) -> int:
    """Open the log, not through a link: it would lead to a file that is no part of the collection."""
    try:
        return open_descriptor(path, flags | os.O_NOFOLLOW, largest=LARGEST_JSON)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO}:
            reason = "a link" if error.errno == errno.ELOOP else error.strerror
            raise InputError(f"{path}: expected a file of corrections ({reason}); remove it") from error
        raise


def _parse_log(content: bytes, path: Path) -> list[Correction]:
    lines = content.split(b"\n")
    corrections: dict[str, Correction] = {}
    unfinished = 0
    for number, line in enumerate(lines, 1):
        is_last = number == len(lines)
        if not line.strip() and not (is_last and unfinished):
            continue
        if line.endswith(_CUT) or (is_last and (line.endswith(_MORE) or not _is_object(line))):
            text = "%s: line %d: cut short by a writer that was killed; ignored, with %d lines of its step before it"
            logger.warning(text, path, number, unfinished)
            for _ in range(unfinished):
                corrections.popitem()
            unfinished = 0
            continue
        correction = _parse(line, where=f"{path}: line {number}")
        if correction.id in corrections:
            raise InputError(f"{path}: line {number}: expected an id of its own, got {correction.id!r} once more")
        if correction.undoes is not None and correction.undoes not in corrections:
            raise InputError(
                f"{path}: line {number}: undoes {correction.undoes!r}, which no earlier line has as its id"
            )
        corrections[correction.id] = correction
        unfinished = unfinished + 1 if line.endswith(_MORE) else 0
    return list(corrections.values())


def append_to_log(path: Path, corrections: Sequence[Correction]) -> None:
    """Append corrections, all in one write, and flush them to disk; several processes may do so at once.

    Raises:
        StoreError: when there is no space; then none of them is in the log.
    """
    if corrections:
        with _locked(path) as descriptor:
            _append(descriptor, corrections)


def extend_log(path: Path, decide: Callable[[list[Correction]], Sequence[Correction]]) -> list[Correction]:
    """Append what a function makes of the log as it is; no other process writes in between. Return the new lines.

    Raises:
        InputError: when a line of the log is no correction.
        StoreError: when there is no space; then none of the lines is in the log.
    """
    with _locked(path) as descriptor:
        corrections = list(decide(_parse_log(_content(descriptor), path)))
        if corrections:
            _append(descriptor, corrections)
    return corrections


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open the log for appending, made if it is missing, while no other process reads or writes."""
    with store_errors(path):
        descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_size == 0:
                # Made just now, or by a writer that was killed before its entry in the folder was on disk.
                sync(path.parent)
            yield descriptor
        finally:
            os.close(descriptor)


def _content(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as stream:
        stream.seek(0)
        return stream.read()


def _append(descriptor: int, corrections: Sequence[Correction]) -> None:
    """Write corrections at the end of the file and flush them; on failure none of them stays."""
    lines = [orjson.dumps(correction.model_dump(mode="json", exclude_defaults=True)) for correction in corrections]
    lines[:-1] = [line.removesuffix(b"}") + _MORE for line in lines[:-1]]
    size = os.fstat(descriptor).st_size
    rest = memoryview(b"".join([_line_end(descriptor), *(line + b"\n" for line in lines)]))
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
            crash_point("write")
        os.fsync(descriptor)
    except OSError:
        # These bytes were never reported as written. Where even this fails, the next writer marks them.
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def _line_end(descriptor: int) -> bytes:
    """Return what ends the last line: nothing if it is ended, and a mark if it or its step was cut short."""
    content = _content(descriptor)
    is_ended = not content or content.endswith(b"\n")
    line = content.removesuffix(b"\n").rpartition(b"\n")[2]
    if line.endswith(_MORE) or not (is_ended or _is_object(line)):
        return _CUT + b"\n"
    return b"" if is_ended else b"\n"


def _is_object(line: bytes) -> bool:
    """Return whether a line is complete: no part of a JSON object is one."""
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _parse(line: bytes, *, where: str) -> Correction:
    try:
        return _validated(line)
    except ValidationError as error:
        raise InputError(
            f"{where}: expected a correction, got another line ({first_fault(error)}); fix or remove the line"
        ) from None


@lru_cache(maxsize=20_000)
def _validated(line: bytes) -> Correction:
    """Return the correction of a line; the log only grows, and each correction in the browser reads it again."""
    return Correction.model_validate_json(line.removesuffix(_MORE) + b"}" if line.endswith(_MORE) else line)


def _cut(text: str) -> str:
    return text if len(text) <= _DESCRIBED else f"{text[: _DESCRIBED - 3]}..."


def _stamp(who: str) -> dict[str, Any]:
    """Return what says who makes a line, and when, with its id."""
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {"id": secrets.token_hex(8), "who": who, "when": now}
