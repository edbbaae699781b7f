"""The pages on which a document is read, and what stage two read of a name."""

import sqlite3
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from concord.models.data.outputs import AttentionMap
from concord.pipeline.documents import part_finder
from concord.pipeline.output.collection import CollectedDocument, TokenRow
from concord.pipeline.output.tables import normalize_name
from concord.workflows.view.correction_log import CurrentDocument, with_corrections
from concord.workflows.view.index.opened import DocumentPage, read_page
from concord.workflows.view.index.queries import (
    IndexedDeadLetter,
    IndexedDocument,
    Line,
    find_document,
    find_words,
    get_document,
    meta_of_document,
    names_of_document,
    neighbours,
    places_of_name,
    quote,
)
from concord.workflows.view.index.search_index import select
from concord.workflows.view.page import NotFoundError, Page, Query, UnavailableError
from concord.workflows.view.pages.correcting import correction_values
from concord.workflows.view.pages.text_layout import STRENGTHS, UNCERTAIN, KnownNames, count_marks, label_name, lay_out
from concord.workflows.view.viewer import Viewer

SHOWN_NAMES = 40


def document(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """Show a page of a document with its corrections; of one that could not be annotated, its dead letters."""
    doc_id = query.text("id")
    row = find_document(index, doc_id)
    dead_letters = select(index, IndexedDeadLetter, "FROM dead_letters WHERE doc_id = ? ORDER BY id", (doc_id,))
    if row is not None:
        return _page(viewer, index, row, query, dead_letters)
    if not dead_letters:
        raise NotFoundError(f"there is no document {doc_id!r}")
    return Page("dead_document.html.j2", {"doc_id": doc_id, "dead_letters": dead_letters})


def _page(
    viewer: Viewer, index: sqlite3.Connection, row: IndexedDocument, query: Query, dead: Sequence[IndexedDeadLetter]
) -> Page:
    doc_id, name, at, tree, who = row.doc_id, query.text("name"), query.text("at"), query.number("tree"), viewer.log.who
    number, sentence = query.number("page"), query.number("sentence")
    start = at.partition("-")[0]
    offset = int(start) if start.isdecimal() and len(start) < 12 else None
    page = read_page(viewer.opened, index, row, page=number, sentence=sentence, at=offset, trees=tree is not None)
    state, log_fault = viewer.log.readable_state()
    current = None
    if page.text is not None and (who or state.by_document.get(doc_id)):
        current = viewer.log.read(index, row, state)
        page = with_corrections(page, current)
    names = names_of_document(index, row.id)
    labels = {entry.name: f"{', '.join(entry.labels)} ({entry.entities})" for entry in names}
    paragraphs = lay_out(page, KnownNames(labels | _corrected_names(current)), tree=tree)
    before, after = neighbours(index, row)
    places, count = places_of_name(index, name=name, document=row.id) if name else ([], 0)
    values = {
        "dead_letters": dead,
        "document": row,
        "page": page,
        "meta": meta_of_document(index, row),
        "paragraphs": paragraphs,
        "marks": count_marks(paragraphs),
        "parts_begin": _parts_that_begin(page),
        "asked": None,
        "here": partial(query.link, page=page.page or None, sentence=None, at=None, tree=None, save=None),
        "back": query.link(page=number, save=None),
        "names": names[:SHOWN_NAMES],
        "more_names": len(names) - SHOWN_NAMES,
        "name": name,
        "tree": tree,
        "before": before,
        "after": after,
        "uncertain": UNCERTAIN,
        "strengths": STRENGTHS,
        "can_correct": current is not None and who and not query.text("save"),
        "fetches": who is not None,
        "log_fault": log_fault,
        "places": places,
        "count": count,
        "unlabelled": _unlabelled(index, name, row) if name else [],
        **correction_values(viewer, current, state, doc_id=doc_id, at=at),
    }
    return Page("document.html.j2", values)


def _parts_that_begin(page: DocumentPage) -> dict[int, str]:
    """Return the page or chapter of the first sentence, and of each that begins in another, by its number."""
    part_at, begin = part_finder(page.row.parts), dict[int, str]()
    before = None
    for sentence in page.sentences:
        part = part_at(sentence.start_char)
        if part is not None and part != before:
            begin[sentence.sent_id] = str(part)
        before = part
    return begin


def _corrected_names(document: CurrentDocument | None) -> dict[str, str]:
    """Return the names that people have labelled in the document, with what they are there."""
    marks = () if document is None else (correction.new for correction in document.fit.corrections)
    return {normalize_name(mark.text): f"{mark.type} (corrected)" for mark in marks if mark is not None}


def _unlabelled(index: sqlite3.Connection, name: str, document: IndexedDocument) -> list[Line]:
    """Return the places of a name in a document that are in no entity."""
    within: Counter[int] = Counter()
    for sent_id, longer in index.execute(
        "SELECT sent_id, name FROM entities WHERE document = ? AND instr(name, ?)", (document.id, name)
    ):
        within[sent_id] += longer.count(name)
    places: list[Line] = []
    for line in find_words(index, quote(name), column="forms", document=document)[0]:
        if line.match == name and within[line.sent_id]:
            within[line.sent_id] -= 1
        elif line.match == name:
            places.append(line)
    return places


_SHOWN_PLACES = 20
_SHOWN_WEIGHTS = 5
_SMALLEST = 0.01
_CONTEXT_WORDS = 5


Place = tuple[Line, list[dict[str, Any]]]
"""A place of a name, and each of its words with what it reads."""


def attention(viewer: Viewer, index: sqlite3.Connection, query: Query) -> Page:
    """Show what each word of a name reads, for each of its places in a document."""
    name = query.text("name")
    collection = viewer.opened.collection
    document = get_document(index, query.text("id"))
    lines, count = places_of_name(index, name=name, document=document.id) if name else ([], 0)
    page = read_page(viewer.opened, index, document, only=(0, document.sentences), trees=True)
    rows = CollectedDocument(page.row, tuple(page.sentences), entities=())
    obstacle, places = "", list[Place]()
    try:
        maps = viewer.tagger.attention_maps(collection, rows)
        places = list(_places(rows, maps, lines[:_SHOWN_PLACES]))
    except UnavailableError as error:
        obstacle = str(error)
    values = {
        "document": document,
        "name": name,
        "obstacle": obstacle,
        "places": places,
        "count": count,
    }
    return Page("attention.html.j2", values)


def _places(
    document: CollectedDocument, maps: Sequence[Mapping[str, AttentionMap]], lines: Sequence[Line]
) -> Iterator[Place]:
    tokens = [(token, sentence.sent_id) for sentence in document.sentences for token in sentence.tokens]
    # Of each word, by its number in the document: its weights over all words.
    rows = [row for names in maps if "memory" in names for row in names["memory"].weights[0]]
    starts = [token.start_char for token, _ in tokens]
    for line in lines:
        if line.entity is None:
            continue
        words = []
        for number in range(bisect_left(starts, line.entity.start), bisect_left(starts, line.entity.end)):
            weights, order = rows[number].topk(min(_SHOWN_WEIGHTS, len(rows[number])))
            pairs = zip(weights.tolist(), order.tolist(), strict=True)
            reads = [_attended_word(tokens, other, weight) for weight, other in pairs if weight >= _SMALLEST]
            token = tokens[number][0]
            words.append({"text": token.text, "refined": token.refined, "reads": reads})
        yield line, words


def _attended_word(tokens: Sequence[tuple[TokenRow, int]], number: int, weight: float) -> dict[str, Any]:
    """Return a word that another one reads in the memory: its sentence, words around it, and labels as shown."""
    token, sent_id = tokens[number]
    around = tokens[max(0, number - _CONTEXT_WORDS) : number + 1 + _CONTEXT_WORDS]
    sentence = [word for word, number in around if number == sent_id]
    left = [word.text for word in sentence if word.start_char < token.start_char]
    right = [word.text for word in sentence if word.start_char > token.start_char]
    return {
        "weight": weight,
        "sent_id": sent_id,
        "left": " ".join(left),
        "match": token.text,
        "right": " ".join(right),
        "draft": label_name(token.draft_ner),
        "final": label_name(token.ner),
    }
