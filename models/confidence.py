"""Calibration: maps a trained tagger's probabilities to observed frequencies.

A calibration changes no label, margin or uncertainty: only the probability of a word's label and the confidence of an
entity. ``concord.models.training.fit_calibration`` fits it to unseen data; the token table of a call applies it.

Candidates: spans that a tagger may have missed, each with a score from the label probabilities of its words.

The score of a span is the lowest probability of the labels that its words need and, under BIO, of the next word not
continuing it; the span's own probability is at most that. On EWT, a recall of 95 % takes a third as many candidates as
with the product of these probabilities. Scores are not calibrated: a guarantee (``Guarantee``) reads only their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from concord.models.config import Config
from concord.models.data.outputs import Prediction, Source
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import Span

# A span's probability may underflow; its logit must stay finite.
_LEAST = 1e-9


class Temperature(Config):
    """A word's label distribution to the power of ``1 / temperature``, normalised to sum to 1 (Guo et al., 2017).

    ``finish`` of ``chosen_probability`` at its temperature is the calibrated probability of labels.
    """

    method: Literal["temperature"] = "temperature"
    temperature: float = Field(gt=0)
    """A value above 1 makes a tagger less certain."""

    def finish(self, chosen: Tensor) -> Tensor:
        """Return what ``chosen_probability`` has calibrated already."""
        return chosen


class Platt(Config):
    """``sigmoid(slope * logit(p) + intercept)`` (Platt, 1999)."""

    method: Literal["platt"] = "platt"
    slope: float = Field(gt=0)
    intercept: float

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Map probabilities of any shape."""
        return np.asarray(1 / (1 + np.exp(-self.slope * logit(values) - self.intercept)))


class Isotonic(Config):
    """A piecewise linear function that never falls."""

    method: Literal["isotonic"] = "isotonic"
    temperature: ClassVar[float] = 1.0
    inputs: list[float] = Field(min_length=1)
    """Rising, 0..1."""
    outputs: list[float]
    """One per input, never falling, 0..1. Linear between inputs, constant beyond them."""

    @model_validator(mode="after")
    def _is_monotonic(self) -> Self:
        rises = all(left < right for left, right in pairwise(self.inputs))
        never_falls = all(left <= right for left, right in pairwise([0.0, *self.outputs, 1.0]))
        if len(self.inputs) != len(self.outputs) or not (rises and never_falls):
            raise ValueError("expected as many inputs, rising, as outputs, never falling within 0..1")
        return self

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Map probabilities of any shape."""
        return np.asarray(np.interp(values, self.inputs, self.outputs))

    def finish(self, chosen: Tensor) -> Tensor:
        """Map the probabilities of chosen labels, on the CPU."""
        return torch.from_numpy(self.apply(chosen.double().numpy())).to(chosen.dtype)


TokenCalibration = Annotated[Temperature | Isotonic, Field(discriminator="method")]
EntityCalibration = Annotated[Platt | Isotonic, Field(discriminator="method")]


class Guarantee(Config):
    """Which spans to show besides the entities, so that few names are missed (``fit_guarantee``)."""

    recall: float = Field(gt=0, lt=1)
    """The least expected share of a document's names that are shown, where documents are like the gold ones."""
    threshold: float = Field(gt=0, le=1)
    """The least score of a span that is shown (``concord.models.confidence``)."""
    documents: int
    """Gold documents that it was found on."""


class Calibration(Config):
    """The calibration of a tagger's words and of its entities."""

    format_version: Literal[1] = 1
    tokens: TokenCalibration
    entities: EntityCalibration | None = None
    """None leaves the probabilities of entities unchanged, as for a tagger of word labels, which has no entities."""
    guarantee: Guarantee | None = None
    """Does not depend on the rest, since it reads probabilities that are not calibrated."""
    fitted: dict[str, Any] = Field(default_factory=dict)
    """The data it was fitted to and the quality of the fit; information only."""

    def summary(self, *, candidates: bool) -> str:
        """Return the names of the methods, and of candidates the recall, for the metadata of tables."""
        entities = "none" if self.entities is None else self.entities.method
        shown = f", recall with candidates: {self.guarantee.recall:g}" if candidates and self.guarantee else ""
        return f"tokens: {self.tokens.method}, entities: {entities}{shown}"

    def entity_confidences(self, confidences: list[float]) -> list[float]:
        """Return the calibrated probabilities of entities."""
        if self.entities is None or not confidences:
            return confidences
        calibrated: list[float] = self.entities.apply(np.asarray(confidences)).tolist()
        return calibrated


def chosen_probability(probabilities: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """Look up labels ``(...)``, int64, in probabilities ``(..., L)`` and apply a temperature; shape ``(...)``."""
    chosen = probabilities.gather(-1, labels[..., None])[..., 0]
    if temperature == 1.0:
        return chosen
    # Relative to the largest, whose power stays 1: small powers may underflow, but not all of them.
    largest = probabilities.amax(dim=-1).clamp(min=_LEAST)
    powers = (probabilities / largest[..., None]).pow(1 / temperature).sum(dim=-1)
    return (chosen / largest).pow(1 / temperature) / powers.clamp(min=1.0)


def logit(values: np.ndarray) -> np.ndarray:
    """Return the logits of probabilities; finite even at 0 and 1."""
    inside = np.clip(values, _LEAST, 1 - _LEAST)
    return np.asarray(np.log(inside) - np.log1p(-inside))


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
