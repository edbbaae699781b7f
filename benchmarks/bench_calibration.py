"""Measure how reliable the probabilities of calibrated taggers are on data that neither they nor their calibration
have seen: calibration error before and after, and the score of the documents they are most certain of.

Command: python benchmarks/bench_calibration.py --corpora ../shared/data/labelled \
    --summary benchmarks/results/calibration_cpu_202611.json

Geopolitical entities and facilities count as LOC, as in training; other types than PER, LOC and ORG are left out where
a corpus has none of them. An expected calibration error is never 0: each is reported with that of exactly right
probabilities, the mean of 200 draws. Errors and areas are 0..1, scores F1 in percent.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from english_types import missing_types
from environment import environment

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ModelError
from concord.models.evaluation.metrics import brier_score, coverage, expected_calibration_error
from concord.models.taggers.base import Tagger
from concord.models.training.fit_calibration import Calibrated, Entities, Observed, Words, apply, observe
from concord.workflows.corpora import find_overlap, read_corpora, read_provenance
from research.entities_en.guideline import LABELS

PARTS = ("ewt_uner", "gum_ne_open", "wikigold", "litbank_prop", "btc")
DRAWS = 200


def measure(tagger: Tagger, folder: Path, path: Path) -> dict[str, object]:
    """Compare a tagger's own probabilities with its calibrated ones on one corpus."""
    documents = [
        document
        for document in read_corpora([str(path)], labels=LABELS)
        if any(sentence.words for sentence in document)
    ]
    provenance = read_provenance(folder)
    if tagger.calibration is None or provenance is None:
        raise ModelError(f"{folder}: expected a calibrated bundle with its provenance; run concord calibrate first")
    overlap = find_overlap(provenance, documents)
    observed = observe(tagger, documents, left_out=missing_types(documents))
    states = {"before": apply(None, observed), "after": apply(tagger.calibration, observed)}
    return {
        "documents": len(documents),
        "words": len(observed.words.right),
        "found_entities": len(observed.entities.right),
        "documents_seen_before": overlap.seen,
        **{name: figures(state, observed) for name, state in states.items()},
    }


def figures(state: Calibrated, observed: Observed) -> dict[str, object]:
    """Return the figures before or after calibration."""
    found = coverage(state.document_confidences(observed), observed.counts)
    return {
        "tokens": errors(state.words, observed.words),
        "entities": errors(state.entities, observed.entities),
        "f1": round(found["score"], 2),
        "f1_of_the_most_certain": {f"{share}%": round(found[f"at_{share}_percent"], 2) for share in (95, 90)},
        "risk_coverage_area": round(found["risk_coverage_area"], 5),
    }


def errors(probabilities: np.ndarray, found: Words | Entities) -> dict[str, float]:
    """Return calibration errors, and those that chance alone causes."""
    right, residuals = found.right, probabilities - found.right
    perfect, largest = exactly_right(probabilities)
    sums = np.bincount(found.documents, weights=residuals - residuals.mean())
    values = {
        "ece": expected_calibration_error(probabilities, right),
        "ece_if_exactly_right": perfect,
        "ece_if_exactly_right_95_percent": largest,
        "ece_equal_width": expected_calibration_error(probabilities, right, binning="width"),
        "brier": brier_score(probabilities, right),
        "mean_confidence": float(probabilities.mean()),
        "right": float(right.mean()),
        "gap_standard_error": float(np.sqrt(np.square(sums).sum()) / len(right)),
    }
    return {name: round(value, 5) for name, value in values.items()}


def exactly_right(probabilities: np.ndarray) -> tuple[float, float]:
    """Return the mean and the 95th percentile of the calibration error that exactly right probabilities would have."""
    chance = np.random.default_rng(1)
    drawn = [
        expected_calibration_error(probabilities, chance.random(len(probabilities)) < probabilities)
        for _ in range(DRAWS)
    ]
    return float(np.mean(drawn)), float(np.quantile(drawn, 0.95))


def main() -> None:
    """Measure every tagger on every part and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["entities_multi", "entities_en_small"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report: dict[str, object] = {**environment("bench_calibration.py"), "threads": arguments.threads}
    for name in arguments.models:
        folder = Path("models/pretrained") / name
        tagger = load_tagger(folder)
        calibration = tagger.calibration
        report[name] = {
            "digest": tagger_digest(folder),
            "methods": None if calibration is None else calibration.summary(candidates=False),
            "fitted_on": None if calibration is None else [file["name"] for file in calibration.fitted["files"]],
            "test": {
                corpus: measure(tagger, folder, next((arguments.corpora / corpus).glob("test.*"))) for corpus in PARTS
            },
        }
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
