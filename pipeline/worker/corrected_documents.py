"""Put people's corrections into annotated documents, before their rows are written."""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple, TypeVar

from concord.models.data.outputs import Prediction, Source
from concord.models.labels import OUTSIDE, Span
from concord.pipeline.corrections.correction import Correction, Mark, group_by_document
from concord.pipeline.corrections.fitting import Offsets, fit_corrections
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, join_pieces

logger = logging.getLogger(__name__)

OutcomeT = TypeVar("OutcomeT", AnnotatedDocument, DeadLetter, AnnotatedDocument | DeadLetter)


def correct_documents(outcomes: list[OutcomeT], corrections: Sequence[Correction]) -> list[OutcomeT]:
    """Correct the documents among some outcomes; without corrections the outcomes are returned as they are.

    A correction that does not fit leaves the document as it is, with a warning.

    Args:
        corrections: in the order of the log.
    """
    if not corrections:
        return outcomes
    by_document = group_by_document(corrections)
    return [
        _correct_document(outcome, by_document[outcome.parsed.document.doc_id])
        if isinstance(outcome, AnnotatedDocument) and outcome.parsed.document.doc_id in by_document
        else outcome
        for outcome in outcomes
    ]


def _correct_document(annotated: AnnotatedDocument, corrections: Sequence[Correction]) -> AnnotatedDocument:
    """Return a document with its corrections, given in the order of the log.

    An entity that overlaps a mark of a correction gives way, and its words are outside of entities. All words of such
    an entity or mark are certain: their labels have probability 1, as have the corrected entities, and are a person's
    rather than those of stage two. A candidate that overlaps a mark gives way, too.
    """
    parsed = annotated.parsed
    joined = join_pieces(parsed.sentences, attrgetter("continues"))
    offsets = ([word[:2] for piece in pieces for word in piece.words] for pieces in joined)
    fit = fit_corrections(corrections, parsed.document.text, offsets)
    for misfit in fit.misfits:
        logger.warning(
            "document %r: a correction of %s no longer fits and is left out: %s; see concord corrections list",
            parsed.document.doc_id,
            misfit.correction.who,
            misfit.reason,
        )
    if not fit.corrections:
        return annotated
    words = [word[:2] for sentence in parsed.sentences for word in sentence.words]
    corrected = _corrected(annotated.predictions, words, fit.corrections)
    in_fp32 = annotated.in_fp32 and _corrected(annotated.in_fp32, words, fit.corrections)
    new = (correction.new for correction in fit.corrections if correction.new is not None)
    canonical = {(mark.start, mark.end): mark.canonical for mark in new if mark.canonical is not None}
    return replace(annotated, predictions=corrected, in_fp32=in_fp32, canonical=canonical)


class _Entity(NamedTuple):
    """An entity by its words, numbered through the document, half-open."""

    start: int
    end: int
    label: str
    confidence: float | None
    source: Source


def _corrected(
    predictions: Sequence[Prediction], words: Sequence[Offsets], corrections: Sequence[Correction]
) -> tuple[Prediction, ...]:
    """Return predictions with corrections that fit, given the offsets of all words of the document."""
    lengths = [len(prediction.labels) for prediction in predictions]
    firsts = [*accumulate(lengths, initial=0)]
    labels = [label for prediction in predictions for label in prediction.labels]
    probabilities = [value for prediction in predictions for value in prediction.probabilities]
    refined = [value for prediction in predictions for value in prediction.refined]
    marked = [_word_range(mark, words) for correction in corrections for mark in correction.marks]
    entities: list[_Entity] = []
    replaced = list(marked)
    for entity in _entities(predictions, firsts):
        gives_way = any(entity.start < mark.stop and mark.start < entity.end for mark in marked)
        replaced += [range(entity.start, entity.end)] if gives_way and entity.source != "candidate" else []
        entities += [] if gives_way else [entity]
    for place in (place for span in replaced for place in span):
        labels[place], probabilities[place], refined[place] = OUTSIDE, 1.0, False
    for mark in (correction.new for correction in corrections if correction.new is not None):
        here = _word_range(mark, words)
        entities.append(_Entity(here.start, here.stop, mark.type, 1.0, "corrected"))
        for place in here:
            labels[place] = f"{'B' if place == here.start else 'I'}-{mark.type}"
    entities.sort(key=attrgetter("start"))
    starts = [entity.start for entity in entities]
    parts = []
    for prediction, first, length in zip(predictions, firsts, lengths, strict=False):
        end = first + length
        own_entities = entities[bisect_left(starts, first) : bisect_left(starts, end)]
        parts.append(
            replace(
                prediction,
                labels=tuple(labels[first:end]),
                probabilities=tuple(probabilities[first:end]),
                refined=tuple(refined[first:end]),
                spans=tuple(Span(entity.start - first, entity.end - first, entity.label) for entity in own_entities),
                confidences=tuple(entity.confidence for entity in own_entities),
                sources=tuple(entity.source for entity in own_entities),
            )
        )
    return tuple(parts)


def _entities(predictions: Sequence[Prediction], firsts: Sequence[int]) -> Iterator[_Entity]:
    for prediction, first in zip(predictions, firsts, strict=False):
        for span, confidence, source in prediction.entities:
            yield _Entity(first + span.start, first + span.end, span.label, confidence, source)


def _word_range(mark: Mark, words: Sequence[Offsets]) -> range:
    """Return the numbers of the words that a mark covers, which begins and ends with a word."""
    start = bisect_left(words, mark.start, key=lambda word: word[0])
    return range(start, bisect_right(words, mark.end, key=lambda word: word[1]))
