"""Train one run of the grid and score it."""

import fcntl
import json
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from concord.models.checkpoint import load_tagger, pick_device
from concord.models.evaluation.document_counts import counts_by_document, label_counts_by_document
from concord.models.training.fit import STATE_NAME
from concord.models.words.encoder import EncoderConfig
from concord.models.words.frozen_encoder import FrozenEncoder, load_encoder
from concord.workflows.console import info
from concord.workflows.grid.config import COMMAND, GridConfig, Run
from concord.workflows.jobs import ParseConfig, TrainJob, read_train_job
from concord.workflows.training import evaluate, parse_corpus, train
from concord.workflows.training.corpora import read_corpora

TRAIN_FOLDER = Path("conf/train")
SPLITS = ("dev", "test")


def job_of(run: Run, grid: GridConfig, data: Path) -> TrainJob:
    """Give the training of a run, as ``concord train`` would read it.

    Raises:
        ConfigError: when the tagger has no such profile, or a key is not known.
    """
    corpus = grid.corpora[run.corpus]
    files = {split: _split_file(data / corpus.folder, split) for split in ("train", "dev")}
    overrides = [
        f"data.train=[{json.dumps(str(files['train']))}]",
        f"data.dev={json.dumps(str(files['dev']))}",
        f"fit.seed={run.seed}",
        *corpus.set,
        *run.row.set,
    ]
    return read_train_job(TRAIN_FOLDER / f"{run.row.tagger}.yaml", profile=run.profile, overrides=overrides)


def _split_file(folder: Path, split: str) -> Path:
    return next(iter(sorted(folder.glob(f"{split}.conll*"))), folder / f"{split}.conllu")


def corpus_folder(key: str, grid: GridConfig, data: Path, work: Path) -> Path:
    """Give the folder that holds the folders of corpora, after ``concord parse`` has made those with parsed trees."""
    corpus = grid.corpora[key]
    if corpus.trees != "parser":
        return data
    made = work / "parsed"
    for split in ("train", *SPLITS):
        source = _split_file(data / corpus.folder, split)
        if source.exists():
            target = made / corpus.folder / f"{split}.conllu.zst"
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked(target.parent / f".{split}.lock", wait=True):
                parse_corpus.run(ParseConfig(input=str(source), output=str(target)))
    return made


def perform(run: Run, grid: GridConfig, *, data: Path, folder: Path, device: str = "cpu") -> dict[str, Any]:
    """Train one system, going on where an interrupted training stopped, and score its best epoch on dev and test."""
    job = job_of(run, grid, data)
    options = train.TrainOptions(folder=folder / run.name, resume=True, tracked=False, device=device)
    standing = folder / run.name / train.JOB_NAME
    if standing.exists() and json.loads(standing.read_text(encoding="utf-8"))["digest"] != job.digest:
        info(f"{run.name}: begun with another configuration, begins anew")
        shutil.rmtree(folder / run.name)
    resumed = (folder / run.name / STATE_NAME).exists()
    before = _cpu_seconds()
    answer = train.run(job, options)
    used = None if resumed else _cpu_seconds() - before
    values = answer.values
    tagger = load_tagger(Path(values["bundle"]), device=device)
    record: dict[str, Any] = {
        "run": run.name,
        "tagger": run.row.tagger,
        "set": [*grid.corpora[run.corpus].set, *run.row.set],
        "seed": run.seed,
        "profile": run.profile,
        "corpus": run.corpus,
        "parameters": sum(weight.numel() for weight in tagger.parameters()),
        "epochs": values["epochs"],
        "best": values["best"],
        "train_seconds": values["seconds"],
        "cpu_seconds": used,
        "units": {},
    }
    for split in SPLITS:
        path = _split_file(Path(job.data.dev).parent, split)
        if not path.exists():
            continue
        documents = evaluate.read_gold_for(tagger, [str(path)], labels=job.data.labels, form=job.data)
        scored = evaluate.EvaluateJob(
            folder=Path(values["bundle"]), data=[str(path)], train=job.data.train, labels=job.data.labels, form=job.data
        )
        predicted, seconds = evaluate.predict_timed(tagger, documents, scored)
        record[split] = evaluate.score_predictions(tagger, documents, predicted, seconds, scored)
        count = label_counts_by_document if tagger.vocabulary.scheme == "TOKENS" else counts_by_document
        counts = {"final": count(documents, [[found.labels for found in document] for document in predicted])}
        if tagger.threshold is not None:
            counts["draft"] = count(documents, [[found.draft_labels for found in document] for document in predicted])
        record["units"][split] = counts
    return dict(rounded(record))


def read_features(work: Path, run: Run, grid: GridConfig, data: Path, device: str) -> None:
    """Let the encoder keep the features of a run's sentences, from a file if an earlier run has written it."""
    job = job_of(run, grid, data)
    values = job.model.get("encoder")
    if values is None or values.get("tuned"):
        return
    encoder = load_encoder(EncoderConfig.from_mapping(values), pick_device(device))
    path = work / f"{grid.corpora[run.corpus].folder}.features"
    if path.exists():
        _read_kept(encoder, path)
        return
    documents = read_corpora([*job.data.train, job.data.dev], labels={})
    encoder.keep([sentence.words for document in documents for sentence in document if sentence.words])
    staged = path.with_suffix(".staged")
    encoder.write_kept(staged)
    staged.replace(path)


@cache
def _read_kept(encoder: FrozenEncoder, path: Path) -> None:
    """Read features once a process: its runs share the encoder, and a file holds hundreds of megabytes."""
    encoder.read_kept(path)


def rounded(value: Any, digits: int = 4) -> Any:
    """Round every float within plain values, so that records stay small."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    return [rounded(item, digits) for item in value] if isinstance(value, list | tuple) else value


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a lock while a block runs; False where another process holds it. A killed process holds none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def surroundings(device: str) -> dict[str, Any]:
    """Give command, commit, hardware and versions."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "command": COMMAND,
        "commit": commit.stdout.strip(),
        "hardware": torch.cuda.get_device_name() if pick_device(device) == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": version("torch"),
    }
