"""Train a tagger on gold corpora, write its bundle, and log every epoch to the tracking store.

The bundle is on disk before it is registered. A store that fails after the start of a training causes a warning and
never stops the training.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from concord.models.checkpoint import load_tagger, pick_device
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.registry import tagger_class
from concord.models.saved_tagger import tagger_digest
from concord.models.schemes import label_scheme
from concord.models.tagger import Tagger, TaggerConfig
from concord.models.training.fit import STATE_NAME, EpochResult, FitConfig, FitResult, fit
from concord.models.two_stage.tagger import TwoStageTagger
from concord.models.words.representation import WordRepresentation
from concord.models.words.word_vectors import read_word_vectors
from concord.pipeline.corpora.soft_corpus import LABELLING_NAME, is_soft_corpus
from concord.workflows.console import Answer, indented, info, shows_progress, table
from concord.workflows.corpora.corpora import Documents
from concord.workflows.corpora.provenance import Provenance, describe_part, read_provenance, write_provenance
from concord.workflows.environment import code_tags, describe_environment
from concord.workflows.evaluation import evaluate
from concord.workflows.evaluation.plots import draw_curves
from concord.workflows.registry.mlflow_client import RunStatus
from concord.workflows.registry.model_versions import check_name
from concord.workflows.registry.outbox import Registration, TrackedRun, describe_dataset, start_run
from concord.workflows.training.folds import FOLDS_NAME, choose_by_folds
from concord.workflows.training.job import ProfileConfig, TrainConfig, TrainJob
from concord.workflows.training.progress import TrainingProgress
from concord.workflows.training.train_corpora import PARTS, datasets, read_train_corpora, trees_of
from concord.workflows.yaml_values import flatten

JOB_NAME = "job.json"
RESULT_NAME = "result.json"
RESOLVED_NAME = "config.resolved.yaml"
ENVIRONMENT_NAME = "environment.json"
CURVES_NAME = "curves.png"
TABLES = "evaluation"
SCORES = {"dev": "best_dev", "test": "test"}
"""Part of the result -> prefix of its metrics; the bare ``dev`` is that of the epochs' metrics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """Options that do not affect the trained weights.

    Attributes:
        folder: takes checkpoints, bundle, curves and result; derived from the job if None.
        resume: continue the training in the folder.
        tracked: log to the tracking store and register the bundle.
        alias: the alias to set to the new version.
        device: cpu, cuda, or auto for cuda where there is one; it changes the weights by rounding only.
        tags: of the run in the tracking store, beside those of every training.
        finish: called with the bundle before it is scored and registered, as to calibrate it. A training that is
            resumed may call it again.
        files: further files of the folder to upload, if they exist by then.
    """

    folder: Path | None = None
    resume: bool = False
    tracked: bool = True
    alias: str | None = None
    device: str = "cpu"
    tags: Mapping[str, str] = field(default_factory=dict)
    finish: Callable[[Path], None] | None = None
    files: Sequence[str] = ()


def run(job: TrainJob, options: TrainOptions) -> Answer:
    """Train a tagger and register it.

    Raises:
        ConfigError: when the job does not fit the tagger or its data, its name is no valid model name, the folder
            contains another training, or there is no such device.
        InputError: when a corpus cannot be read, or those of training or dev have no sentence.
        ModelError: when the encoder is not installed.
        TrackingError: when the tracking store cannot be reached before the training.
    """
    if options.tracked:
        check_name(job.register_as)
    device = pick_device(options.device)
    config = FitConfig.from_mapping(job.fit, where="fit")
    folder = options.folder or default_folder(job)
    start = _load_start(job)
    model = start.config if start is not None else _model_config(job)
    corpora, dev = read_train_corpora(job, label_scheme(model.scheme), start)

    def build(documents: Documents, types: Iterable[str] = ()) -> Tagger:
        return (_load_start(job) or _build_tagger(job, model, documents, config, types)).move_to(device)

    tagger = build(corpora["train"])
    _claim_folder(folder, job, resume=options.resume)
    _write_resolved(job, model, config, folder)
    tracked_run = _start_tracking(job, tagger, folder, options.tags) if options.tracked else None
    status: RunStatus = "FAILED"
    registration = None
    version = None
    try:
        on_batch = TrainingProgress() if shows_progress() else None
        choice = None
        if job.data.folds is not None:
            parts, folds = folder / FOLDS_NAME, job.data.folds
            # A part may lack a type, and the uncertainties that a threshold is chosen from depend on their number.
            types = label_scheme(model.scheme).types(tagger.vocabulary.labels)
            choice = choose_by_folds(
                partial(build, types=types),
                corpora["train"],
                config,
                parts,
                folds=folds,
                resume=options.resume,
                on_batch=on_batch,
            )
            if isinstance(tagger, TwoStageTagger) and choice.threshold is not None:
                tagger.set_threshold(choice.threshold)
        result = fit(
            tagger,
            corpora["train"],
            dev,
            config,
            folder,
            last_epoch=choice.epoch if choice is not None else None,
            on_epoch=lambda epoch: _report_epoch(epoch, config, tracked_run),
            resume=options.resume,
            on_batch=on_batch,
        )
        if choice is not None:
            result = replace(result, best=replace(result.best, **choice.scores))
        read = [*job.data.paths("train"), *job.data.paths("unlabelled")]
        train_part = describe_part("train", read, corpora["train"])
        provenance = _seen_before(job, model).seen_through(job.data.paths("train")).merged_with(train_part)
        if dev:
            provenance = provenance.merged_with(describe_part("dev", job.data.paths("dev"), corpora["dev"]))
        write_provenance(result.bundle, provenance)
        if options.finish is not None:
            options.finish(result.bundle)
        values = _write_result(job, corpora, result, folder)
        if tracked_run is not None:
            tracked_run.log_metrics(_score_metrics(values), step=result.best.epoch)
        registration = Registration(
            bundle=result.bundle.name,
            name=job.register_as,
            alias=options.alias,
            description=_description(job, values),
            tags={name: f"{score:.2f}" for name, score in _version_scores(values).items()},
        )
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        if tracked_run is not None:
            version = tracked_run.end(status, files=_artifacts(folder, options.files), registration=registration)
    if version is not None:
        values |= {"registered": version.reference, "alias": options.alias}
    return Answer(values=values, text=_describe(values, result))


def check(job: TrainJob, options: TrainOptions) -> None:
    """Find what is wrong with a job before its corpora exist, and mark its folder as this training's.

    Raises:
        ConfigError: as ``run`` does for the job, its name or its folder.
    """
    if options.tracked:
        check_name(job.register_as)
    FitConfig.from_mapping(job.fit, where="fit")
    _model_config(job)
    _claim_folder(options.folder or default_folder(job), job, resume=options.resume)


def default_folder(job: TrainJob) -> Path:
    """Return the default folder of a training, which depends on everything in the job that decides the weights."""
    return Path("runs") / f"{job.tagger}-{job.profile}-{job.digest[:8]}"


def evaluation_job(job: TrainJob, bundle: Path, data: Sequence[str]) -> evaluate.EvaluateJob:
    """Return the job that scores the bundle of a training on corpora, read as the training read its own."""
    gold = [path for path in job.data.paths("train") if not is_soft_corpus(path)]
    return evaluate.EvaluateJob(folder=bundle, data=data, labels=job.data.labels, form=job.data, train=gold)


def _model_config(job: TrainJob) -> TaggerConfig:
    return tagger_class(job.tagger).config_class.from_mapping(job.model, where="model")


def _load_start(job: TrainJob) -> Tagger | None:
    """Load the tagger that a training continues from, without its calibration, which fits its weights only."""
    if job.start is None:
        return None
    start = load_tagger(Path(job.start))
    if start.name != job.tagger:
        raise ConfigError(f"start: expected a {job.tagger}, which the job trains, got a {start.name}: {job.start}")
    if start.needs_trees and (source := trees_of(job)) != start.trees:
        raise ConfigError(
            f"data: expected trees of {start.trees!r}, from which {job.start} learned, got those of {source!r}"
        )
    start.calibration = None
    return start


def _seen_before(job: TrainJob, model: TaggerConfig) -> Provenance:
    """Return what the tagger has seen that a training continues from, or the one whose tuned encoder it reads."""
    if job.start is not None:
        return Provenance(parts=[]).taught_by(
            job.tagger, tagger_digest(Path(job.start)), read_provenance(Path(job.start))
        )
    weights = model.encoder.weights if model.encoder is not None else None
    known = read_provenance(Path(weights)) if weights is not None else None
    return known or Provenance(parts=[])


def _build_tagger(
    job: TrainJob, model: TaggerConfig, train: Documents, config: FitConfig, types: Iterable[str] = ()
) -> Tagger:
    vectors = read_word_vectors(Path(job.data.vectors)) if job.data.vectors is not None else None
    vocabulary = Vocabulary.from_sentences(
        (sentence for document in train for sentence in document),
        scheme=label_scheme(model.scheme),
        lowercase=model.lowercase,
        digits=model.digits,
        pretrained_words=vectors.words if vectors is not None else (),
        most_words=model.most_words,
        entity_types=types,
    )
    torch.manual_seed(config.seed)
    tagger = tagger_class(job.tagger)(model, vocabulary)
    if tagger.needs_trees:
        tagger.trees = trees_of(job)
    if vectors is not None:
        tables = [module for module in tagger.modules() if isinstance(module, WordRepresentation)]
        found = max((representation.load_vectors(vocabulary, vectors) for representation in tables), default=0)
        info(f"{found:,} of {len(vocabulary.words):,} words have a pretrained vector")
    return tagger


def _claim_folder(folder: Path, job: TrainJob, *, resume: bool) -> None:
    """Mark a folder as this training's, or check that it is."""
    path = folder / JOB_NAME
    # Without a state nothing was trained yet, and the folder is free.
    states = [folder / STATE_NAME, *(folder / FOLDS_NAME).glob(f"*/{STATE_NAME}")]
    if path.exists() and any(state.exists() for state in states):
        if differences := _differences(path, job):
            raise ConfigError(
                f"{folder}: contains another training; choose another --output, or continue that one with --resume and "
                f"its own settings, which differ in {differences}"
            )
        if not resume:
            raise ConfigError(f"{folder}: contains this training already; --resume continues it, or scores it again")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be created ({error.strerror}); choose another --output") from error
    content = {"digest": job.digest, "job": job.model_dump(mode="json")}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _differences(path: Path, job: TrainJob) -> str:
    """Return what decides the weights and differs from the job in a folder's file; empty if nothing does."""
    try:
        saved = json.loads(path.read_bytes())
        if saved["digest"] == job.digest:
            return ""
        before = flatten(saved["job"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "unknown keys, since its job.json cannot be read"
    now = flatten(job.model_dump(mode="json"))
    deciding = (before.keys() | now.keys()) - (now.keys() - flatten(job.deciding_values()).keys())
    changed = [key for key in sorted(deciding) if before.get(key) != now.get(key)]
    return ", ".join(f"{key} ({before.get(key)!r}, now {now.get(key)!r})" for key in changed)


def _write_resolved(job: TrainJob, model: TaggerConfig, config: FitConfig, folder: Path) -> None:
    """Write the job with all defaults filled in, as a file of conf/train that repeats the training."""
    resolved = TrainConfig(
        tagger=job.tagger,
        data=job.data,
        start=job.start,
        profiles={job.profile: ProfileConfig(model=model.model_dump(mode="json"), fit=config.model_dump(mode="json"))},
        register_as=job.register_as,
        experiment=job.experiment,
    )
    text = yaml.safe_dump(resolved.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    (folder / RESOLVED_NAME).write_text(text, encoding="utf-8")


def _start_tracking(job: TrainJob, tagger: Tagger, folder: Path, tags: Mapping[str, str]) -> TrackedRun:
    """Start a run in the tracking store, or continue that of an interrupted training."""
    environment = json.dumps(describe_environment(), indent=2, sort_keys=True)
    (folder / ENVIRONMENT_NAME).write_text(f"{environment}\n", encoding="utf-8")
    sizes = {
        "parameters": sum(weight.numel() for weight in tagger.parameters() if weight.requires_grad),
        "threads": torch.get_num_threads(),
    }
    return start_run(
        folder,
        experiment=job.experiment,
        name=folder.name,
        parameters=flatten({**job.model_dump(mode="json", exclude={"experiment"}), **sizes}),
        tags={"concord.kind": "training", "concord.job": job.digest, **code_tags(), **tags},
        datasets=[
            describe_dataset(f"{path}/{LABELLING_NAME}" if is_soft_corpus(path) else path, role)
            for path, role in datasets(job)
        ],
    )


def _report_epoch(epoch: EpochResult, config: FitConfig, tracked_run: TrackedRun | None) -> None:
    parts = "" if epoch.dev_f1 is None else f"P {epoch.dev_precision:.2f}, R {epoch.dev_recall:.2f}; "
    scores = f", dev {epoch.measure} {epoch.dev_score:.2f} ({parts}draft {epoch.draft_score:.2f})"
    info(
        f"epoch {epoch.epoch}/{config.epochs}: loss {epoch.loss:.4f}{scores if epoch.scored else ''}, "
        f"{epoch.seconds + epoch.dev_seconds:.0f} s"
    )
    if tracked_run is not None:
        numbers = {key: value for key, value in flatten(asdict(epoch)).items() if isinstance(value, int | float)}
        tracked_run.log_metrics(numbers, step=epoch.epoch)


def _write_result(job: TrainJob, corpora: Mapping[str, Documents], result: FitResult, folder: Path) -> dict[str, Any]:
    """Score the chosen model on dev and once on test, and write the result."""
    values: dict[str, Any] = {
        "tagger": job.tagger,
        "profile": job.profile,
        "folder": str(folder.absolute()),
        "bundle": str(result.bundle.absolute()),
        "digest": tagger_digest(result.bundle),
        "folds": job.data.folds,
        "best": asdict(result.best),
        "epochs": len(result.epochs),
        "seconds": sum(epoch.seconds + epoch.dev_seconds for epoch in result.epochs),
    }
    tagger = load_tagger(result.bundle)
    for part in PARTS[1:]:
        if part in corpora:
            scored = evaluation_job(job, result.bundle, job.data.paths(part))
            values[part] = evaluate.score_tagger(tagger, corpora[part], scored)
            evaluate.write_tables(values[part], folder / TABLES, name=part)
    (folder / RESULT_NAME).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    draw_curves(result.epochs, folder / CURVES_NAME, title=f"{job.tagger}, {job.profile}")
    return values


def _score_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the chosen model's scores, overall and by type, as metrics of the tracking store."""
    numbers = {}
    for part, prefix in SCORES.items():
        found = values.get(part, {})
        if "accuracy" in found:
            numbers[f"{prefix}_accuracy"] = found["accuracy"]
        for kind, scores in found.get("scores", {}).items():
            suffix = "" if kind == "all" else f".{kind}"
            numbers |= {f"{prefix}_{key}{suffix}": scores[key] for key in ("f1", "precision", "recall")}
    return numbers


def _version_scores(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores that a registered version shows, in percent: on dev or on folds, and on test."""
    scores = {}
    for part in SCORES:
        if found := values.get(part):
            entities = "scores" in found
            scores[f"{part}_f1" if entities else f"{part}_accuracy"] = (
                found["scores"]["all"]["f1"] if entities else found["accuracy"]
            )
    if values["folds"] is not None:
        measures = {"folds_f1": values["best"]["dev_f1"], "folds_accuracy": values["best"]["dev_accuracy"]}
        scores |= {name: score for name, score in measures.items() if score is not None}
    return scores


def _description(job: TrainJob, values: Mapping[str, Any]) -> str:
    """Return the description of a registered version."""
    scores = [
        f"{name.replace('_f1', ' F1').replace('_', ' ')} {score:.2f}" for name, score in _version_scores(values).items()
    ]
    data = ", ".join(Path(path).name for path in job.data.paths("train"))
    epoch = f"epoch {values['best']['epoch']} of {values['epochs']}"
    return f"{job.tagger} ({job.profile}), {epoch}, trained on {data}: {', '.join(scores)}"


def _artifacts(folder: Path, further: Sequence[str]) -> list[str]:
    """Return the existing files of a training that are uploaded to the store."""
    names = [JOB_NAME, RESOLVED_NAME, ENVIRONMENT_NAME, RESULT_NAME, CURVES_NAME, *further]
    tables = sorted(path.relative_to(folder).as_posix() for path in (folder / TABLES).glob("*"))
    return [*(name for name in names if (folder / name).exists()), *tables]


def _describe(values: Mapping[str, Any], result: FitResult) -> str:
    best = result.best
    threshold = "" if best.threshold is None else f", threshold {best.threshold:.2f} nats"
    folds = values["folds"]
    if folds is None:
        chosen = f"best of {values['epochs']} epochs is {best.epoch}"
    else:
        chosen = (
            f"epoch {best.epoch} by the mean over {folds} parts of the training documents, whose scores are dev here"
        )
    lines = [
        f"{values['tagger']} ({values['profile']}): {chosen}{threshold}",
        indented(_describe_scores(best, values.get("test"))),
        f"bundle      {values['bundle']}",
        f"registered  {values.get('registered', 'no')}",
    ]
    if best.dev_f1 is not None:
        lines.append(f"try it      concord annotate examples/news --output out/try --model {values['bundle']}")
    return "\n".join(lines)


def _describe_scores(best: EpochResult, test: Mapping[str, Any] | None) -> str:
    if best.dev_f1 is None:
        accuracies: list[Sequence[object]] = [("dev", best.dev_accuracy, best.draft_accuracy)]
        if test is not None:
            accuracies.append(("test", test["accuracy"], test["draft_accuracy"]))
        return table(accuracies, header=("", "accuracy", "draft accuracy"))
    rows: list[Sequence[object]] = [("dev", best.dev_precision, best.dev_recall, best.dev_f1, best.draft_f1)]
    if test is not None:
        found, draft = test["scores"]["all"], test["draft_scores"]["all"]
        rows.append(("test", found["precision"], found["recall"], found["f1"], draft["f1"]))
    return table(rows, header=("", "precision", "recall", "F1", "draft F1"))
