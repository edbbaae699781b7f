"""Candidates: spans that a tagger may have missed, each with a score from the label probabilities of its words.

The score of a span is the lowest probability of the labels that its words need and, under BIO, of the next word not
continuing it; the span's own probability is at most that. On EWT, a recall of 95 % takes a third as many candidates as
with the product of these probabilities. Scores are not calibrated: a guarantee (``Guarantee``) reads only their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from concord.models.data.outputs import Prediction, Source
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels.spans import Span

_LETTERS = {"BIO": "BBII", "BIOES": "SBEI"}
"""The prefixes of the label that ends a span and of the one that goes on, at its first word and at a later one."""
_LONGEST = 10
"""Words of a candidate: a tagger that is unsure of everything would have one for every two words of a sentence."""


def find_spans(
    probabilities: NDArray[np.float64], lengths: Sequence[int], vocabulary: Vocabulary, *, least: float
) -> list[dict[Span, float]]:
    """Return for each sentence its spans that score ``least`` or more, in order, with their scores.

    Word labels have no spans.

    Args:
        probabilities: of the labels of all words, shape ``(N, L)``, 0..1.
        lengths: words of each sentence; they add up to N.
        least: above 0, 1 or less.
    """
    found: list[dict[Span, float]] = [{} for _ in lengths]
    scheme, words = vocabulary.scheme.spans, len(probabilities)
    if scheme is None:
        return found
    firsts = np.cumsum([0, *lengths])
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    is_last = np.isin(np.arange(1, words + 1), firsts)
    for kind in vocabulary.entity_types:
        columns = [probabilities[:, vocabulary.labels.index(f"{letter}-{kind}")] for letter in _LETTERS[scheme]]
        ends = np.ones(words)
        if scheme == "BIO":
            ends[:-1] -= np.where(is_last[:-1], 0.0, columns[3][1:])
        starts, running, length = np.arange(words), np.ones(words), 1
        while len(starts) and length <= _LONGEST:
            end = starts + length
            close, go_on = columns[:2] if length == 1 else columns[2:]
            closed = np.minimum.reduce([running, close[end - 1], ends[end - 1]])
            running = np.minimum(running, go_on[end - 1])
            for place in np.flatnonzero(closed >= least):
                number = sentence[starts[place]]
                start = int(starts[place] - firsts[number])
                found[number][Span(start, start + length, kind)] = float(closed[place])
            more = (running >= least) & ~is_last[end - 1]
            starts, running, length = starts[more], running[more], length + 1
    return [dict(sorted(spans.items())) for spans in found]


def with_candidates(prediction: Prediction, found: Mapping[Span, float]) -> Prediction:
    """Return the prediction for a sentence with the spans found in it that are not predicted, as candidates."""
    others = {span: score for span, score in found.items() if span not in prediction.spans}
    spans, confidences = (*prediction.spans, *others), (*prediction.confidences, *others.values())
    sources: tuple[Source, ...] = tuple("candidate" if span in others else "model" for span in spans)
    return replace(prediction, spans=spans, confidences=confidences, sources=sources)
