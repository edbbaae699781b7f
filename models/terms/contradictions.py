"""Matches of a list of terms that a tagger's labels contradict, and what becomes of their words."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from concord.models.data.batch import Batch
from concord.models.data.outputs import Draft
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels.spans import Span, decode_spans, encode_spans

OVERRULED_BELOW = 0.9
"""A tagger of one stage keeps its labels where it gives each of them at least this probability."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contradiction:
    """A match that is no entity of the labels."""

    sentence: int
    """Number of the sentence in its batch."""
    match: Span
    labels: tuple[int, ...]
    """Numbers of the labels that the match asks for, one per word of it."""
    words: tuple[int, ...]
    """The words of the match and of the entities that overlap it."""


def find_contradictions(batch: Batch, labels: Tensor, vocabulary: Vocabulary) -> list[Contradiction]:
    """Return the matches of a batch's sentences (``Sentence.terms``) that labels, ``(B, T)``, int64, contradict."""
    rows = [row for row, sentence in enumerate(batch.sentences) if sentence.terms is not None]
    return [found for row in rows for found in _in_sentence(batch, row, labels[row].tolist(), vocabulary)]


def leave_matches_to_stage_two(draft: Draft, contradictions: Sequence[Contradiction]) -> Draft:
    """Return a draft in which contradicted matches have the labels of the list and infinite uncertainty.

    So do, with their own labels, the other words of an entity that overlaps such a match.
    """
    if not contradictions:
        return draft
    probabilities, uncertainty = draft.probabilities.clone(), draft.uncertainty.clone()
    for found in contradictions:
        uncertainty[found.sentence, list(found.words)] = math.inf
        match = slice(found.match.start, found.match.end)
        numbers = torch.tensor(found.labels, device=probabilities.device)
        probabilities[found.sentence, match] = torch.nn.functional.one_hot(
            numbers, num_classes=probabilities.shape[-1]
        ).to(probabilities.dtype)
    return replace(draft, probabilities=probabilities, uncertainty=uncertainty)


def overrule_unsure(labels: Tensor, marginals: Tensor, contradictions: Sequence[Contradiction]) -> Tensor:
    """Return the labels of a tagger of one stage with those of the list where it is not sure of its own.

    Args:
        labels: shape ``(B, T)``, int64; those of an overlapping entity go with those of the match.
        marginals: shape ``(B, T, L)``.
    """
    overruled = [found for found in contradictions if _least_marginal(found, labels, marginals) < OVERRULED_BELOW]
    if not overruled:
        return labels
    labels = labels.clone()
    for found in overruled:
        labels[found.sentence, list(found.words)] = 0  # O
    for found in overruled:
        labels[found.sentence, found.match.start : found.match.end] = torch.tensor(found.labels, device=labels.device)
    return labels


def _in_sentence(batch: Batch, row: int, numbers: list[int], vocabulary: Vocabulary) -> Iterator[Contradiction]:
    sentence, scheme = batch.sentences[row], vocabulary.scheme
    if sentence.terms is None or scheme.spans is None:
        return
    length = len(sentence.words)
    entities = scheme.entities([vocabulary.labels[number] for number in numbers[:length]])
    for match in decode_spans(sentence.terms, "BIO"):
        if match in entities:
            continue
        words = set(range(match.start, match.end))
        for entity in entities:
            if entity.start < match.end and match.start < entity.end:
                words.update(range(entity.start, entity.end))
        names = encode_spans([match], length, scheme.spans)[match.start : match.end]
        yield Contradiction(
            sentence=row,
            match=match,
            labels=tuple(vocabulary.labels.index(name) for name in names),
            words=tuple(sorted(words)),
        )


def _least_marginal(found: Contradiction, labels: Tensor, marginals: Tensor) -> float:
    """Return the least probability that a tagger gives its own label of one of the words."""
    words = list(found.words)
    chosen = marginals[found.sentence, words].gather(-1, labels[found.sentence, words, None])
    return float(chosen.min())
