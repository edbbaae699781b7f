"""Put people's corrections into annotated documents, before their rows are written."""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from concord.models.data.outputs import Prediction, Source
from concord.models.labels import OUTSIDE, Span
from concord.pipeline.corrections.correction import Correction, Mark, group_by_document
from concord.pipeline.corrections.fitting import Offsets, fit_corrections
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, join_pieces
from concord.pipeline.worker.stages import cut_prediction, join_predictions

logger = logging.getLogger(__name__)


def correct_documents(
    outcomes: Sequence[AnnotatedDocument | DeadLetter], corrections: Sequence[Correction]
) -> list[AnnotatedDocument | DeadLetter]:
    """Correct the documents among some outcomes.

    A correction that does not fit leaves the document as it is, with a warning.

    Args:
        corrections: in the order of the log.
    """
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


def _corrected(
    predictions: Sequence[Prediction], words: Sequence[Offsets], corrections: Sequence[Correction]
) -> tuple[Prediction, ...]:
    """Return predictions with corrections that fit, given the offsets of all words of the document."""
    joined = join_predictions(predictions)
    labels, probabilities, refined = list(joined.labels), list(joined.probabilities), list(joined.refined)
    marked = [_word_range(mark, words) for correction in corrections for mark in correction.marks]
    entities: list[tuple[Span, float | None, Source]] = []
    replaced = list(marked)
    for span, confidence, source in joined.entities:
        if not any(span.start < mark.stop and mark.start < span.end for mark in marked):
            entities.append((span, confidence, source))
        elif source != "candidate":
            replaced.append(range(span.start, span.end))
    for place in chain.from_iterable(replaced):
        labels[place], probabilities[place], refined[place] = OUTSIDE, 1.0, False
    for mark in (correction.new for correction in corrections if correction.new is not None):
        here = _word_range(mark, words)
        entities.append((Span(here.start, here.stop, mark.type), 1.0, "corrected"))
        for place in here:
            labels[place] = f"{'B' if place == here.start else 'I'}-{mark.type}"
    entities.sort(key=lambda entity: entity[0].start)
    corrected = replace(
        joined,
        labels=tuple(labels),
        probabilities=tuple(probabilities),
        refined=tuple(refined),
        spans=tuple(span for span, _, _ in entities),
        confidences=tuple(confidence for _, confidence, _ in entities),
        sources=tuple(source for _, _, source in entities),
    )
    return tuple(cut_prediction(corrected, [len(prediction.labels) for prediction in predictions]))


def _word_range(mark: Mark, words: Sequence[Offsets]) -> range:
    """Return the numbers of the words that a mark covers, which begins and ends with a word."""
    start = bisect_left(words, mark.start, key=lambda word: word[0])
    return range(start, bisect_right(words, mark.end, key=lambda word: word[1]))
