"""One run of the grid: prepare its corpus, train, score the best epoch on dev and test, return the record."""

import json
import platform
import shutil
import time
from functools import cache
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from concord.models.bundles.checkpoint import load_tagger, pick_device, write_tensors
from concord.models.errors import EncoderMissingError
from concord.models.labels import BIOES
from concord.models.taggers.base import Tagger
from concord.models.training.fit import STATE_NAME
from concord.models.words.encoder import FrozenEncoder, load_encoder
from concord.models.words.encoder_config import EncoderConfig
from concord.workflows.console import info, plain
from concord.workflows.corpora import Documents, read_corpora, read_gold_for, without_labels
from concord.workflows.evaluation import EvaluateJob, predict_timed, score_predictions
from concord.workflows.mlflow_client import COMMIT_TAG, code_tags
from concord.workflows.training import train
from concord.workflows.training.job import TrainJob, read_train_job
from concord.workflows.training.train import JOB_NAME
from research import breakdown
from research.grid.config import GridConfig, Run
from research.grid.corpus_files import SPLITS, corpus_folder, split_file
from research.grid.scores import counts_by_document, label_counts_by_document, lenient_scores
from research.grid.settings import TRAIN_FOLDER, overrides_of, settings_of

COMMAND = "make grid CORPORA=<folder of the corpora>"
_COMMIT_DIGITS = 7


def train_run(run: Run, grid: GridConfig, *, data: Path, work: Path, device: str = "cpu") -> dict[str, Any]:
    """Train and score one system and return the record of the run; an interrupted training is resumed.

    Args:
        data: the folder of all corpora.
        work: takes the training in a folder of the run's name, and what runs share: parsed corpora, encoder features.
    """
    corpus = grid.corpora[run.corpus]
    job = job_of(run, grid, corpus_folder(run.corpus, grid, data, work))
    _load_features(job, work / f"{corpus.folder}{'.halves' if corpus.halves else ''}.features", device)
    folder = work / run.name
    _remove_other_training(folder, job)
    resumed = (folder / STATE_NAME).exists()
    before = time.process_time()
    options = train.TrainOptions(folder=folder, resume=True, tracked=False, device=device)
    result = train.train(job, options)
    cpu_seconds = None if resumed else time.process_time() - before
    tagger = load_tagger(result.bundle, device=device)
    record: dict[str, Any] = {
        "run": run.name,
        "tagger": run.row.tagger,
        "settings": settings_of(run, grid),
        "seed": run.seed,
        "profile": run.profile,
        "corpus": run.corpus,
        "parameters": sum(weight.numel() for weight in tagger.parameters()),
        "epochs": result.epochs,
        "updates": _updates(folder / STATE_NAME),
        "best": plain(result.best),
        "train_seconds": result.seconds,
        "cpu_seconds": cpu_seconds,
        "units": {},
    }
    scored_on = run.row.scored_on or run.corpus
    scored_folder = corpus_folder(scored_on, grid, data, work) / grid.corpora[scored_on].folder
    for split in SPLITS:
        path = split_file(scored_folder, split)
        if path.exists():
            scored = train.evaluation_job(job, result.bundle, [str(path)])
            record[split], record["units"][split] = _score(tagger, scored)
    return record | _describe_origin(device)


def job_of(run: Run, grid: GridConfig, data: Path) -> TrainJob:
    """Return the training job of a run, as ``concord train`` would read it."""
    folder = data / grid.corpora[run.corpus].folder
    train_file, dev_file = (json.dumps(str(split_file(folder, split))) for split in ("train", "dev"))
    overrides = [f"data.train=[{train_file}]", f"data.dev={dev_file}", f"fit.seed={run.seed}"]
    overrides += overrides_of(run, grid)
    return read_train_job(TRAIN_FOLDER / f"{run.row.tagger}.yaml", profile=run.profile, overrides=overrides)


def _load_features(job: TrainJob, path: Path, device: str) -> None:
    """Load the features of a frozen encoder for the corpus from a file, which the first run writes."""
    values = job.model.get("encoder")
    if values is None or values.get("tuned"):
        return
    config = EncoderConfig.from_mapping(values)
    encoder = load_encoder(config, pick_device(device))
    if path.exists():
        _read_once(encoder, config, path)
        return
    documents = read_corpora([*job.data.paths("train"), *job.data.paths("dev")], labels={})
    encoder.cache([sentence.words for document in documents for sentence in document if sentence.words])
    staged = path.with_suffix(".staged")
    write_features(encoder, config, staged)
    staged.replace(path)


@cache
def _read_once(encoder: FrozenEncoder, config: EncoderConfig, path: Path) -> None:
    """Read features once a process: its runs share the encoder, and a file has hundreds of megabytes."""
    read_features(encoder, config, path)


def write_features(encoder: FrozenEncoder, config: EncoderConfig, path: Path) -> None:
    """Write the features that an encoder keeps to a safetensors file for other trainings."""
    words = list(encoder.kept)
    write_tensors(
        {"features": torch.cat([encoder.kept[key] for key in words])},
        path,
        metadata={"words": json.dumps(words), "encoder": config.model_dump_json()},
    )


def read_features(encoder: FrozenEncoder, config: EncoderConfig, path: Path) -> None:
    """Add the features of ``write_features``; raise EncoderMissingError if they are from another encoder."""
    with safe_open(path, framework="pt") as stored:
        metadata = stored.metadata()
        if EncoderConfig.from_mapping(json.loads(metadata["encoder"]), where=str(path)) != config:
            raise EncoderMissingError(f"{path}: expected features of {config}, got {metadata['encoder']}")
        words = [tuple(key) for key in json.loads(metadata["words"])]
        parts = stored.get_tensor("features").split([len(key) for key in words])
    encoder.kept.update(zip(words, parts, strict=True))


def _remove_other_training(folder: Path, job: TrainJob) -> None:
    """Remove a training of the run that an earlier configuration of the grid has started."""
    path = folder / JOB_NAME
    if path.exists() and json.loads(path.read_text(encoding="utf-8"))["digest"] != job.digest:
        info(f"{folder.name}: started with another configuration, starting again")
        shutil.rmtree(folder)


def _score(tagger: Tagger, job: EvaluateJob) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scores on a gold corpus, and the counts by document that compare runs."""
    documents = read_gold_for(tagger, job.data, labels=job.labels, form=job.form)
    predicted, seconds = predict_timed(tagger, documents, job.options)
    count = counts_by_document if tagger.vocabulary.scheme.has_entities else label_counts_by_document
    counts = {"final": count(documents, [[found.labels for found in document] for document in predicted])}
    if tagger.threshold is not None:
        counts["draft"] = count(documents, [[found.draft_labels for found in document] for document in predicted])
    evaluation = score_predictions(tagger, documents, predicted, seconds, job)
    scores: dict[str, Any] = plain(evaluation)
    scores |= plain(breakdown.measure(documents, predicted, scheme=tagger.vocabulary.scheme))
    if tagger.vocabulary.scheme is BIOES:
        scores["lenient_gain"] = _lenient_f1(tagger, documents) - evaluation.score
    return scores, counts


def _lenient_f1(tagger: Tagger, documents: Documents) -> float:
    """Return the F1 by NCRF++'s rules, which need the labels that were predicted, malformed entities included."""
    table = tagger.tabulate(without_labels(documents))
    names, rows = tagger.vocabulary.labels, iter(table.label.tolist())
    gold, predicted = [], []
    for sentence in chain.from_iterable(documents):
        gold.append(tagger.vocabulary.scheme.from_gold(sentence.labels or ()))
        predicted.append([names[number] for number in islice(rows, len(sentence.words))])
    return lenient_scores(gold, predicted).f1


def _updates(state: Path) -> int:
    """Return the number of optimizer steps of a finished training."""
    with safe_open(state, framework="pt") as stored:
        return int(stored.metadata()["step"])


def _describe_origin(device: str) -> dict[str, Any]:
    """Return command, commit, hardware and versions."""
    return {
        "command": COMMAND,
        "commit": code_tags().get(COMMIT_TAG, "")[:_COMMIT_DIGITS],
        "hardware": torch.cuda.get_device_name() if pick_device(device) == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": version("torch"),
    }
