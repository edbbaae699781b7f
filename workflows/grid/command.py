"""The grid of results: every tagger on every corpus, several seeds, one JSON a run, one page that shows them.

``python -m concord.workflows.grid run`` trains what has no JSON yet and may be stopped, killed and started again at any
moment: a training goes on from its last epoch. Several processes may share the folders; each run is locked by the one
that works on it. ``render`` writes the page from the JSON files alone; a cell without runs says so.
"""

import fcntl
import json
import platform
import resource
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import click
import torch
from pydantic import Field

from concord.models.checkpoint import load_tagger, pick_device
from concord.models.config import Config, ConfigError
from concord.models.evaluation.breakdown import counts_by_document, label_counts_by_document
from concord.models.training.fit import STATE_NAME
from concord.models.words.encoder import EncoderConfig, FrozenEncoder, load_encoder
from concord.workflows.console import explained_errors, note
from concord.workflows.jobs import ParseConfig, TrainJob, read_train_job, read_yaml
from concord.workflows.training import evaluate, train
from concord.workflows.training import parse_corpus as parse
from concord.workflows.training.corpora import read_corpora

CONF = Path("conf/grid.yaml")
TRAIN_FOLDER = Path("conf/train")
RESULTS = Path("tests/benchmarks/results/grid")
SPLITS = ("dev", "test")
COMMAND = "make grid CORPORA=<folder of the corpora>"


class CorpusConfig(Config):
    """One corpus, a folder with the files train, dev and (mostly) test."""

    folder: str
    """Below the folder of all corpora."""
    documents: bool = True
    """Whether its sentences stand in documents."""
    floor: tuple[float, float | None] | None = None
    """F1 on dev and test of a CRF over words, affixes and shapes; a tagger below it is undertrained or broken."""
    set: tuple[str, ...] = ()
    """``key=value`` for every training on this corpus, as ``concord train --set`` takes them."""
    trees: Literal["gold", "parser", "none"] = "none"
    """Where the dependency trees come from; `parser`: ``concord parse`` makes the corpus first."""


class RowConfig(Config):
    """One system of a table."""

    tagger: str
    key: str | None = None
    """Names the system in file names; the tagger if none. Equal keys in two tables mean the same system."""
    name: str | None = None
    """What the page calls it; the key if none."""
    profile: str | None = None
    """Another profile than the table's."""
    corpus: str | None = None
    """Another corpus than the table's: the same texts with other trees."""
    set: tuple[str, ...] = ()
    not_applicable: str | None = None
    """Why the cell has no sense; the page says n/a."""

    @property
    def own_key(self) -> str:
        """The system's key."""
        return self.key or self.tagger


class TableConfig(Config):
    """Systems side by side: the same corpus, representation and budget."""

    title: str
    corpus: str
    profile: str
    """The profile of conf/train/*.yaml; says which word representation."""
    seeds: tuple[int, ...] = (1, 2, 3)
    rows: tuple[RowConfig, ...]
    note: str | None = None
    papers: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    """Columns of the papers' figures: title -> key of a row -> figure, as printed."""


class ClaimConfig(Config):
    """One claim of the papers, as a comparison of rows."""

    text: str
    table: str
    better: str | None = None
    """Key of the row that the claim puts first."""
    worse: str | None = None
    measure: Literal["all", "multi_word", "recurring", "once", "recurring_less_once", "draft", "uncertainty"] = "all"
    """`draft` compares the row `better` with its own drafts; `uncertainty` asks for the ratio of mean entropies of
    wrong and right drafts."""
    untestable: str | None = None
    """Why it cannot be tested here."""


class GridConfig(Config):
    """The whole grid; conf/grid.yaml."""

    corpora: Mapping[str, CorpusConfig]
    tables: Mapping[str, TableConfig]
    claims: tuple[ClaimConfig, ...] = ()
    missing: Mapping[str, str] = Field(default_factory=dict)
    """Corpora of the papers that are not here -> why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training of the grid."""

    corpus: str
    profile: str
    row: RowConfig
    seed: int

    @property
    def name(self) -> str:
        """The name of the run's files."""
        return f"{self.corpus}.{self.profile}.{self.row.own_key}.{self.seed}"


def read_grid(path: Path = CONF) -> GridConfig:
    """Read the grid.

    Raises:
        ConfigError: naming the key at fault.
    """
    return GridConfig.from_mapping(read_yaml(path), where=str(path))


def runs_of(grid: GridConfig, tables: Sequence[str]) -> list[Run]:
    """Give the runs of tables, first seeds first, so that a grid stopped early has something of every row.

    Raises:
        ConfigError: when there is no such table.
    """
    strange = [name for name in tables if name not in grid.tables]
    if strange:
        raise ConfigError(f"--table: expected one of {', '.join(grid.tables)}, got {strange[0]!r}")
    found: dict[str, Run] = {}
    for name in tables:
        table = grid.tables[name]
        for seed in table.seeds:
            for row in table.rows:
                if row.not_applicable is None:
                    run = Run(
                        corpus=row.corpus or table.corpus, profile=row.profile or table.profile, row=row, seed=seed
                    )
                    found.setdefault(run.name, run)
    return list(found.values())


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
                parse.run(ParseConfig(input=str(source), output=str(target)))
    return made


def perform(run: Run, grid: GridConfig, *, data: Path, folder: Path, device: str = "cpu") -> dict[str, Any]:
    """Train one system, going on where an interrupted training stopped, and score its best epoch on dev and test."""
    job = job_of(run, grid, data)
    options = train.TrainOptions(folder=folder / run.name, resume=True, tracked=False, device=device)
    standing = folder / run.name / train.JOB_NAME
    if standing.exists() and json.loads(standing.read_text(encoding="utf-8"))["digest"] != job.digest:
        note(f"{run.name}: begun with another configuration, begins anew")
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


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Train the grid of results, or show it."""


folder_option = click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, show_default=True, help="One JSON a run."
)
grid_option = click.option(
    "--grid", "conf", type=click.Path(path_type=Path), default=CONF, show_default=True, help="What the grid holds."
)
tables_option = click.option("--table", "tables", multiple=True, help="Only this table; may be given often.")


@main.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the corpora.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("out/grid"), show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda", "auto"]), default="cpu", show_default=True)
@click.option("--seed", "seeds", type=int, multiple=True, help="Only this seed; may be given often.")
@click.option("--minutes", type=float, help="Start no further run after so many minutes.")
@grid_option
@folder_option
@tables_option
@explained_errors(as_json=False)
def run(
    data: Path,
    work: Path,
    threads: int,
    device: str,
    seeds: tuple[int, ...],
    minutes: float | None,
    conf: Path,
    results: Path,
    tables: tuple[str, ...],
) -> None:
    """Train what has no result yet."""
    torch.set_num_threads(threads)
    grid = read_grid(conf)
    started = time.monotonic()
    failed: list[str] = []
    for item in runs_of(grid, tables or list(grid.tables)):
        if minutes is not None and time.monotonic() - started > 60 * minutes:
            break
        if seeds and item.seed not in seeds:
            continue
        with locked(work / f"{item.name}.lock") as mine:
            path = results / f"{item.name}.json"
            if not mine or path.exists():
                continue
            note(f"{item.name}: begins")
            try:
                place = corpus_folder(item.corpus, grid, data, work)
                read_features(work, item, grid, place, device)
                record = perform(item, grid, data=place, folder=work, device=device) | surroundings(device)
            except Exception:  # noqa: BLE001
                # One run must not cost the night's others; it stays without a result and the next call tries again.
                note(f"{item.name}: failed\n{traceback.format_exc()}")
                failed.append(item.name)
                continue
            results.mkdir(parents=True, exist_ok=True)
            staged = work / f"{item.name}.json"
            staged.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")
            shutil.move(staged, path)
            shutil.rmtree(work / item.name)
            note(f"{item.name}: done")
    if failed:
        note(f"failed: {', '.join(failed)}")
        sys.exit(1)


@main.command()
@click.option("--output", "-o", type=click.Path(path_type=Path), default=Path("docs/results.md"), show_default=True)
@grid_option
@folder_option
@explained_errors(as_json=False)
def render(output: Path, conf: Path, results: Path) -> None:
    """Write the page of results."""
    from concord.workflows.grid.page import render_page

    records = [_read_record(path) for path in sorted(results.glob("*.json"))]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(render_page(read_grid(conf), records), encoding="utf-8")


def _read_record(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: expected the record of a run, delete it to run it again: {error}") from error
