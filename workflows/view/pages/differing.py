"""The page that lists where people differ who looked at the same sentences, and settles it."""

from collections.abc import Sequence
from itertools import chain

from concord.pipeline.corrections.correction import Mark
from concord.workflows.corrections.agreement import Difference, agreements, open_differences, shared_sentences
from concord.workflows.view.correcting.correction_log import Change
from concord.workflows.view.index.search_index import PAGE_ROWS
from concord.workflows.view.page import Page, Paging, Query
from concord.workflows.view.pages.forms import Form
from concord.workflows.view.viewer import Viewer


def differences(viewer: Viewer, query: Query) -> Page:
    """List how far people agree, and the differences that are not settled."""
    state = viewer.log.state()
    sentences = list(shared_sentences(viewer.opened.snapshot.collection, state.lines))
    rows = list(chain.from_iterable(map(open_differences, sentences)))
    # The last difference of the last page takes the page with it.
    page = min(query.number("page") or 0, max(0, len(rows) - 1) // PAGE_ROWS)
    with viewer.opened.index.reading() as index:
        labels = viewer.types(index, state)
    values = {
        "agreements": agreements(sentences),
        "rows": [
            (row, [(answer, who, changes(row, answer)) for answer, who in row.answers.items()])
            for row in rows[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
        ],
        "paging": Paging(page, len(rows), PAGE_ROWS),
        "labels": labels,
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


def settle(viewer: Viewer, form: Form) -> None:
    """Write that one of the answers is right."""
    changes = [Change.decode(value)._replace(settles=True) for value in form.fields.get("change", ())]
    viewer.log.correct(changes, seen=form.number("seen"), generation=form.number("generation"))
