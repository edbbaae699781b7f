"""Corrections made in the browser: the log as it is, documents with their corrections, and new lines of the log."""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from urllib.parse import quote, unquote

from concord.models.labels import OUTSIDE
from concord.pipeline.corrections.correction import Correction, Mark, Seen, check_type, current_corrections, undone_ids
from concord.pipeline.corrections.fitting import marks_at
from concord.pipeline.corrections.log import LOG_NAME, extend_log, read_log
from concord.workflows.view.correcting.current_document import CurrentDocument, read_current
from concord.workflows.view.index.finding import IndexedDocument, get_document
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.page import UnavailableError


class RefusedError(Exception):
    """A form that cannot be carried out, or whose page is out of date; the message says why."""


class Change(NamedTuple):
    """What a person asks for: that some words of a document are an entity of a type, or in none if None.

    Words that are in none already are said to be right so, which makes a line of its own. What ``settles`` a difference
    is written even where it is said already.
    """

    doc_id: str
    start: int
    end: int
    label: str | None
    settles: bool = False

    @classmethod
    def decode(cls, value: str) -> "Change":
        """Return the change that a form contains as ``encoded``; RefusedError if the value is invalid."""
        start, end, label, doc_id = (value.split(" ", 3) + [""] * 3)[:4]
        if not (start.isdecimal() and end.isdecimal() and len(start + end) < 24):
            raise RefusedError(f"expected a place, got {value[:80]!r}; load the page again")
        return cls(unquote(doc_id), int(start), int(end), label or None)

    @property
    def encoded(self) -> str:
        """The change as the value of one field of a form."""
        return f"{self.start} {self.end} {self.label or ''} {quote(self.doc_id, safe='')}"


class LogState(NamedTuple):
    """The log at one moment.

    Attributes:
        lines: all of them, in order.
        current: by document, those that no line has undone.
        by_document: those that are no ``undo``.
    """

    lines: Sequence[Correction]
    current: Mapping[str, Sequence[Correction]]
    by_document: Mapping[str, Sequence[Correction]]

    @classmethod
    def of(cls, lines: Sequence[Correction]) -> "LogState":
        """Return the state of a log with some lines."""
        by_document: defaultdict[str, list[Correction]] = defaultdict(list)
        for line in lines:
            if line.action != "undo":
                by_document[line.doc_id].append(line)
        return cls(lines, current_corrections(lines), by_document)

    def touched_since(self, seen: int, change: Change) -> Correction | None:
        """Return the last line since a person looked that concerns words which the person wants to change."""
        by_id = {line.id: line for line in self.lines} if seen < len(self.lines) else {}
        for line in reversed(self.lines[seen:]):
            meant = line
            while meant.undoes is not None:
                meant = by_id[meant.undoes]
            if line.doc_id == change.doc_id and any(
                mark.start < change.end and change.start < mark.end for mark in meant.marks
            ):
                return line
        return None


class CorrectionLog:
    """The corrections of the collection that is viewed; with a name, one may be added."""

    def __init__(self, opened: OpenedCollection, who: str | None = None) -> None:
        self.who = who
        self._opened = opened
        self._path = opened.output / LOG_NAME if isinstance(opened.output, Path) else None
        self._lock = Lock()
        self._read: tuple[tuple[int, int, int] | None, LogState] = (None, LogState.of(()))

    def state(self) -> LogState:
        """Return the log as it is; InputError when a line of it is invalid."""
        if self._path is None:
            return LogState.of(())
        with self._lock:
            try:
                status = self._path.lstat()
            except FileNotFoundError:
                return LogState.of(())
            key = status.st_ino, status.st_size, status.st_mtime_ns
            if key != self._read[0]:
                self._read = key, LogState.of(read_log(self._path))
            return self._read[1]

    def read(self, index: sqlite3.Connection, document: IndexedDocument, state: LogState) -> CurrentDocument:
        """Return a document of the index with its corrections; UnavailableError if its text cannot be read."""
        current, lines = (lines.get(document.doc_id, ()) for lines in (state.current, state.by_document))
        return read_current(self._opened, index, document, corrections=current, lines=lines)

    def correct(self, changes: Sequence[Change], *, seen: int, generation: int) -> None:
        """Append what makes some changes to the log, all or nothing.

        What a person has said already needs no line, so that a request may come twice.

        Args:
            seen: how many lines the log had when the person looked.
            generation: that the person looked at.

        Raises:
            RefusedError: when another window has changed the same words since, a document's text cannot be read, or
                labels cannot hold a change.
            NotFoundError: when the collection does not have a document.
            StoreError: when there is no space; then nothing is in the log.
        """
        with self._opened.index.reading() as index:
            self._extend(lambda state: self._lines(index, state, changes, seen=seen, generation=generation))

    def undo(self, line_id: str, *, redo: bool = False) -> None:
        """Append what undoes a correction, or what redoes it; does nothing if it is undone, or redone, already."""

        def lines(state: LogState) -> Iterator[Correction]:
            line = _line(state, line_id)
            if (line in state.current.get(line.doc_id, ())) != redo:
                undone = undone_ids(state.lines)
                undos = [undo for undo in state.lines if undo.undoes == line_id and undo.id not in undone]
                yield from (target.undone(who=self._name) for target in (undos if redo else [line]))

        self._extend(lines)

    def undo_step(self, line_id: str) -> None:
        """Append what undoes a correction and all others of its step: of one person and moment, in any document.

        Does nothing if the correction is undone already, so that a request may come twice.
        """

        def lines(state: LogState) -> Iterator[Correction]:
            step = _line(state, line_id)
            if step not in state.current.get(step.doc_id, ()):
                return
            for line in chain.from_iterable(state.current.values()):
                if (line.who, line.when) == (step.who, step.when):
                    yield line.undone(who=self._name)

        self._extend(lines)

    def _extend(self, decide: Callable[[LogState], Iterable[Correction]]) -> None:
        if self._path is None:
            raise RefusedError("no line can be appended to an object; copy the collection to a folder to correct it")
        extend_log(self._path, lambda lines: list(decide(LogState.of(lines))))

    def _lines(
        self, index: sqlite3.Connection, state: LogState, changes: Sequence[Change], *, seen: int, generation: int
    ) -> Iterator[Correction]:
        """Yield the lines of some changes, all with one time."""
        collection = self._opened.snapshot.collection
        if generation != collection.manifest.generation or seen > len(state.lines):
            raise RefusedError("the collection has changed since this page was loaded; load it again")
        when = ""
        for doc_id, changes_of_document in groupby(changes, key=lambda change: change.doc_id):
            try:
                document = self.read(index, get_document(index, doc_id), state)
            except UnavailableError as error:
                raise RefusedError(f"document {doc_id!r}: {error}") from None
            lines: list[Correction] = []
            for change in changes_of_document:
                lines += self._changed(document, state, change, {line.old for line in lines}, seen=seen)
            if fault := document.fault(lines):
                raise RefusedError(fault)
            for line in lines:
                when = when or line.when
                yield line.model_copy(update={"when": when})

    def _changed(
        self, document: CurrentDocument, state: LogState, change: Change, given_up: set[Mark | None], *, seen: int
    ) -> Iterator[Correction]:
        if not 0 <= change.start < change.end <= len(document.text):
            raise RefusedError(
                f"expected words of document {document.row.doc_id!r}, got offsets {change.start} to {change.end}; load "
                "the page again"
            )
        place = document.place(change.start, change.end)
        if document.is_corrected(place, change.label) and not change.settles:
            return
        place = replace(place, found=tuple(mark for mark in place.found if mark not in given_up))
        touched = state.touched_since(seen, change)
        if touched is not None:
            raise RefusedError(
                f"{touched.who} has changed {document.text[change.start : change.end]!r} since this page was loaded "
                f"({touched.description}); load it again"
            )
        for label in {mark.type for mark in place.found} | {change.label or OUTSIDE}:
            try:
                check_type(label)
            except ValueError as error:
                raise RefusedError(f"type {label!r}: {error}") from None
        row = document.row
        seen_by = Seen(
            doc_id=row.doc_id, tagger=row.tagger, generation=self._opened.snapshot.collection.manifest.generation
        )
        bare = Mark(start=place.start, end=place.end, type=OUTSIDE, text=document.text[place.start : place.end])
        for old, new in list(marks_at(place, document.text, change.label)) or [(bare, None)]:
            line = Correction.of(old, new, text=document.text, seen=seen_by, who=self._name, digest=row.text_sha256)
            yield line.model_copy(update={"settles": change.settles})

    @property
    def _name(self) -> str:
        if self.who is None:
            raise RefusedError("this server only reads; start 'concord view OUT --as NAME' to correct")
        return self.who


def _line(state: LogState, line_id: str) -> Correction:
    line = next((line for line in state.lines if line.id == line_id and line.action != "undo"), None)
    if line is None:
        raise RefusedError("the log of corrections does not have this line; load the page again")
    return line
