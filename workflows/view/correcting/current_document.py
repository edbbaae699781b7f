"""A document with its corrections: the entities of the tables, and what people have said about them since."""

import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.corrections.correction import Correction, Mark, corrections_digest
from concord.pipeline.corrections.fitting import (
    CORRECTED,
    FittedCorrections,
    Offsets,
    Place,
    corrected_marks,
    fit_corrections,
    marks_of_tagger,
)
from concord.pipeline.output.collection import DocumentRow
from concord.pipeline.output.tables import normalize_name
from concord.workflows.view.index.document import DocumentPage, read_row
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.index.queries import IndexedDocument, IndexedEntity


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

    def sentence_of(self, start: int) -> int:
        """Return the number of the sentence in which a place starts."""
        return max(bisect_right(self.starts, start) - 1, 0)

    def fault(self, corrections: Sequence[Correction]) -> str:
        """Return why the first of some new corrections that does not fit does not; empty if all do."""
        misfits = fit_corrections(corrections, self.text, self.sentences).misfits
        return misfits[0].reason if misfits else ""

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


def read_current(
    opened: OpenedCollection,
    index: sqlite3.Connection,
    document: IndexedDocument,
    *,
    corrections: Sequence[Correction],
    lines: Sequence[Correction],
    near: Offsets | None = None,
) -> CurrentDocument:
    """Read a document of the index with its corrections.

    Args:
        corrections: of the document, in the order of the log, without those that are undone.
        lines: the same with those that are undone.
        near: reads only the words and entities of the sentences that these offsets touch, which is fast in a document
            of megabytes. Corrections of other sentences do not fit then.

    Raises:
        UnavailableError: when the input no longer has its text.
        IntegrityError: when the part is gone or damaged, or the index is not up to date yet.
    """
    report, row = read_row(opened, index, document)
    text = opened.text(row)
    collection = opened.snapshot.collection
    first, columns = document.sentence_row, ["start_char", "n_tokens", "continues"]
    sentence_rows = collection.read_rows(report, "sentences", columns, start=first, stop=first + row.n_sentences)
    starts = sentence_rows["start_char"].to_pylist()
    first, stop = (0, row.n_sentences) if near is None else _touched(starts, sentence_rows["continues"], near)
    columns = ["start_char", "end_char"]
    before, count = (pc.sum(sentence_rows["n_tokens"][slice(*part)]).as_py() or 0 for part in ((first,), (first, stop)))
    start = document.token_row + before
    words = collection.read_rows(report, "tokens", columns, start=start, stop=start + count)
    offsets = list(zip(*(words[name].to_pylist() for name in columns), strict=True))
    sentences = list(_sentences(sentence_rows[first:stop], offsets))
    entities = index.execute(
        "SELECT start, end, label, origin FROM entities WHERE document = ? AND end > ? AND start < ? ORDER BY number",
        (document.id, starts[first] if first else 0, starts[stop] if stop < len(starts) else len(text)),
    )
    marks = [(_mark(text, *values), origin) for *values, origin in entities]
    digest = collection.plan.corrected.get(row.doc_id)
    is_changed = digest is not None and digest != corrections_digest(corrections)
    fit = fit_corrections(corrections, text, sentences)
    tagged = marks_of_tagger(marks, lines, row.text_sha256) if is_changed else [mark for mark, _ in marks]
    return CurrentDocument(
        row=row,
        text=text,
        corrections=corrections,
        sentences=sentences,
        starts=starts,
        fit=fit,
        marks=corrected_marks(tagged, fit.corrections),
    )


def _touched(starts: Sequence[int], continues: pa.ChunkedArray, near: Offsets) -> Offsets:
    """Return the numbers of the sentences that some offsets touch, half-open, with all pieces of over-long ones."""
    first, stop = max(bisect_right(starts, near[0]) - 1, 0), max(bisect_left(starts, near[1]), 1)
    while first and continues[first].as_py():
        first -= 1
    while stop < len(starts) and continues[stop].as_py():
        stop += 1
    return first, min(stop, len(starts))


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


def _sentences(rows: pa.Table, words: Sequence[Offsets]) -> Iterator[list[Offsets]]:
    """Yield the offsets of the words of each sentence that has words."""
    offsets: list[Offsets] = []
    taken = 0
    for count, continues in zip(rows["n_tokens"].to_pylist(), rows["continues"].to_pylist(), strict=True):
        if offsets and not continues:
            yield offsets
            offsets = []
        offsets = [*offsets, *words[taken : taken + count]]
        taken += count
    if offsets:
        yield offsets


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
