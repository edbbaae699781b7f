"""The forms that correct: their fields, checked, and what each of them does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from secrets import compare_digest
from urllib.parse import parse_qs, unquote

from concord.pipeline.corrections.correction import check_type
from concord.workflows.view.correcting.correction_log import Change, RefusedError
from concord.workflows.view.correcting.current_document import CurrentDocument
from concord.workflows.view.index.queries import get_document
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
        viewer.log.correct(changes, seen=form.number("seen"), generation=form.number("generation"))
        return
    if form.text("sentence"):
        start, end = _selected_words(viewer, form)
    else:
        start, end = form.number("start"), form.number("end")
    change = Change(form.doc_id, start, end, form.label)
    viewer.log.correct([change], seen=form.number("seen"), generation=form.number("generation"))


def correct_places(viewer: Viewer, form: Form) -> None:
    """Make the changes that a person has ticked in a list."""
    changes = [Change.decode(value) for value in form.fields.get("change", ())]
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


def _document(viewer: Viewer, form: Form, start: int, end: int) -> CurrentDocument:
    with viewer.opened.index.reading() as index:
        return viewer.log.read(index, get_document(index, form.doc_id), viewer.log.state(), near=(start, end))


def _stretched(viewer: Viewer, form: Form) -> list[Change]:
    start, end = form.number("start"), form.number("end")
    document = _document(viewer, form, start, end)
    entities = document.place(start, end).found
    if len(entities) != 1 or form.text("bounds") not in _BOUNDS:
        raise RefusedError("expected one entity whose bounds are to change; choose one")
    bounds = document.stretched(entities[0], *_BOUNDS[form.text("bounds")])
    return [] if bounds is None else [Change(form.doc_id, *bounds, entities[0].type)]


def _selected_words(viewer: Viewer, form: Form) -> tuple[int, int]:
    sentence = form.number("sentence")
    document = _document(viewer, form, sentence, sentence + 1)
    words = document.words_at(sentence, form.number("from"), form.number("to"))
    if words is None:
        raise RefusedError("expected words of a sentence to be selected, got none; select some")
    return words
