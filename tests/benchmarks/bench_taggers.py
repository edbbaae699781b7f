"""Trains the four taggers with and without encoder features and scores them, one JSON a run.

Command: python tests/benchmarks/bench_taggers.py --corpus ../shared/data/labelled/ewt_uner --runs out/runs \
    --summary tests/benchmarks/results/taggers_ewt_uner_cpu_202611.json

Runs that have their JSON already are left out, so the command may be stopped and started again, and several
processes may share --runs when they take different seeds. The last epoch count, learning rates and sizes come from
conf/train/*.yaml; the best epoch and the threshold are chosen on dev, test is scored once a run.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from environment import environment

from models.base import Tagger
from models.checkpoint import load_tagger
from models.consistency import collection_consistency
from models.data import Sentence, Vocabulary
from models.layers.encoder import EncoderConfig, load_encoder
from models.registry import build_tagger
from models.training.fit import FitConfig, fit
from models.training.metrics import seqeval_f1, span_scores
from pipeline.readers.gold import read_gold
from workflows.config import read_train_job

TAGGERS = ("bilstm_softmax", "bilstm_crf", "uanet", "doc_uanet")
PROFILES = ("small", "encoder")


def score(tagger: Tagger, documents: Sequence[Sequence[Sentence]]) -> dict[str, object]:
    """Score final labels and drafts on gold documents."""
    started = time.monotonic()
    predictions = tagger.predict_documents(documents)
    seconds = time.monotonic() - started
    gold = [sentence.labels or () for document in documents for sentence in document]
    final = [prediction.labels for document in predictions for prediction in document]
    draft = [prediction.draft_labels for document in predictions for prediction in document]
    by_document = [[sentence.labels or () for sentence in document] for document in documents]

    def consistency(of_drafts: bool) -> float | None:
        labelled = [
            [
                (sentence.words, prediction.draft_labels if of_drafts else prediction.labels)
                for sentence, prediction in zip(document, found, strict=True)
            ]
            for document, found in zip(documents, predictions, strict=True)
        ]
        share = collection_consistency(labelled, naming=by_document).share
        return None if share is None else round(100 * share, 2)

    scores = span_scores(gold, final)
    refined = sum(sum(prediction.refined) for document in predictions for prediction in document)
    words = sum(map(len, gold))
    return {
        "f1": round(scores.overall.f1, 2),
        "precision": round(scores.overall.precision, 2),
        "recall": round(scores.overall.recall, 2),
        "seqeval_strict_f1": round(seqeval_f1(gold, final), 2),
        "draft_f1": round(span_scores(gold, draft).overall.f1, 2),
        "by_type": {kind: round(entry.f1, 2) for kind, entry in scores.by_type.items()},
        "consistency": consistency(False),
        "draft_consistency": consistency(True),
        "refined_share": round(refined / words, 4),
        "words_per_second": round(words / seconds),
    }


def run_one(
    name: str, profile: str, seed: int, corpus: Path, runs: Path, overrides: Sequence[str]
) -> dict[str, object]:
    """Train one tagger and score its best epoch."""
    splits = {split: read_gold(next(corpus.glob(f"{split}.*"))) for split in ("train", "dev", "test")}
    job = read_train_job(Path(f"conf/train/{name}.yaml"), profile=profile, overrides=[f"fit.seed={seed}", *overrides])
    torch.manual_seed(seed)
    vocabulary = Vocabulary.from_sentences(
        (sentence for document in splits["train"] for sentence in document),
        scheme=job.model.get("scheme", "BIOES"),
        lowercase=job.model.get("lowercase", False),
        digits=job.model.get("digits", "each"),
    )
    tagger = build_tagger(name, job.model, vocabulary)
    folder = runs / f"{name}-{profile}-{seed}"
    started = time.monotonic()
    config = FitConfig.from_mapping(job.fit)
    result = fit(tagger, splits["train"], splits["dev"], config, folder, progress=sys.stderr.isatty())
    seconds = time.monotonic() - started
    best = load_tagger(result.bundle)
    record: dict[str, object] = {
        "tagger": name,
        "profile": profile,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in best.parameters()),
        "epochs": len(result.epochs),
        "best_epoch": result.best.epoch,
        "threshold": best.threshold,
        "train_seconds": round(seconds),
        "dev": score(best, splits["dev"]),
        "test": score(best, splits["test"]),
        "dev_f1_by_epoch": [round(epoch.dev_f1, 2) for epoch in result.epochs],
    }
    shutil.rmtree(folder)
    return record


def summarise(records: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Give mean and spread (standard deviation) over the seeds of each tagger and profile."""
    rows = []
    for profile in PROFILES:
        for name in TAGGERS:
            chosen = [record for record in records if record["tagger"] == name and record["profile"] == profile]
            if not chosen:
                continue
            row: dict[str, object] = {"tagger": name, "profile": profile, "seeds": len(chosen)}
            for split in ("dev", "test"):
                for measure in ("f1", "draft_f1", "consistency", "draft_consistency"):
                    values = [record[split][measure] for record in chosen]  # type: ignore[index]
                    row[f"{split}_{measure}_mean"] = round(statistics.mean(values), 2)
                    row[f"{split}_{measure}_std"] = round(statistics.stdev(values), 2) if len(values) > 1 else None
            rows.append(row)
    return rows


def main() -> None:
    """Run what is missing and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--summary", type=Path)
    parser.add_argument("--taggers", nargs="+", default=list(TAGGERS))
    parser.add_argument("--profiles", nargs="+", default=list(PROFILES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--features", type=Path, help="file that keeps encoder features from one call to the next")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.runs.mkdir(parents=True, exist_ok=True)
    if arguments.features and arguments.features.exists():
        load_encoder(EncoderConfig(), "cpu").read_kept(arguments.features)
    for seed in arguments.seeds:
        for profile in arguments.profiles:
            for name in arguments.taggers:
                path = arguments.runs / f"{name}-{profile}-{seed}.json"
                if not path.exists():
                    record = run_one(name, profile, seed, arguments.corpus, arguments.runs, arguments.overrides)
                    path.write_text(json.dumps(record) + "\n")
                    if arguments.features and profile == "encoder" and not arguments.features.exists():
                        load_encoder(EncoderConfig(), "cpu").write_kept(arguments.features)
                    print(json.dumps(record), file=sys.stderr, flush=True)
    if arguments.summary:
        records = [json.loads(path.read_text()) for path in sorted(arguments.runs.glob("*-*-*.json"))]
        report = {
            **environment("bench_taggers.py"),
            "corpus": arguments.corpus.name,
            "overrides": arguments.overrides,
            "threads": arguments.threads,
            "summary": summarise(records),
            "runs": records,
        }
        arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps(report["summary"], indent=1))


if __name__ == "__main__":
    main()
