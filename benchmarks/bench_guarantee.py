"""Measure how many names a guarantee of recall shows in documents that it was not found on, and by how many candidates.

Command: python benchmarks/bench_guarantee.py --corpora ../shared/data/labelled \
    --summary benchmarks/results/guarantee_cpu_202611.json

The documents of a test part are halved at random a thousand times: the guarantee is found on one half and measured on
the other. Types that the part has none of are left out. Recalls are 0..1: the mean share of a document's names that are
shown, over documents and halves; a document without names counts as 1. In other languages it is that of guarantees
found on all of the English part, and on the language's own dev part, with its standard error over documents. The corpus
of Danish has no documents; five of its sentences are one. Beside it stands the share of all names, whatever their
document.
"""

import argparse
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_languages import LANGUAGES, read_texts
from english_types import missing_types
from environment import environment

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ConfigError
from concord.models.training.fit_calibration import Observed, find_guarantee, mean_recall, observe
from concord.workflows.corpora import read_corpora
from research.entities_en.guideline import LABELS

PARTS = ("ewt_uner",)
RECALLS = (0.9, 0.95)
HALVES = 1000


def measure(observed: Observed, recall: float, words: int) -> dict[str, float]:
    """Return what guarantees found on random halves show of the others; the documents have so many words."""
    chance = np.random.default_rng(1)
    reached, candidates = [], []
    for _ in range(HALVES):
        scores = [observed.scores[number] for number in chance.permutation(len(observed.scores))]
        half = len(scores) // 2
        threshold = find_guarantee(scores[:half], recall).threshold
        reached.append(mean_recall(scores[half:], threshold))
        candidates.append(1000 * (np.asarray(observed.candidates) >= threshold).sum() / words)
    return {
        "recall": round(float(np.mean(reached)), 5),
        "standard_deviation": round(float(np.std(reached)), 5),
        "candidates_per_1000_words": round(float(np.mean(candidates)), 1),
    }


def measure_all(observed: Observed, threshold: float, words: int) -> dict[str, float]:
    """Return what a guarantee of this threshold shows of all documents, which have so many words."""
    shares = [mean_recall([names], threshold) for names in observed.scores]
    shown = (np.asarray(observed.candidates) >= threshold).sum()
    return {
        "recall": round(float(np.mean(shares)), 5),
        "standard_error": round(float(np.std(shares) / len(shares) ** 0.5), 5),
        "recall_of_all_names": round(float(np.mean(np.concatenate(observed.scores) >= threshold)), 5),
        "candidates_per_1000_words": round(float(1000 * shown / words), 1),
    }


def thresholds(observed: Observed) -> dict[str, float]:
    """Return the thresholds of the guarantees that can be found on all of the documents."""
    found = {}
    for recall in RECALLS:
        with suppress(ConfigError):
            found[f"{recall:g}"] = find_guarantee(observed.scores, recall).threshold
    return found


def describe(observed: Observed, words: int) -> dict[str, float]:
    """Return the sizes of documents and what the entities alone are of their names."""
    return {
        "documents": len(observed.scores),
        "documents_without_names": sum(not len(names) for names in observed.scores),
        "names": sum(map(len, observed.scores)),
        "words": words,
        "recall_of_entities": round(mean_recall(observed.scores, np.inf), 5),
    }


def main() -> None:
    """Measure a tagger on every part and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--model", default="entities_multi")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path("models/pretrained") / arguments.model
    tagger = load_tagger(folder)
    report: dict[str, Any] = {
        **environment("bench_guarantee.py"),
        "model": arguments.model,
        "digest": tagger_digest(folder),
        "halves": HALVES,
    }
    for corpus in PARTS:
        documents = read_corpora([str(next((arguments.corpora / corpus).glob("test.*")))], labels=LABELS)
        documents = [document for document in documents if any(sentence.words for sentence in document)]
        observed = observe(tagger, documents, left_out=missing_types(documents))
        words = sum(len(sentence.words) for document in documents for sentence in document)
        guarantees = thresholds(observed)
        report[corpus] = {
            **describe(observed, words),
            "guarantees": {f"{recall:g}": measure(observed, recall, words) for recall in RECALLS},
            "guarantees_found_on_all": {
                recall: measure_all(observed, threshold, words) for recall, threshold in guarantees.items()
            },
        }
    report["languages"] = {}
    for language in LANGUAGES:
        parts = {}
        for part in ("dev", "test"):
            texts = read_texts(next((arguments.corpora / f"uner_{language}").glob(f"{part}.*")))
            documents = [text.gold for text in texts]
            parts[part] = observe(tagger, documents, left_out=missing_types(documents))
        observed = parts["test"]
        words = sum(len(sentence.words) for document in documents for sentence in document)
        own = thresholds(parts["dev"])
        report["languages"][language] = {
            **describe(observed, words),
            "documents_of_dev_part": len(parts["dev"].scores),
            **{
                name: {recall: measure_all(observed, threshold, words) for recall, threshold in found.items()}
                for name, found in (
                    ("guarantees_found_in_english", guarantees),
                    ("guarantees_found_in_the_language", own),
                )
            },
        }
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
