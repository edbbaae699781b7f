"""What the collection's own tagger would find differently in a document once its corrections are certain."""

import sqlite3

from concord.pipeline.corrections.correction import Mark
from concord.pipeline.corrections.fitting import Place
from concord.workflows.corrections.ripple import find_moves
from concord.workflows.view.correcting.collection_tagger import OwnTagger
from concord.workflows.view.correcting.current_document import CurrentDocument
from concord.workflows.view.index.document import read_document
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.recent import Recent

_KEPT = 4
Found = list[tuple[Place, str | None]]
_Key = tuple[str, int, str, str, tuple[str, ...]]


class Moves:
    """What moves, by plan and generation, document and its corrections; the last answers are kept."""

    def __init__(self, opened: OpenedCollection, tagger: OwnTagger) -> None:
        """Take the collection and its tagger."""
        self._opened = opened
        self._tagger = tagger
        self._moves: Recent[_Key, list[tuple[Mark | None, Mark | None]]] = Recent(_KEPT)

    def find(self, index: sqlite3.Connection, listed: sqlite3.Row, document: CurrentDocument) -> tuple[str, Found]:
        """Return why there is no answer, or the words of a document that would change, each with its new type.

        Words whose entity is what stage two finds, or that a person has spoken about, are left out.
        """
        if not document.corrections:
            return "Nothing is corrected in this document yet.", []
        collection = self._opened.snapshot.collection
        manifest, row = collection.manifest, document.row
        said = tuple(one.id for one in document.corrections)
        key = manifest.plan, manifest.generation, row.doc_id, row.text_sha256, said
        with self._tagger.lock:
            if key not in self._moves:
                plan = collection.plan
                loaded = self._tagger.load(plan)
                if isinstance(loaded, str):
                    return loaded, []
                tagger, terms = loaded
                if tagger.threshold is None:
                    return "The tagger has one stage: what it finds does not depend on corrections.", []
                read = read_document(self._opened, index, listed)
                self._moves[key] = find_moves(
                    tagger, read, document.text, document.corrections, options=plan.config.tagger, terms=terms
                )
            moves = self._moves[key]
        found = []
        for old, new in moves:
            mark = new or old
            if mark is not None:
                place = document.place(mark.start, mark.end)
                if place.found != (() if new is None else (new,)):
                    found.append((place, None if new is None else new.type))
        return "", found
