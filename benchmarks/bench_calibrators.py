"""Compare calibrators of entities on documents that they were not fitted to, on the dev parts of five corpora alone.

Command: python benchmarks/bench_calibrators.py --corpora WORK/corpora \
    --summary benchmarks/results/calibrators_cpu_202611.json

All but the isotonic one are logistic regressions on the logit of an entity's probability, with more inputs: its type,
its number of words, whether the draft was another, whether stage two decided, the uncertainty of its words; ridge keeps
the weights of these small. Fits leave out a tenth of the documents at a time, or a whole corpus. Errors and Brier
scores are in percent, means over the parts; intervals, of the differences to Platt's, hold 95 % of 300 draws of
documents. A gap is mean confidence less share that is right. The corpora hold the types of the taggers.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import numpy as np
import torch
from bench_calibration import PARTS, exactly_right
from environment import environment
from scipy.optimize import minimize

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.confidence.calibration import logit
from concord.models.data.outputs import known_numbers
from concord.models.evaluation.reliability import brier_score, expected_calibration_error
from concord.models.taggers.base import Tagger
from concord.models.training.fit_calibration import fit_isotonic
from concord.workflows.corpora.corpora import read_corpora
from research.entities_en.guideline import LABELS
from research.entities_en.silver import GOLD_TYPES, TYPES

RIDGE = 4.0
DRAWS = 300
FOLDS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Entities:
    """What a tagger says of the K entities that it finds; each array has shape ``(K,)``."""

    part: np.ndarray
    document: np.ndarray
    confidence: np.ndarray
    right: np.ndarray
    kind: np.ndarray
    words: np.ndarray
    redrafted: np.ndarray
    refined: np.ndarray
    uncertainty: np.ndarray
    """Of the least certain word, nats."""

    def where(self, chosen: np.ndarray) -> "Entities":
        """Return the entities for which a mask is true."""
        return Entities(**{column.name: getattr(self, column.name)[chosen] for column in fields(self)})


def find_entities(tagger: Tagger, corpora: Path) -> Entities:
    """Return the entities that a tagger finds in the dev parts."""
    rows: list[tuple[object, ...]] = []
    document = 0
    for part, name in enumerate(PARTS):
        gold = read_corpora([str(next((corpora / name).glob("dev.*")))], labels=LABELS)
        gold = [sentences for sentences in gold if any(sentence.words for sentence in sentences)]
        predicted = tagger.tabulate(gold, calibrated=False).predictions(tagger.vocabulary)
        for sentences, found in zip(gold, predicted, strict=True):
            document += 1
            for sentence, one in zip(sentences, found, strict=True):
                names = set(tagger.vocabulary.scheme.scored_spans(sentence.labels or ()))
                for span, confidence in zip(one.spans, known_numbers(one.confidences), strict=True):
                    own = slice(span.start, span.end)
                    rows.append(
                        (part, document, confidence, span in names, span.label, span.end - span.start,
                         one.labels[own] != one.draft_labels[own], any(one.refined[own]),
                         max(known_numbers(one.uncertainty[own])))
                    )  # fmt: skip
    columns = zip(*rows, strict=True)
    return Entities(**{column.name: np.asarray(next(columns)) for column in fields(Entities)})


Inputs = Callable[[Entities], Iterable[np.ndarray]]


def types(entities: Entities) -> Iterable[np.ndarray]:
    """Return whether entities have a type, for each type."""
    return (entities.kind == kind for kind in (*GOLD_TYPES, *TYPES))


LOGISTIC: Mapping[str, tuple[Inputs, ...]] = {
    "platt": (),
    "types": (types,),
    "types, with slopes": (types, lambda found: (column * logit(found.confidence) for column in types(found))),
    "length": (lambda found: [np.log(found.words)],),
    "types and length": (types, lambda found: [np.log(found.words)]),
    "draft": (lambda found: [found.redrafted],),
    "stage": (lambda found: [found.refined],),
    "uncertainty": (lambda found: [np.sqrt(found.uncertainty)],),
    "all": (
        types,
        lambda found: [np.log(found.words), found.redrafted, found.refined, np.sqrt(found.uncertainty)],
    ),
}


def logistic(
    entities: Entities, unseen: Entities, base: Callable[[Entities], list[np.ndarray]], more: Iterable[Inputs]
) -> np.ndarray:
    """Fit a logistic regression, without ridge on its base, and return its probabilities of other entities."""

    def design(found: Entities) -> np.ndarray:
        plain = [np.ones(len(found.right)), *base(found)]
        return np.stack([*plain, *(column for inputs in more for column in inputs(found))], axis=1).astype(float)

    seen = design(entities)
    ridge = np.full(seen.shape[1], RIDGE)
    ridge[: 1 + len(base(entities))] = 0

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        scores = seen @ weights
        gradient = seen.T @ (1 / (1 + np.exp(-scores)) - entities.right) + ridge * weights
        value = np.logaddexp(0, scores) - entities.right * scores
        return float(value.sum() + (ridge * weights**2).sum() / 2), gradient

    weights = minimize(loss, np.zeros(seen.shape[1]), jac=True, method="BFGS").x
    return np.asarray(1 / (1 + np.exp(-design(unseen) @ weights)))


def on_logit(found: Entities) -> list[np.ndarray]:
    """Return the logit of the probability, from which Platt's calibration starts."""
    return [logit(found.confidence)]


def beta(found: Entities) -> list[np.ndarray]:
    """Return what a beta calibration starts from (Kull et al., 2017)."""
    inside = np.clip(found.confidence, 1e-9, 1 - 1e-9)
    return [np.log(inside), -np.log1p(-inside)]


Calibrator = Callable[[Entities, Entities], np.ndarray]
CALIBRATORS: Mapping[str, Calibrator] = {
    "none": lambda _, unseen: unseen.confidence,
    **{name: partial(logistic, base=on_logit, more=more) for name, more in LOGISTIC.items()},
    "isotonic": lambda seen, unseen: fit_isotonic(seen.confidence, seen.right).apply(unseen.confidence),
    "beta": partial(logistic, base=beta, more=()),
}


def left_out(entities: Entities, groups: np.ndarray, calibrate: Calibrator) -> np.ndarray:
    """Return the probabilities of each group's entities by a fit to the other groups."""
    found = np.zeros(len(groups))
    for group in np.unique(groups):
        own = groups == group
        found[own] = calibrate(entities.where(~own), entities.where(own))
    return found


def measure(probabilities: np.ndarray, right: np.ndarray, rows: Iterable[np.ndarray]) -> np.ndarray:
    """Return calibration error and Brier score of each part, in percent, shape ``(parts, 2)``."""
    return 100 * np.asarray(
        [
            (expected_calibration_error(probabilities[own], right[own]), brier_score(probabilities[own], right[own]))
            for own in rows
        ]
    )


def compare(entities: Entities, groups: np.ndarray) -> dict[str, object]:
    """Compare all calibrators, fitted without one group at a time."""
    found = {name: left_out(entities, groups, calibrate) for name, calibrate in CALIBRATORS.items()}
    parts = [np.flatnonzero(entities.part == part) for part in range(len(PARTS))]
    documents = [[own[entities.document[own] == one] for one in np.unique(entities.document[own])] for own in parts]
    chance = np.random.default_rng(1)
    draws = [
        [np.concatenate([part[number] for number in chance.integers(len(part), size=len(part))]) for part in documents]
        for _ in range(DRAWS)
    ]
    drawn = {
        name: np.asarray([measure(probabilities, entities.right, rows).mean(axis=0) for rows in draws])
        for name, probabilities in found.items()
    }
    report: dict[str, object] = {}
    for name, probabilities in found.items():
        errors = measure(probabilities, entities.right, parts)
        low, high = np.quantile(drawn[name] - drawn["platt"], [0.025, 0.975], axis=0)
        report[name] = {
            "ece": round(errors[:, 0].mean(), 2),
            "ece_against_platt": [round(low[0], 2), round(high[0], 2)],
            "ece_of_parts": dict(zip(PARTS, errors[:, 0].round(2).tolist(), strict=True)),
            "gap_of_parts": {
                part: round(100 * float((probabilities[own] - entities.right[own]).mean()), 2)
                for part, own in zip(PARTS, parts, strict=True)
            },
            "ece_if_exactly_right": round(100 * np.mean([exactly_right(probabilities[own])[0] for own in parts]), 2),
            "brier": round(errors[:, 1].mean(), 2),
            "brier_against_platt": [round(low[1], 2), round(high[1], 2)],
        }
    return report


def main() -> None:
    """Compare the calibrators of every tagger and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["entities_multi", "entities_en_small"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, object] = environment("bench_calibrators.py")
    for name in arguments.models:
        folder = Path("models/pretrained") / name
        entities = find_entities(load_tagger(folder), arguments.corpora)
        folds = np.random.default_rng(1).permutation(entities.document.max() + 1) % FOLDS
        report[name] = {
            "digest": tagger_digest(folder),
            "entities": dict(zip(PARTS, np.bincount(entities.part).tolist(), strict=True)),
            "documents_left_out": compare(entities, folds[entities.document]),
            "corpora_left_out": compare(entities, entities.part),
        }
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
