"""The forms that correct, and the pages that list corrections, equal words everywhere, and where people differ."""

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from secrets import compare_digest
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from concord.pipeline.corrections.correction import Correction, Mark, check_type
from concord.pipeline.corrections.fitting import Place, find_places
from concord.workflows.corrections import (
    NO_DOCUMENT,
    Difference,
    agreements,
    fit_statuses,
    open_differences,
    shared_sentences,
)
from concord.workflows.view.correction_log import Change, CurrentDocument, LogState, RefusedError
from concord.workflows.view.index.queries import documents_with, find_document, get_document
from concord.workflows.view.index.search_index import PAGE_ROWS
from concord.workflows.view.page import Page, Paging, Query, UnavailableError
from concord.workflows.view.viewer import Viewer

_BOUNDS = {"start+": (1, 0), "start-": (-1, 0), "end+": (0, 1), "end-": (0, -1)}
"""Words by which a button lengthens an entity, at its start and at its end."""
MAX_FORM_BYTES = 4_000_000
"""Some thousand places in documents with long ids."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form that was sent; a field without a value is left out."""

    fields: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, body: bytes) -> "Form":
        """Read the body of a request; RefusedError if it is not a form."""
        try:
            return cls(parse_qs(body.decode(), max_num_fields=100_000, errors="strict"))
        except ValueError as error:
            raise RefusedError(f"expected a form in UTF-8: {error}; load the page again") from None

    def text(self, name: str) -> str:
        """Return a field; the empty string without it."""
        return self.fields.get(name, ("",))[-1]

    def number(self, name: str) -> int:
        """Return a field that is a whole number from 0 on; RefusedError if it is not."""
        value = self.text(name)
        if not (value.isascii() and value.isdecimal() and len(value) <= 12):
            raise RefusedError(f"expected a number as {name!r}, got {value[:40]!r}; load the page again")
        return int(value)

    @property
    def doc_id(self) -> str:
        """The id of a document, which forms carry quoted: browsers change line ends."""
        return unquote(self.text("id"))

    @property
    def label(self) -> str | None:
        """The entity type that was chosen, None for no entity; RefusedError if labels cannot hold it."""
        if self.text("drop"):
            return None
        value = self.text("label") or self.text("other").strip()
        try:
            return check_type(value)
        except ValueError as error:
            raise RefusedError(f"type {value!r}: {error}") from None

    @property
    def back(self) -> str:
        """The address to show next: one of this server."""
        value = self.text("back")
        is_local = value.startswith("/") and not value.startswith("//") and value.isprintable() and "\\" not in value
        return value if is_local else "/"


def form_key(token: str) -> str:
    """Return what a form must contain: only who knows the token can compute it, and it does not tell the token."""
    return sha256(f"form {token}".encode()).hexdigest()


def check_key(form: Form, key: str) -> None:
    """Raise RefusedError unless a form comes from a page of this server."""
    if not compare_digest(form.text("key").encode(), key.encode()):
        raise RefusedError("the form does not come from this server; load the page again")


def correct(viewer: Viewer, form: Form) -> None:
    """Correct the words that a person has chosen: by their offsets, or by a selection in a sentence.

    An entity may be made longer or shorter instead; nothing is done where its sentence has no more words.
    """
    if form.text("bounds"):
        changes = _stretched(viewer, form)
    elif form.text("sentence"):
        changes = [Change(form.doc_id, *_selected_words(viewer, form), form.label)]
    else:
        changes = [Change(form.doc_id, form.number("start"), form.number("end"), form.label)]
    viewer.log.correct(changes, seen=form.number("seen"), generation=form.number("generation"))


def correct_places(viewer: Viewer, form: Form, *, settles: bool = False) -> None:
    """Make the changes that a person has ticked in a list, or that settle a difference."""
    changes = [Change.decode(value)._replace(settles=settles) for value in form.fields.get("change", ())]
    viewer.log.correct(changes, seen=form.number("seen"), generation=form.number("generation"))


def flag(viewer: Viewer, form: Form) -> None:
    """Flag the words of a sentence, with what a person writes about it."""
    words = Change(form.doc_id, form.number("start"), form.number("end"), None)
    viewer.log.flag(words, form.text("comment").strip(), generation=form.number("generation"))


def undo(viewer: Viewer, form: Form) -> None:
    """Undo or redo a line of the log, or undo the whole step of a line."""
    if form.text("line"):
        viewer.log.undo(form.text("line"), redo=bool(form.text("redo")))
    else:
        viewer.log.undo_step(form.text("step"))


def _document(viewer: Viewer, form: Form) -> CurrentDocument:
    with viewer.opened.index.reading() as index:
        return viewer.log.read(index, get_document(index, form.doc_id), viewer.log.state())


def _stretched(viewer: Viewer, form: Form) -> list[Change]:
    start, end = form.number("start"), form.number("end")
    document = _document(viewer, form)
    entities = document.place(start, end).found
    if len(entities) != 1 or form.text("bounds") not in _BOUNDS:
        raise RefusedError("expected one entity whose bounds are to change; choose one")
    bounds = document.stretched(entities[0], *_BOUNDS[form.text("bounds")])
    return [] if bounds is None else [Change(form.doc_id, *bounds, entities[0].type)]


def _selected_words(viewer: Viewer, form: Form) -> tuple[int, int]:
    sentence = form.number("sentence")
    document = _document(viewer, form)
    words = document.words_at(sentence, form.number("from"), form.number("to"))
    if words is None:
        raise RefusedError("expected words of a sentence to be selected, got none; select some")
    return words


LISTED = 500
"""Places that are listed at once, and as many in longer names; once they are confirmed, the next ones are listed."""
_CONTEXT = 60


class ListedPlace(NamedTuple):
    """A place with the text around it, and the value that asks for its change.

    Attributes:
        labels: of the entities there.
        longer: the entities there as a whole, if one of them goes beyond the place.
    """

    doc_id: str
    title: str
    sent_id: int
    left: str
    match: str
    right: str
    labels: tuple[str, ...]
    longer: tuple[str, ...]
    change: str


class ChosenWords(NamedTuple):
    """The words that the reading page has chosen, with the type of their entity; empty if they are in none."""

    place: Place
    text: str
    label: str


def everywhere(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """List all places of some words that are not yet what a person wants, to be confirmed.

    Places in longer names are listed apart, and chosen one by one.
    """
    surface, label, doc_id = query.text("text").strip(), query.text("label"), query.text("id")
    state = viewer.log.state()
    places: list[ListedPlace] = []
    within: list[ListedPlace] = []
    unread: list[str] = []
    for row in [get_document(index, doc_id)] if doc_id else documents_with(index, surface):
        try:
            document = viewer.log.read(index, row, state)
        except UnavailableError as error:
            unread.append(str(error))
            continue
        for place in _places(document, row.heading, surface, label or None):
            (within if place.longer else places).append(place)
        if len(places) > LISTED:
            break
    values = {
        "text": surface,
        "label": label,
        "doc_id": doc_id,
        "places": places[:LISTED],
        "is_cut": len(places) > LISTED,
        "within": within[:LISTED],
        "more_within": max(0, len(within) - LISTED),
        "unread": unread,
        "labels": list(dict.fromkeys([*viewer.types(index), *filter(None, [label])])),
        "seen": len(state.lines),
    }
    return Page("everywhere.html.j2", values)


def corrections(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """List the log, the newest line first."""
    state = viewer.log.state()
    lines = [line for line in reversed(state.lines) if line.undoes is None]
    doc_id, page = query.text("id"), query.number("page") or 0
    if doc_id:
        lines = [line for line in lines if line.doc_id == doc_id]
    shown = lines[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
    values = {
        "rows": [(line, line.description, state.counts(line)) for line in shown],
        "reasons": _reasons(viewer, index, state, shown),
        "paging": Paging(page, len(lines), PAGE_ROWS),
        "doc_id": doc_id,
    }
    return Page("corrections.html.j2", values)


def correction_values(
    viewer: Viewer, document: CurrentDocument | None, state: LogState, *, doc_id: str, at: str
) -> Mapping[str, Any]:
    """Return what the reading page shows of corrections: the words chosen by ``at``, and the log of the document.

    An entity stays chosen when its bounds change: see ``choose``.
    """
    current = state.current.get(doc_id, ())
    return {
        "seen": len(state.lines),
        "log": [(line, line.description) for line in reversed(current)][:PAGE_ROWS],
        "logged": len(current),
        # The last step of the person who looks, which can be undone.
        "last": state.last_step(viewer.log.who, current),
        "chosen": None if document is None else choose(document, at),
    }


def choose(document: CurrentDocument, at: str) -> ChosenWords | None:
    """Return the words at some offsets as in ``15-21``, or the entity that they are in; None if there are none."""
    start, _, end = at.partition("-")
    if not (start.isdecimal() and end.isdecimal() and len(at) < 24):
        return None
    place = document.place(int(start), int(end))
    if len(place.found) == 1:
        place = document.place(place.found[0].start, place.found[0].end)
    if not place.start < place.end <= len(document.text):
        return None
    return ChosenWords(place, document.text[place.start : place.end], place.found[0].type if place.found else "")


def _places(document: CurrentDocument, title: str, surface: str, label: str | None) -> Iterator[ListedPlace]:
    doc_id, text = document.row.doc_id, document.text
    for match in find_places(doc_id, text, (), surface):
        place = document.place(match.start, match.end)
        # Without an entity there is nothing to change to no entity.
        if document.holds(place) and (label or place.found) and not document.is_corrected(place, label):
            yield ListedPlace(
                doc_id=doc_id,
                title=title,
                sent_id=max(bisect_right(document.starts, place.start) - 1, 0),
                left=text[max(0, place.start - _CONTEXT) : place.start],
                match=text[place.start : place.end],
                right=text[place.end : place.end + _CONTEXT],
                labels=tuple(dict.fromkeys(mark.type for mark in place.found)),
                longer=() if place.is_whole else tuple(mark.text for mark in place.found),
                change=Change(doc_id, place.start, place.end, label).encoded,
            )


def _reasons(viewer: Viewer, index: sqlite3.Connection, state: LogState, lines: Sequence[Correction]) -> dict[str, str]:
    """Return why corrections do not count, by id."""
    reasons: dict[str, str] = {}
    for doc_id in {line.doc_id for line in lines if line in state.current.get(line.doc_id, ())}:
        row = find_document(index, doc_id)
        try:
            if row is None:
                raise UnavailableError(NO_DOCUMENT)
            document = viewer.log.read(index, row, state)
        except UnavailableError as error:
            reasons |= {line.id: str(error) for line in state.current[doc_id]}
        else:
            statuses = fit_statuses(document.corrections, document.fit, "waiting")
            reasons |= {number: status.reason for number, status in statuses.items() if status.reason}
    return reasons


def differences(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """List how far people agree, and the differences that are not settled."""
    state = viewer.log.state()
    sentences = list(shared_sentences(viewer.opened.collection, state.lines))
    rows = list(chain.from_iterable(map(open_differences, sentences)))
    # The last difference of the last page takes the page with it.
    page = min(query.number("page") or 0, max(0, len(rows) - 1) // PAGE_ROWS)
    values = {
        "agreements": agreements(sentences),
        "rows": [
            (row, [(answer, who, changes(row, answer)) for answer, who in row.answers.items()])
            for row in rows[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
        ],
        "paging": Paging(page, len(rows), PAGE_ROWS),
        "seen": len(state.lines),
    }
    return Page("differences.html.j2", values)


def changes(difference: Difference, answer: Sequence[Mark]) -> list[str]:
    """Return what a form asks for where an answer is right: its entities, and none where only others have some."""
    doc_id, kept = difference.sentence.doc_id, list(answer)
    asked = [Change(doc_id, mark.start, mark.end, mark.type) for mark in answer]
    for mark in chain.from_iterable(difference.answers):
        if not any(mark.overlaps(other) for other in kept):
            kept.append(mark)
            asked.append(Change(doc_id, mark.start, mark.end, None))
    return [change.encoded for change in asked]
