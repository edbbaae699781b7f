"""What is fitted to gold documents that a tagger was not trained on: threshold, calibration, guarantee of recall.

The uncertainty threshold is the best of a sweep (Ye et al., 2021, figure 6). The benefit of a calibration is measured
by cross-validation over documents: every figure for a document comes from a fit without it.

The guarantee says which spans must be shown besides the entities, so that few names of a document are missed.

Conformal risk control (Angelopoulos, Bates, Fisch, Lei and Schuster, 2022, "Conformal Risk Control"): the risk of a
document is the share of its gold entities that are neither predicted nor shown. It is at most 1, and falls as the
threshold falls. With the highest threshold at which the risks of n documents satisfy (sum + 1) / (n + 1) <= 1 - recall,
the expected risk of the next document is at most 1 - recall, whatever the tagger, if the n + 1 are exchangeable.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Literal, Self

import numpy as np
import torch

from concord.models.confidence import (
    Calibration,
    EntityCalibration,
    Guarantee,
    Isotonic,
    Platt,
    Temperature,
    TokenCalibration,
    chosen_probability,
    logit,
)
from concord.models.data.outputs import known_numbers
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.evaluation.metrics import brier_score, gold_sequences, span_scores
from concord.models.labels import OUTSIDE, split_label
from concord.models.taggers.base import Tagger
from concord.models.taggers.token_table import TokenTable

STEP = 0.05
REFINE_ALL = -1.0


def threshold_grid(labels: int) -> tuple[float, ...]:
    """Return the thresholds to try: all refined, 0 to ln L in steps of 0.05 nats, none refined."""
    most = math.log(labels)
    steps = [round(STEP * number, 2) for number in range(int(most / STEP) + 1)]
    return (REFINE_ALL, *steps, math.ceil(most / STEP + 1) * STEP)


def sweep_threshold(
    table: TokenTable, documents: Sequence[Sequence[Sentence]], vocabulary: Vocabulary
) -> dict[float, float]:
    """Return the score at every threshold of the grid, in nats, from one pass in which stage two refined every word.

    It is the strict F1 of spans, or the accuracy of token labels, in percent.
    What stage two predicts for a word does not depend on the threshold, so one pass is enough. The table is that of
    ``tabulate(documents, threshold=REFINE_ALL)``.
    """
    gold = gold_sequences(documents)

    def span_f1(labels: torch.Tensor) -> float:
        return span_scores(gold, label_sequences(labels, documents, vocabulary))["all"].f1

    score = span_f1 if vocabulary.scheme.has_entities else _accuracy(documents, vocabulary)
    grid = threshold_grid(len(vocabulary.labels))
    return {threshold: score(labels_at(table, threshold)) for threshold in grid}


def best_threshold(curves: Sequence[Mapping[float, float]]) -> float:
    """Return the threshold of the best mean score; ties go to the largest one, which refines the fewest words.

    Args:
        curves: of each corpus, as ``sweep_threshold`` returns them.
    """
    return max(curves[0], key=lambda threshold: (sum(curve[threshold] for curve in curves) / len(curves), threshold))


def labels_at(table: TokenTable, threshold: float) -> torch.Tensor:
    """Return the number of each word's label: stage two's if the draft's uncertainty is above the threshold."""
    return torch.where(table.uncertainty > threshold, table.label, table.draft)


def label_sequences(
    labels: torch.Tensor, documents: Sequence[Sequence[Sentence]], vocabulary: Vocabulary
) -> list[tuple[str, ...]]:
    """Turn a column of a token table into one label sequence per sentence, in the notation of gold labels."""
    names = (vocabulary.labels[number] for number in labels.tolist())
    lengths = [len(sentence.words) for document in documents for sentence in document]
    return [vocabulary.scheme.decode(list(islice(names, length)))[0] for length in lengths]


def _accuracy(documents: Sequence[Sequence[Sentence]], vocabulary: Vocabulary) -> Callable[[torch.Tensor], float]:
    # Compares numbers: the grid grows with the number of labels, and comparing text takes seconds for a thousand.
    numbers = {label: number for number, label in enumerate(vocabulary.labels)}
    gold = torch.tensor(
        [numbers.get(label, -1) for document in documents for sentence in document for label in sentence.labels or ()],
        dtype=torch.int64,
    )

    def score(labels: torch.Tensor) -> float:
        return 100.0 * float((labels == gold).sum()) / max(1, len(gold))

    return score


LEAST = 0.001
"""Spans of a lower score are never shown: there would be more of them than anybody reads."""


def find_guarantee(scores: Sequence[np.ndarray], recall: float) -> Guarantee:
    """Return the guarantee that shows the fewest spans.

    Args:
        scores: of each document the score of each gold entity: infinite if it is predicted, 0 below ``LEAST``.
        recall: above 0, below 1.

    Raises:
        ConfigError: when there are too few documents, or too many entities that would never be shown.
    """
    documents, allowed = len(scores), round(1 - recall, 9)
    needed = math.ceil(round(1 / allowed, 6)) - 1
    if documents < needed:
        raise ConfigError(
            f"--recall {recall:g}: expected {needed:,} documents or more, got {documents:,}: with fewer, not even a "
            "tagger that misses nothing there could promise it"
        )
    of_names = np.concatenate([[], *scores])
    order = np.argsort(of_names)
    weights = np.concatenate([[], *(np.full(len(names), 1 / len(names)) for names in scores if len(names))])
    # Rounded down, so that the last bit of a score hides nothing.
    thresholds = np.append(np.floor(of_names[(of_names >= LEAST) & (of_names <= 1)] * 1e6) / 1e6, [LEAST, 1.0])
    missed = np.concatenate([[0.0], np.cumsum(weights[order])])[np.searchsorted(of_names[order], thresholds)]
    risks = (missed + 1) / (documents + 1)
    enough = thresholds[risks <= allowed + 1e-9]
    if len(enough):
        return Guarantee(recall=recall, threshold=float(enough.max()), documents=documents)
    raise ConfigError(
        f"--recall {recall:g}: expected a tagger that gives the words of enough names there a probability of {LEAST:g} "
        f"or more; with all of these shown, {math.floor(1000 * (1 - risks.min())) / 1000:g} is the most to be promised"
    )


def mean_recall(scores: Sequence[np.ndarray], threshold: float) -> float:
    """Return the mean share of a document's gold entities that are shown; a document without any counts as 1."""
    return float(np.mean([np.mean(names >= threshold) if len(names) else 1.0 for names in scores]))


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


def apply(calibration: Calibration | None, observed: Observed) -> Calibrated:
    """Return the probabilities by a calibration, or as they are."""
    entities, fitted = observed.entities.confidences, calibration.entities if calibration else None
    return Calibrated(
        words=observed.words.probabilities(calibration.tokens if calibration else None),
        entities=entities if fitted is None else fitted.apply(entities),
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
