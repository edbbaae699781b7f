"""Measure how many names a guarantee of recall shows in documents that it was not found on, and by how many candidates.

Command: python benchmarks/bench_guarantee.py --corpora ../shared/data/labelled \
    --summary benchmarks/results/guarantee_cpu_202611.json

The documents of a test part are halved at random a thousand times: the guarantee is found on one half and measured on
the other. Types that the part has none of are left out. Recalls are 0..1: the mean share of a document's names that are
shown, over documents and halves. In other languages, on the first 15,000 words of a test part, it is that of guarantees
found on all of the English part, with its standard error over documents.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_languages import LANGUAGES, read_texts
from english_types import missing_types
from environment import environment

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.data.sentence import Sentence, first_documents
from concord.models.training.fit_calibration import Observed, observe
from concord.models.training.fit_guarantee import find_guarantee, mean_recall
from concord.workflows.corpora.corpora import read_corpora
from research.entities_en.guideline import LABELS

PARTS = ("ewt_uner",)
RECALLS = (0.9, 0.95)
HALVES = 1000
WORDS_OF_LANGUAGE = 15_000


def measure(observed: Observed, recall: float) -> dict[str, float]:
    """Return what guarantees found on random halves show of the others."""
    chance, words = np.random.default_rng(1), len(observed.words.right)
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


def measure_elsewhere(observed: Observed, threshold: float) -> dict[str, float]:
    """Return what a guarantee found in English shows of documents in another language."""
    shares = [mean_recall([names], threshold) for names in observed.scores]
    return {
        "recall": round(float(np.mean(shares)), 5),
        "standard_error": round(float(np.std(shares) / len(shares) ** 0.5), 5),
        "candidates_per_1000_words": round(
            float(1000 * (np.asarray(observed.candidates) >= threshold).sum() / len(observed.words.right)), 1
        ),
    }


def read_language(corpora: Path, language: str) -> list[list[Sentence]]:
    """Return the first documents of a language's test part."""
    texts = [text.gold for text in read_texts(next((corpora / f"uner_{language}").glob("test.*")))]
    return [list(document) for document in first_documents(texts, WORDS_OF_LANGUAGE)]


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
        report[corpus] = {
            "documents": len(observed.scores),
            "words": len(observed.words.right),
            "recall_of_entities": round(mean_recall(observed.scores, np.inf), 5),
            "guarantees": {f"{recall:g}": measure(observed, recall) for recall in RECALLS},
        }
    english = {f"{recall:g}": find_guarantee(observed.scores, recall).threshold for recall in RECALLS}
    report["languages"] = {}
    for language in LANGUAGES:
        documents = read_language(arguments.corpora, language)
        observed = observe(tagger, documents, left_out=missing_types(documents))
        report["languages"][language] = {
            "documents": len(observed.scores),
            "words": len(observed.words.right),
            "recall_of_entities": round(mean_recall(observed.scores, np.inf), 5),
            "guarantees_found_in_english": {
                name: measure_elsewhere(observed, threshold) for name, threshold in english.items()
            },
        }
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
