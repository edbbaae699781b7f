"""Fitting a calibration to gold documents that the tagger was not trained on.

The benefit is measured by cross-validation over documents: every figure for a document comes from a fit without it.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Self

import numpy as np
import torch

from concord.models.confidence.calibration import (
    Calibration,
    EntityCalibration,
    Isotonic,
    Platt,
    Temperature,
    TokenCalibration,
    chosen_probability,
    logit,
)
from concord.models.data.outputs import known_numbers
from concord.models.data.sentence import Sentence
from concord.models.evaluation.reliability import brier_score
from concord.models.labels.spans import OUTSIDE, split_label
from concord.models.taggers.base import Tagger
from concord.models.training.fit_guarantee import LEAST

FOLDS = 10
TokenMethod = Literal["temperature", "isotonic"]
EntityMethod = Literal["isotonic", "platt"]
# Bounds for the logarithm of the temperature.
_LOG_TEMPERATURES = (-3.0, 3.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Predictions:
    """Uncalibrated predictions, one per row."""

    right: np.ndarray
    """Whether the prediction is exactly that of the gold data, shape ``(rows,)``, bool."""
    documents: np.ndarray
    """Index of the document, shape ``(rows,)``."""

    def part(self, where: np.ndarray) -> Self:
        """Return the rows where the mask, shape ``(rows,)``, is true."""
        return replace(self, **{column.name: getattr(self, column.name)[where] for column in fields(self)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Words(_Predictions):
    """A tagger's labels of N words."""

    distributions: np.ndarray
    """Label probabilities of the deciding stage, shape ``(N, L)``."""
    chosen: np.ndarray
    """Number of the predicted label, shape ``(N,)``."""
    gold: np.ndarray
    """Number of the gold label, shape ``(N,)``; 0 where the tagger does not know the label."""
    known: np.ndarray
    """Whether the tagger knows the gold label, shape ``(N,)``, bool."""

    def probabilities(self, calibration: TokenCalibration | None = None) -> np.ndarray:
        """Return the probability of each predicted label, shape ``(N,)``; not calibrated if None."""
        distributions, chosen = torch.from_numpy(self.distributions), torch.from_numpy(self.chosen)
        if calibration is None:
            return chosen_probability(distributions, chosen).double().numpy()
        return calibration.finish(chosen_probability(distributions, chosen, calibration.temperature)).double().numpy()


@dataclass(frozen=True, kw_only=True, slots=True)
class Entities(_Predictions):
    """The K entities that a tagger predicts; ``confidences`` has shape ``(K,)``, 0..1."""

    confidences: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """A tagger's predictions for gold documents."""

    words: Words
    entities: Entities
    counts: np.ndarray
    """Gold, predicted and correct entities of each document, or words under ``TOKENS``; shape ``(D, 3)``."""
    scores: Sequence[np.ndarray] = ()
    """As ``find_guarantee`` reads them; empty under ``TOKENS``."""
    candidates: Sequence[float] = ()
    """Scores of the spans that are not predicted, from ``LEAST`` on."""

    def of_documents(self, where: np.ndarray) -> "Observed":
        """Return the words and entities of the documents where the mask, shape ``(D,)``, is true."""
        words, entities = self.words, self.entities
        return replace(
            self, words=words.part(where[words.documents]), entities=entities.part(where[entities.documents])
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """The probabilities of predictions, as they are or calibrated; ``(N,)`` for words and ``(K,)`` for entities."""

    words: np.ndarray
    entities: np.ndarray

    def document_confidences(self, observed: Observed) -> np.ndarray:
        """Return the confidence in each document: the mean logarithm of its words' probabilities, ``(D,)``."""
        documents = observed.words.documents
        logs = np.log(np.maximum(self.words, 1e-12))
        sums = np.bincount(documents, weights=logs, minlength=len(observed.counts))
        return np.asarray(sums / np.maximum(1, np.bincount(documents, minlength=len(observed.counts))))


def observe(tagger: Tagger, documents: Sequence[Sequence[Sentence]], *, left_out: Collection[str] = ()) -> Observed:
    """Label gold documents, none of them empty, without the tagger's own calibration.

    Args:
        left_out: entity types of the tagger of which the gold labels say nothing; what it finds of them is left out,
            and so are its words, unless they are in a gold name.
    """
    table = tagger.tabulate(documents, keep="distributions", calibrated=False)
    predictions = table.predictions(tagger.vocabulary)
    numbers = {label: number for number, label in enumerate(tagger.vocabulary.labels)}
    gold: list[int | None] = []
    right: list[bool] = []
    said: list[bool] = []
    owners: list[int] = []
    confidences: list[float] = []
    found_right: list[bool] = []
    found_owners: list[int] = []
    counts = np.zeros((len(documents), 3), dtype=np.int64)
    scores: list[list[float]] = []
    candidates: list[float] = []
    shown = iter(table.find_spans(tagger.vocabulary, least=LEAST))
    for number, (document, predicted) in enumerate(zip(documents, predictions, strict=True)):
        scores.append([])
        for sentence, prediction in zip(document, predicted, strict=True):
            labels = sentence.labels or ()
            same = [left == right for left, right in zip(prediction.labels, labels, strict=True)]
            right += same
            gold += [numbers.get(label) for label in tagger.vocabulary.scheme.from_gold(labels)]
            owners += [number] * len(labels)
            kinds = (split_label(label)[1] if left_out else "" for label in prediction.labels)
            said += [left != OUTSIDE or kind not in left_out for left, kind in zip(labels, kinds, strict=True)]
            if not tagger.vocabulary.scheme.has_entities:
                counts[number] += (len(labels), len(labels), sum(same))
                continue
            gold_spans = set(tagger.vocabulary.scheme.scored_spans(labels))
            pairs = zip(prediction.spans, known_numbers(prediction.confidences), strict=True)
            kept = {span: value for span, value in pairs if span.label not in left_out}
            hits = [span in gold_spans for span in kept]
            found = next(shown)
            scores[-1] += [math.inf if span in kept else found.get(span, 0.0) for span in gold_spans]
            candidates += [found[span] for span in found.keys() - kept if span.label not in left_out]
            confidences += kept.values()
            found_right += hits
            found_owners += [number] * len(hits)
            counts[number] += (len(gold_spans), len(hits), sum(hits))
    distributions = table.distributions
    return Observed(
        words=Words(
            distributions=np.zeros((0, 1)) if distributions is None else distributions.double().numpy(),
            chosen=table.label.numpy(),
            gold=np.asarray([label or 0 for label in gold], dtype=np.int64),
            known=np.asarray([label is not None for label in gold], dtype=bool),
            right=np.asarray(right, dtype=bool),
            documents=np.asarray(owners, dtype=np.int64),
        ).part(np.asarray(said, dtype=bool)),
        entities=Entities(
            confidences=np.asarray(confidences, dtype=np.float64),
            right=np.asarray(found_right, dtype=bool),
            documents=np.asarray(found_owners, dtype=np.int64),
        ),
        counts=counts,
        scores=list(map(np.asarray, scores)) if tagger.vocabulary.scheme.has_entities else (),
        candidates=candidates,
    )


def raw(observed: Observed) -> Calibrated:
    """Return the uncalibrated probabilities."""
    return Calibrated(words=observed.words.probabilities(), entities=observed.entities.confidences)


def apply(calibration: Calibration, observed: Observed) -> Calibrated:
    """Return the calibrated probabilities."""
    entities = observed.entities.confidences
    return Calibrated(
        words=observed.words.probabilities(calibration.tokens),
        entities=entities if calibration.entities is None else calibration.entities.apply(entities),
    )


def fit(observed: Observed, *, tokens: TokenMethod, entities: EntityMethod | None) -> Calibration:
    """Fit a calibration to all documents; that of entities is None if the tagger found none."""
    has_entities = entities is not None and len(observed.entities.right) > 0
    return Calibration(
        tokens=TOKEN_FITS[tokens](observed.words),
        entities=ENTITY_FITS[entities](observed.entities) if entities is not None and has_entities else None,
    )


def cross_validate(observed: Observed, *, tokens: TokenMethod, entities: EntityMethod | None) -> Calibrated:
    """Return the probabilities of each document, calibrated by a fit to the documents of the other folds."""
    documents = len(observed.counts)
    folds = np.random.default_rng(1).permutation(documents) % min(FOLDS, documents)
    words, spans = np.zeros(len(observed.words.right)), np.zeros(len(observed.entities.right))
    for fold in range(folds.max() + 1):
        held_out = folds == fold
        calibration = fit(observed.of_documents(~held_out), tokens=tokens, entities=entities)
        calibrated = apply(calibration, observed.of_documents(held_out))
        words[held_out[observed.words.documents]] = calibrated.words
        spans[held_out[observed.entities.documents]] = calibrated.entities
    return Calibrated(words=words, entities=spans)


def choose_tokens(observed: Observed) -> TokenMethod:
    """Return the method with the lowest cross-validated Brier score."""

    def score(method: TokenMethod) -> float:
        return brier_score(cross_validate(observed, tokens=method, entities=None).words, observed.words.right)

    return min(TOKEN_FITS, key=score)


def choose_entities(observed: Observed) -> EntityMethod:
    """Return the method with the lowest cross-validated Brier score."""
    only = replace(observed, words=observed.words.part(np.zeros(len(observed.words.right), dtype=bool)))
    right = observed.entities.right

    def score(method: EntityMethod) -> float:
        return brier_score(cross_validate(only, tokens="temperature", entities=method).entities, right)

    return min(ENTITY_FITS, key=score)


def fit_temperature(words: Words) -> Temperature:
    """Minimize the negative log-likelihood of the gold labels that the tagger knows."""
    from scipy.optimize import minimize_scalar

    known = words.part(words.known)
    golden = replace(known, chosen=known.gold)

    def loss(log_temperature: float) -> float:
        probabilities = golden.probabilities(Temperature(temperature=float(np.exp(log_temperature))))
        return float(-np.log(np.maximum(probabilities, 1e-12)).sum())

    minimum = minimize_scalar(loss, bounds=_LOG_TEMPERATURES, method="bounded")
    return Temperature(temperature=float(np.exp(minimum.x)))


def fit_platt(entities: Entities) -> Platt:
    """Fit a logistic regression on the logit, with a positive slope and the smoothed targets of Platt (1999)."""
    from scipy.optimize import minimize

    logits, right = logit(entities.confidences), entities.right
    hits = int(right.sum())
    targets = np.where(right, (hits + 1) / (hits + 2), 1 / (len(right) - hits + 2))

    def loss(weights: np.ndarray) -> float:
        scores = np.exp(weights[0]) * logits + weights[1]
        return float((np.logaddexp(0, scores) - targets * scores).sum())

    slope, intercept = minimize(loss, np.zeros(2), method="BFGS").x
    return Platt(slope=float(np.exp(slope)), intercept=float(intercept))


def fit_isotonic(probabilities: np.ndarray, right: np.ndarray) -> Isotonic:
    """Fit an increasing line with one point per level of an isotonic regression.

    Each point is at the mean of the level's probabilities (centred isotonic regression; Oron and Flournoy, 2017). The
    line increases between levels, so that the order of predictions by confidence is unchanged, and has no jumps, at
    which a difference in the last bit would be visible.
    """
    from sklearn.isotonic import IsotonicRegression

    levels = IsotonicRegression(y_min=0.0, y_max=1.0).fit_transform(probabilities, right.astype(np.float64))
    outputs, members = np.unique(levels, return_inverse=True)
    inputs = np.bincount(members, weights=probabilities) / np.bincount(members)
    return Isotonic(inputs=inputs.tolist(), outputs=np.clip(outputs, 0.0, 1.0).tolist())


TOKEN_FITS: Mapping[TokenMethod, Callable[[Words], TokenCalibration]] = {
    "temperature": fit_temperature,
    "isotonic": lambda words: fit_isotonic(words.probabilities(), words.right),
}
ENTITY_FITS: Mapping[EntityMethod, Callable[[Entities], EntityCalibration]] = {
    "isotonic": lambda entities: fit_isotonic(entities.confidences, entities.right),
    "platt": fit_platt,
}
