"""Corrections made in the browser: documents with their corrections, the log as it is, and new lines of the log."""

import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, groupby, islice, takewhile
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from urllib.parse import quote, unquote

from concord.models.errors import ConcordError
from concord.models.labels import OUTSIDE
from concord.pipeline.corrections.correction import (
    LOG_NAME,
    MAX_COMMENT,
    Correction,
    Mark,
    Seen,
    check_type,
    corrections_digest,
    current_corrections,
    extend_log,
    group_by_document,
    read_log,
    undone_ids,
)
from concord.pipeline.corrections.fitting import (
    CORRECTED,
    FittedCorrections,
    Offsets,
    Place,
    corrected_marks,
    fit_corrections,
    marks_at,
    marks_of_tagger,
)
from concord.pipeline.documents import join_pieces
from concord.pipeline.output.collection import ROW_COLUMNS, DocumentRow, SentenceRow
from concord.pipeline.output.tables import normalize_name
from concord.workflows.view.index.opened import DocumentPage, OpenedCollection, read_row
from concord.workflows.view.index.queries import IndexedDocument, IndexedEntity, get_document
from concord.workflows.view.page import UnavailableError


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentDocument:
    """A document as its corrections leave it.

    Attributes:
        corrections: those that no line has undone, in the order of the log.
        sentences: the offsets of the words of each sentence; the pieces of an over-long one are one.
        starts: where each sentence starts, those of pieces too.
        fit: what the corrections mean here.
        marks: its entities with the corrections, in order.
    """

    row: DocumentRow
    text: str
    corrections: Sequence[Correction]
    sentences: Sequence[Sequence[Offsets]]
    starts: Sequence[int]
    fit: FittedCorrections
    marks: Sequence[Mark]

    @property
    def results(self) -> set[Mark | None]:
        """The entities that corrections say there are."""
        return {correction.new for correction in self.fit.corrections}

    def place(self, start: int, end: int) -> Place:
        """Return some words of the document with the entities that they overlap."""
        first = bisect_right(self.marks, start, key=lambda mark: mark.end)
        stop = bisect_left(self.marks, end, key=lambda mark: mark.start)
        return Place(self.row.doc_id, start, end, found=tuple(self.marks[first:stop]))

    def is_corrected(self, place: Place, label: str | None) -> bool:
        """Return whether corrections say already that a place is an entity of a type, or in none if None."""
        if label is None:
            marks = (mark for correction in self.fit.corrections for mark in correction.marks)
            return not place.found and any(mark.start <= place.start and place.end <= mark.end for mark in marks)
        if len(place.found) != 1:
            return False
        [mark] = place.found
        is_same = (mark.start, mark.end, mark.type) == (place.start, place.end, label)
        return is_same and mark in self.results

    def holds(self, place: Place) -> bool:
        """Return whether a place begins and ends with a word, in one sentence."""
        words = self.words_from(place.start)
        starts, ends = {word[0] for word in words}, {word[1] for word in words}
        return place.start in starts and place.end in ends

    def words_at(self, sentence: int, start: int, end: int) -> Offsets | None:
        """Return where the words begin and end that some characters touch, of a sentence as a browser shows it.

        Args:
            sentence: where it starts, in code points of the raw text.
            start, end: in code points of the shown sentence, half-open.
        """
        words = self.words_from(sentence)
        first, last = (sentence + _raw_offset(self.text, sentence, shown) for shown in (start, end))
        touched = [word for word in words if word[0] < last and first < word[1] and first < last]
        return (touched[0][0], touched[-1][1]) if touched else None

    def stretched(self, mark: Mark, first: int, last: int) -> Offsets | None:
        """Return the bounds of an entity with so many more words of its sentence at its start and at its end.

        Negative numbers shorten it. Nothing is returned if the sentence does not have the words, or none is left.
        """
        words = sorted(set(self.words_from(mark.start)))
        start = bisect_right(words, mark.start, key=lambda word: word[1]) - first
        stop = bisect_left(words, mark.end, key=lambda word: word[0]) + last
        return (words[start][0], words[stop - 1][1]) if 0 <= start < stop <= len(words) else None

    def words_from(self, start: int) -> Sequence[Offsets]:
        """Return the words of the sentence that a place is in."""
        number = bisect_right(self.sentences, start, key=lambda words: words[0][0]) - 1
        return self.sentences[max(number, 0)] if self.sentences else ()


def with_corrections(page: DocumentPage, current: CurrentDocument) -> DocumentPage:
    """Return a page of a document with its current entities: rows of the index where they still hold, and new ones."""
    rows = {(row.start, row.end, row.label): row for row in page.entities}
    results = current.results
    entities = []
    for mark in current.place(*page.bounds).found:
        row = rows.get((mark.start, mark.end, mark.type))
        if row is None or (row.origin != CORRECTED and mark in results):
            row = _row(mark, is_corrected=mark in results)
        entities.append(row)
    return replace(page, entities=entities)


def _mark(text: str, start: int, end: int, label: str) -> Mark:
    # Unchecked, which is faster, and a tagger may have types that no correction can hold.
    return Mark.model_construct(start=start, end=end, type=label, text=text[start:end])


def _row(mark: Mark, *, is_corrected: bool) -> IndexedEntity:
    return IndexedEntity(
        # No entity of the tables has a negative number.
        number=-1 - mark.start,
        start=mark.start,
        end=mark.end,
        label=mark.type,
        name=normalize_name(mark.text),
        confidence=1.0,
        uncertainty=0.0,
        refined=False,
        changed=False,
        origin=CORRECTED if is_corrected else "",
    )


def _raw_offset(text: str, start: int, shown: int) -> int:
    """Return how many code points from a place on make up some characters of a browser.

    It shows a carriage return with a line feed as one character, and a null character not at all.
    """
    offset = 0
    while shown > 0 and start + offset < len(text):
        pair = text[start + offset : start + offset + 2]
        shown -= pair[0] != "\0" and pair != "\r\n"
        offset += 1
    return offset


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
        current: by document, the corrections that no line has undone.
        by_document: the corrections with those that are undone.
        flags: by document, the flags that no line has undone.
        undone: ids of the lines that no longer count.
    """

    lines: Sequence[Correction]
    current: Mapping[str, Sequence[Correction]]
    by_document: Mapping[str, Sequence[Correction]]
    flags: Mapping[str, Sequence[Correction]]
    undone: AbstractSet[str]

    @classmethod
    def of(cls, lines: Sequence[Correction]) -> "LogState":
        """Return the state of a log with some lines."""
        undone = undone_ids(lines)
        flags = group_by_document(line for line in lines if line.action == "flag" and line.id not in undone)
        return cls(
            lines, current_corrections(lines), group_by_document(line for line in lines if line.decides), flags, undone
        )

    def counts(self, line: Correction) -> bool:
        """Return whether no line has undone a correction or a flag."""
        return line.action != "undo" and line.id not in self.undone

    def last_step(self, who: str | None, lines: Sequence[Correction]) -> Correction | None:
        """Return the last of some lines that a person wrote and nobody has undone."""
        return next((line for line in reversed(lines) if line.who == who and self.counts(line)), None)

    def steps_today(self, who: str | None) -> int:
        """Return how many steps of a person since midnight nobody has undone."""
        midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        since = midnight.astimezone(UTC).isoformat()
        today = takewhile(lambda line: line.when >= since, reversed(self.lines))
        return len({line.when for line in today if line.who == who and self.counts(line)})

    @property
    def types(self) -> Iterable[str]:
        """The types that people have used, in the order of their first use; some may be those of no tagger."""
        marks = (line.new for line in self.lines)
        return dict.fromkeys(mark.type for mark in marks if mark is not None)

    def touched_since(self, seen: int, change: Change) -> Correction | None:
        """Return the last line since a person looked that concerns words which the person wants to change."""
        by_id = {line.id: line for line in self.lines} if seen < len(self.lines) else {}
        for line in reversed(self.lines[seen:]):
            meant = line
            while meant.undoes is not None:
                meant = by_id[meant.undoes]
            if (
                line.doc_id == change.doc_id
                and meant.decides
                and any(mark.start < change.end and change.start < mark.end for mark in meant.marks)
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

    def readable_state(self) -> tuple[LogState, str]:
        """Return the log, or an empty one with the reason why it cannot be read."""
        try:
            return self.state(), ""
        except ConcordError as error:
            return LogState.of(()), str(error)

    def read(self, index: sqlite3.Connection, document: IndexedDocument, state: LogState) -> CurrentDocument:
        """Return a document of the index with its corrections.

        Raises:
            UnavailableError: when the input no longer has its text.
            IntegrityError: when the part is gone or damaged, or the index is not up to date yet.
        """
        report, row = read_row(self._opened, index, document)
        text, collection = self._opened.text(row), self._opened.collection
        start, stop = document.sentence_row, document.sentence_row + row.n_sentences
        rows = collection.read_rows(report, "sentences", ROW_COLUMNS["sentences"], start=start, stop=stop)
        pieces = [SentenceRow(**values) for values in rows.to_pylist()]
        start, columns = document.token_row, ["start_char", "end_char"]
        words = collection.read_rows(report, "tokens", columns, start=start, stop=start + row.n_tokens)
        offsets = zip(*(words[name].to_pylist() for name in columns), strict=True)
        counts = (sum(piece.n_tokens for piece in whole) for whole in join_pieces(pieces, attrgetter("continues")))
        sentences = [list(islice(offsets, count)) for count in counts]
        query = "SELECT start, end, label, origin FROM entities WHERE document = ? ORDER BY number"
        marks = [(_mark(text, *values), origin) for *values, origin in index.execute(query, (document.id,))]
        corrections = state.current.get(row.doc_id, ())
        digest = collection.plan.corrected.get(row.doc_id)
        tagged = [mark for mark, _ in marks]
        if digest is not None and digest != corrections_digest(corrections):
            tagged = marks_of_tagger(marks, state.by_document.get(row.doc_id, ()), row.text_sha256)
        fit = fit_corrections(corrections, text, sentences)
        return CurrentDocument(
            row=row,
            text=text,
            corrections=corrections,
            sentences=sentences,
            starts=[piece.start_char for piece in pieces],
            fit=fit,
            marks=corrected_marks(tagged, fit.corrections),
        )

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

    def flag(self, words: Change, comment: str, *, generation: int) -> None:
        """Append that some words are to be looked at again, and why; a request may come twice.

        Raises:
            RefusedError, NotFoundError, StoreError: see ``correct``.
        """
        comment = comment[:MAX_COMMENT]

        def lines(state: LogState) -> Iterator[Correction]:
            said = {(flag.who, flag.result.start, flag.comment) for flag in state.flags.get(words.doc_id, ())}
            if (self._name, words.start, comment) not in said:
                document = self._document(index, state, words.doc_id, seen=0, generation=generation)
                line = self._line_of(document, _unlabelled(document, words), None)
                yield line.model_copy(update={"action": "flag", "comment": comment})

        with self._opened.index.reading() as index:
            self._extend(lines)

    def undo(self, line_id: str, *, redo: bool = False) -> None:
        """Append what undoes a correction, or what redoes it; does nothing if it is undone, or redone, already."""

        def lines(state: LogState) -> Iterator[Correction]:
            line = _line(state, line_id)
            if state.counts(line) != redo:
                undos = [undo for undo in state.lines if undo.undoes == line_id and undo.id not in state.undone]
                yield from (target.undone(who=self._name) for target in (undos if redo else [line]))

        self._extend(lines)

    def undo_step(self, line_id: str) -> None:
        """Append what undoes a correction and all others of its step: of one person and moment, in any document.

        Does nothing if the correction is undone already, so that a request may come twice.
        """

        def lines(state: LogState) -> Iterator[Correction]:
            step = _line(state, line_id)
            if not state.counts(step):
                return
            for line in chain.from_iterable([*state.current.values(), *state.flags.values()]):
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
        when = ""
        for doc_id, of_document in groupby(changes, key=lambda change: change.doc_id):
            document = self._document(index, state, doc_id, seen=seen, generation=generation)
            lines: list[Correction] = []
            for change in of_document:
                lines += self._changed(document, state, change, {line.old for line in lines}, seen=seen)
            if misfits := fit_corrections(lines, document.text, document.sentences).misfits:
                raise RefusedError(misfits[0].reason)
            for line in lines:
                when = when or line.when
                yield line.model_copy(update={"when": when})

    def _document(
        self, index: sqlite3.Connection, state: LogState, doc_id: str, *, seen: int, generation: int
    ) -> CurrentDocument:
        """Return a document that a person has seen; RefusedError if it is another one by now."""
        if generation != self._opened.collection.manifest.generation or seen > len(state.lines):
            raise RefusedError("the collection has changed since this page was loaded; load it again")
        try:
            return self.read(index, get_document(index, doc_id), state)
        except UnavailableError as error:
            raise RefusedError(f"document {doc_id!r}: {error}") from None

    def _changed(
        self, document: CurrentDocument, state: LogState, change: Change, given_up: set[Mark | None], *, seen: int
    ) -> Iterator[Correction]:
        bare = _unlabelled(document, change)
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
        for old, new in list(marks_at(place, document.text, change.label)) or [(bare, None)]:
            yield self._line_of(document, old, new).model_copy(update={"settles": change.settles})

    def _line_of(self, document: CurrentDocument, old: Mark | None, new: Mark | None) -> Correction:
        row, generation = document.row, self._opened.collection.manifest.generation
        seen = Seen(doc_id=row.doc_id, tagger=row.tagger, generation=generation)
        return Correction.of(old, new, text=document.text, seen=seen, who=self._name, digest=row.text_sha256)

    @property
    def _name(self) -> str:
        if self.who is None:
            raise RefusedError("this server only reads; start 'concord view OUT --as NAME' to correct")
        return self.who


def _unlabelled(document: CurrentDocument, words: Change) -> Mark:
    """Return words of a document as those of no entity; RefusedError if it has none there."""
    start, end, text = words.start, words.end, document.text
    if not 0 <= start < end <= len(text):
        raise RefusedError(
            f"expected words of document {document.row.doc_id!r}, got offsets {start} to {end}; load the page again"
        )
    return Mark(start=start, end=end, type=OUTSIDE, text=text[start:end])


def _line(state: LogState, line_id: str) -> Correction:
    line = next((line for line in state.lines if line.id == line_id and line.action != "undo"), None)
    if line is None:
        raise RefusedError("the log of corrections does not have this line; load the page again")
    return line
