"""Correct one, fix the document: what a two-stage tagger finds differently once some of its labels are certain."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from concord.models.data.sentence import Sentence
from concord.models.options import PredictOptions
from concord.models.outputs import Prediction
from concord.models.terms.term_matcher import TermMatcher
from concord.pipeline.corrections.correction import Correction, Mark
from concord.pipeline.corrections.fitting import fit_corrections, paired_marks
from concord.pipeline.output.document_rows import (
    CollectedDocument,
    sentence_offsets,
    tagger_input,
    whole_sentences,
)

if TYPE_CHECKING:
    # Pages read a document's sentences before anyone asks the tagger, and torch takes seconds to import.
    from concord.models.tagger import Tagger


def find_moves(
    tagger: "Tagger",
    document: CollectedDocument,
    text: str,
    corrections: Sequence[Correction],
    *,
    options: PredictOptions,
    terms: TermMatcher | None = None,
) -> list[tuple[Mark | None, Mark | None]]:
    """Return the entities that would move elsewhere in a document if corrections were certain: old and new mark.

    The tagger labels the document as it is and with the certain labels. Nothing is written: ``Correction.of`` makes a
    correction of each move that a person accepts. None move with a tagger of one stage, and none that corrections
    overlap.

    Args:
        text: the raw text of the document.
        corrections: of the document, in the order of the log; those that do not fit are left out.
        terms: the list of terms that the collection was labelled with.
    """
    offsets = list(sentence_offsets(document))
    fitted = fit_corrections(corrections, text, offsets).corrections
    if not fitted or tagger.threshold is None:
        return []
    words = list(chain.from_iterable(offsets))
    sentences = [sentence if terms is None else terms.mark(sentence) for sentence in tagged_sentences(document)]
    labels = certain_labels(fitted, words)
    before, after = (
        _marks(tagger.predict_documents([sentences], options, certain=[certain])[0], words, text)
        for certain in ({}, labels)
    )
    corrected = [mark for correction in fitted for mark in correction.marks]
    return [
        (old, new)
        for old, new in paired_marks(before, after)
        if not any(mark.overlaps(own) for mark in (old, new) if mark is not None for own in corrected)
    ]


def certain_labels(corrections: Sequence[Correction], words: Sequence[tuple[int, int]]) -> Mapping[int, str]:
    """Return the labels in BIO2 of the words that fitted corrections decide, by number, given all words' offsets."""
    labels: dict[int, str] = {}
    for correction in corrections:
        for mark in correction.marks:
            labels |= dict.fromkeys(_words_of(mark, words), "O")
    # One correction may give up words that another one labels.
    for correction in corrections:
        if correction.new is not None:
            first, *others = _words_of(correction.new, words)
            labels |= {first: f"B-{correction.new.type}"} | dict.fromkeys(others, f"I-{correction.new.type}")
    return labels


def _words_of(mark: Mark, words: Sequence[tuple[int, int]]) -> list[int]:
    return [number for number, (start, end) in enumerate(words) if mark.start <= start and end <= mark.end]


def tagged_sentences(document: CollectedDocument) -> list[Sentence]:
    """Return what a tagger reads; the pieces of an over-long sentence are one sentence, each with its own root."""
    return [tagger_input([piece.tokens for piece in pieces]) for pieces in whole_sentences(document)]


def _marks(predictions: Sequence[Prediction], words: Sequence[tuple[int, int]], text: str) -> list[Mark]:
    """Return the entities of predictions, in order."""
    marks = []
    first = 0
    for prediction in predictions:
        for span in prediction.spans:
            start, end = words[first + span.start][0], words[first + span.end - 1][1]
            marks.append(Mark(start=start, end=end, type=span.label, text=text[start:end]))
        first += len(prediction.labels)
    return marks
