"""Train a tagger on gold corpora, write its bundle and score it; MLflow may follow.

The files of the folder are the result. MLflow follows the training and gets a copy of them, and nothing is read back
from it; a store that does not answer costs a warning.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from concord.models.bundles.checkpoint import load_tagger, pick_device
from concord.models.bundles.manifest import tagger_digest
from concord.models.bundles.registry import tagger_class, with_types
from concord.models.config import flatten
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.labels import label_scheme
from concord.models.taggers.base import Tagger, TaggerConfig
from concord.models.training.fit import STATE_NAME, EpochResult, FitConfig, FitResult, fit
from concord.models.words.form_vectors import FormVectors, read_word_vectors
from concord.models.words.representation import WordRepresentation
from concord.pipeline.storage.files import file_sha256
from concord.workflows.console import INLINE, REFUSED, indented, info, plain, shows_progress, table, warn
from concord.workflows.corpora import (
    Documents,
    Provenance,
    describe_part,
    read_provenance,
    short_names,
    write_provenance,
)
from concord.workflows.evaluation import EvaluateJob, Evaluation, score_tagger
from concord.workflows.mlflow_client import EXPERIMENT, Run, TrackingError, code_tags, describe_environment, open_run
from concord.workflows.progress import TrainingProgress
from concord.workflows.registry import check_name, register
from concord.workflows.training.job import TrainJob
from concord.workflows.training.train_corpora import PARTS, TrainCorpora, read_train_corpora, trees_of

JOB_NAME = "job.json"
RESULT_NAME = "result.json"
ENVIRONMENT_NAME = "environment.json"
FILES = (ENVIRONMENT_NAME, JOB_NAME, RESULT_NAME)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """A trained tagger and its scores.

    Attributes:
        best: the epoch of the bundle.
        epochs: how many were trained.
        refused: whether it is not to be registered because it finds nothing on dev.
        evaluations: the scores on dev and test, for those that there are.
        registered, alias: the version that it has become, as models:/NAME/VERSION; None if it was not registered.
    """

    tagger: str
    profile: str
    folder: Path
    bundle: Path
    digest: str
    best: EpochResult
    epochs: int
    seconds: float
    refused: bool
    evaluations: Mapping[str, Evaluation] = field(metadata=INLINE)
    registered: str | None = None
    alias: str | None = None

    @property
    def text(self) -> str:
        """The answer of ``concord train``."""
        best = self.best
        threshold = "" if best.threshold is None else f", threshold {best.threshold:.2f} nats"
        lines = [
            f"{self.tagger} ({self.profile}): best of {self.epochs} epochs is {best.epoch}{threshold}",
            indented(_score_table(best, self.evaluations.get("test"))),
            f"bundle      {self.bundle}",
            f"registered  {self._registration}",
        ]
        if best.dev_f1 is not None:
            lines.append(f"try it      concord annotate examples/news --output out/try --model {self.bundle}")
        return "\n".join(lines)

    @property
    def _registration(self) -> str:
        if self.refused:
            register = f"concord registry register {self.bundle} --name NAME"
            return f"no, since {self.best.measure} on dev is 0.00; --force registers it all the same, or {register}"
        return self.registered or "no"

    @property
    def exit_code(self) -> int:
        """That of ``concord train``."""
        return REFUSED if self.refused else 0


class _Tracking:
    """The run of a training in MLflow, which shows each epoch when it ends; one that is resumed has a run of its own.

    A store that does not answer costs a warning, and is asked again when the training ends.
    """

    def __init__(self, training: "Training", stack: ExitStack) -> None:
        self._training, self._stack = training, stack
        self._run: Run | None = None
        self._logged: set[int] = set()
        self._answers = True
        self.follow()

    def finish(self, result: TrainResult, epochs: Sequence[EpochResult]) -> TrainResult:
        """Log what is missing, register the bundle unless it finds nothing, and return the result with its version.

        If MLflow does not answer, a warning names the command that registers the bundle later.
        """
        job, alias = self._training.job, self._training.options.alias
        try:
            run = self._log(epochs)
            run.log_metrics(_result_metrics(result), step=result.best.epoch)
            for name in FILES:
                run.log_text(name, (self._training.folder / name).read_text(encoding="utf-8"))
            if not result.refused:
                result = replace(result, registered=_register(self._training, result, run), alias=alias)
            self._stack.close()
        except TrackingError as error:
            self._stack.pop_all()  # dropped, the run ends as failed if MLflow answers again
            command = ["concord", "registry", "register", str(result.bundle), "--name", job.register_as]
            command += [] if alias is None else ["--alias", alias]
            warn(
                f"all results are on disk, but MLflow could not record them: {error}\n"
                f"  To register the tagger later: {shlex.join(command)}"
            )
        return result

    def follow(self, *epochs: EpochResult) -> None:
        """Log the scores of epochs, unless an earlier call was not answered: each takes seconds then."""
        if not self._answers:
            return
        try:
            self._log(epochs)
        except TrackingError as error:
            self._answers = False
            warn(f"MLflow does not answer; the training goes on, and is recorded when it ends. {error}")

    def _log(self, epochs: Sequence[EpochResult]) -> Run:
        """Log epochs that are not logged yet, in a run that is opened by the first call."""
        if self._run is None:
            self._run = self._stack.enter_context(self._open())
        for epoch in epochs:
            if epoch.epoch not in self._logged:
                scores = flatten(asdict(epoch))
                numbers = {key: value for key, value in scores.items() if isinstance(value, int | float)}
                self._run.log_metrics(numbers, step=epoch.epoch)
                self._logged.add(epoch.epoch)
        return self._run

    def _open(self) -> AbstractContextManager[Run]:
        job, tagger = self._training.job, self._training.tagger
        paths = [path for part in PARTS for path in job.data.paths(part)]
        hashes = {f"sha256 {Path(path).parent.name}/{Path(path).name}": file_sha256(path) for path in paths}
        weights = sum(weight.numel() for weight in tagger.parameters() if weight.requires_grad)
        sizes = {"parameters": weights, "threads": torch.get_num_threads()}
        return open_run(
            experiment=EXPERIMENT,
            name=self._training.folder.absolute().name,
            parameters=flatten({**job.model_dump(mode="json"), **sizes}),
            tags={"concord.kind": "training", "concord.job": job.digest, **hashes, **code_tags()},
        )


def _register(training: "Training", result: TrainResult, run: Run) -> str:
    job = training.job
    # What the version shows, in percent.
    scores = {
        f"{part}_{'f1' if evaluation.accuracy is None else 'accuracy'}": f"{evaluation.score:.2f}"
        for part, evaluation in result.evaluations.items()
    }
    shown = [f"{name.replace('_f1', ' F1').replace('_', ' ')} {score}" for name, score in scores.items()]
    data = ", ".join(Path(path).name for path in job.data.paths("train"))
    origin = f"{job.tagger} ({job.profile}), epoch {result.best.epoch} of {result.epochs}, trained on {data}"
    version = register(
        result.bundle,
        name=job.register_as,
        run_id=run.run_id,
        alias=training.options.alias,
        description=f"{origin}: {', '.join(shown)}",
        tags=scores,
    )
    return version.reference


def _result_metrics(result: TrainResult) -> dict[str, float]:
    """Return the scores of a result in percent, overall and by type."""
    metrics: dict[str, float] = {}
    for part, evaluation in result.evaluations.items():
        # The bare ``dev`` is the prefix of the epochs' metrics.
        prefix = "best_dev" if part == "dev" else part
        if evaluation.accuracy is not None:
            metrics[f"{prefix}_accuracy"] = evaluation.accuracy
            continue
        for kind, scores in evaluation.scores.items():
            suffix = "" if kind == "all" else f".{kind}"
            metrics |= {f"{prefix}_{name}{suffix}": getattr(scores, name) for name in ("f1", "precision", "recall")}
    return metrics


def _score_table(best: EpochResult, test: Evaluation | None) -> str:
    if best.dev_f1 is None:
        accuracies: list[Sequence[object]] = [("dev", best.dev_accuracy, best.draft_accuracy)]
        if test is not None:
            accuracies.append(("test", test.score, test.draft_score))
        return table(accuracies, header=("", "accuracy", "draft accuracy"))
    rows: list[Sequence[object]] = [("dev", best.dev_precision, best.dev_recall, best.dev_f1, best.draft_f1)]
    if test is not None:
        scores = test.scores["all"]
        rows.append(("test", scores.precision, scores.recall, scores.f1, test.draft_score))
    return table(rows, header=("", "precision", "recall", "F1", "draft F1"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """Options that do not affect the trained weights.

    Attributes:
        folder: takes checkpoints, bundle, curves and result; derived from the job if None.
        tracked: record the run in MLflow and register the bundle.
        forced: register the tagger even if it finds nothing.
        device: cpu, cuda, or auto for cuda where there is one; it changes the weights by rounding only.
    """

    folder: Path | None = None
    resume: bool = False
    tracked: bool = True
    alias: str | None = None
    forced: bool = False
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training that is ready to run: ``fit``, then ``score``.

    Attributes:
        tagger: as the training begins with it.
    """

    job: TrainJob
    options: TrainOptions
    folder: Path
    config: FitConfig
    corpora: TrainCorpora
    tagger: Tagger

    def fit(self, on_epoch: Callable[[EpochResult], None] | None = None) -> FitResult:
        """Train the tagger, and write the bundle of the best epoch with its provenance."""
        if unscored := self.corpora.unscored:
            warn(
                f"{', '.join(sorted(unscored))}: no entity of this type in {short_names(self.job.data.paths('dev'))}; "
                "what is found there of it counts as wrong, and the last epoch is kept. Add a dev corpus that has some"
            )

        def report(epoch: EpochResult) -> None:
            parts = "" if epoch.dev_f1 is None else f"P {epoch.dev_precision:.2f}, R {epoch.dev_recall:.2f}; "
            info(
                f"epoch {epoch.epoch}/{self.config.epochs}: loss {epoch.loss:.4f}, "
                f"dev {epoch.measure} {epoch.dev_score:.2f} ({parts}draft {epoch.draft_score:.2f}), "
                f"{epoch.seconds + epoch.dev_seconds:.0f} s"
            )
            if on_epoch is not None:
                on_epoch(epoch)

        fitted = fit(
            self.tagger,
            self.corpora.parts["train"],
            self.corpora.dev,
            self.config,
            self.folder,
            on_epoch=report,
            resume=self.options.resume,
            on_batch=TrainingProgress() if shows_progress() else None,
            keep_last=bool(unscored),
        )
        write_provenance(fitted.bundle, self._provenance())
        return fitted

    def score(self, fitted: FitResult) -> TrainResult:
        """Score the bundle on dev and once on test, and write the result."""
        job, tagger, parts = self.job, load_tagger(fitted.bundle), self.corpora.parts
        result = TrainResult(
            tagger=job.tagger,
            profile=job.profile,
            folder=self.folder.absolute(),
            bundle=fitted.bundle.absolute(),
            digest=tagger_digest(fitted.bundle),
            best=fitted.best,
            epochs=len(fitted.epochs),
            seconds=sum(epoch.seconds + epoch.dev_seconds for epoch in fitted.epochs),
            refused=self.options.tracked and not self.options.forced and round(fitted.best.dev_score, 2) == 0,
            evaluations={
                part: score_tagger(tagger, parts[part], evaluation_job(job, fitted.bundle, job.data.paths(part)))
                for part in PARTS[1:]
                if part in parts
            },
        )
        _write_json(self.folder / RESULT_NAME, plain(result))
        return result

    def _provenance(self) -> Provenance:
        """Return what the trained tagger has seen, by itself and through what it continues from."""
        data, parts = self.job.data, self.corpora.parts
        train = describe_part("train", [*data.paths("train"), *data.paths("unlabelled")], parts["train"])
        seen = _seen_before(self.job, self.tagger.config).merged_with(train)
        return seen.merged_with(describe_part("dev", data.paths("dev"), parts["dev"]))


def train(job: TrainJob, options: TrainOptions) -> TrainResult:
    """Train a tagger and register it.

    Raises:
        ConfigError: when the job does not fit the tagger or its data, its name is no valid model name, the folder
            contains another training, or there is no such device.
        InputError: when a corpus cannot be read, or those of training or dev have no sentence.
        ModelError: when the encoder is not installed.
    """
    training = _prepare(job, options)
    if not options.tracked:
        return training.score(training.fit())
    with ExitStack() as stack:
        tracking = _Tracking(training, stack)
        fitted = training.fit(tracking.follow)
        return tracking.finish(training.score(fitted), fitted.epochs)


def _prepare(job: TrainJob, options: TrainOptions) -> Training:
    """Read the corpora, build the tagger and mark the folder as this training's."""
    if options.tracked:
        check_name(job.register_as)
    device = pick_device(options.device)
    folder = options.folder or default_folder(job)
    start = _load_start(job)
    if start is not None:
        model = start.config
    else:
        model = tagger_class(job.tagger).config_class.from_mapping(job.model, where="model")
    config = FitConfig.from_mapping(job.fit, where="fit")
    corpora = read_train_corpora(job, label_scheme(model.scheme), start)
    if start is None:
        tagger = _build_tagger(job, model, corpora.parts["train"], config)
    else:
        further = corpora.types - start.vocabulary.scheme.types(start.vocabulary.labels)
        tagger = with_types(start, further) if further else start
    _claim_folder(folder, job, resume=options.resume)
    _write_json(folder / ENVIRONMENT_NAME, describe_environment())
    return Training(
        job=job, options=options, folder=folder, config=config, corpora=corpora, tagger=tagger.move_to(device)
    )


def default_folder(job: TrainJob) -> Path:
    """Return the default folder of a training, which depends on everything in the job that decides the weights."""
    return Path("runs") / f"{job.tagger}-{job.profile}-{job.digest[:8]}"


def evaluation_job(job: TrainJob, bundle: Path, data: Sequence[str]) -> EvaluateJob:
    """Return the job that scores the bundle of a training on corpora, read as the training read its own."""
    return EvaluateJob(folder=bundle, data=data, labels=job.data.labels, form=job.data, train=job.data.paths("train"))


def _load_start(job: TrainJob) -> Tagger | None:
    """Load the tagger that a training continues from, without its calibration, which fits its weights only."""
    if job.start is None:
        return None
    start = load_tagger(Path(job.start))
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
    provenance = read_provenance(Path(weights)) if weights is not None else None
    return provenance or Provenance(parts=[])


def _build_tagger(job: TrainJob, model: TaggerConfig, train: Documents, config: FitConfig) -> Tagger:
    vectors = read_word_vectors(Path(job.data.vectors)) if job.data.vectors is not None else None
    vocabulary = Vocabulary.from_sentences(
        (sentence for document in train for sentence in document),
        scheme=label_scheme(model.scheme),
        lowercase=model.lowercase,
        digits=model.digits,
        pretrained_words=vectors or (),
        most_words=model.most_words,
    )
    torch.manual_seed(config.seed)
    tagger = tagger_class(job.tagger)(model, vocabulary)
    if tagger.needs_trees:
        tagger.trees = trees_of(job)
    if form_vectors := [module for module in tagger.modules() if isinstance(module, FormVectors)]:
        form_vectors[0].fit(word for document in train for sentence in document for word in sentence.words)
        for other in form_vectors[1:]:
            other.load_state_dict(form_vectors[0].state_dict())
    if vectors is not None:
        tables = [module for module in tagger.modules() if isinstance(module, WordRepresentation)]
        loaded = max((representation.load_vectors(vocabulary, vectors) for representation in tables), default=0)
        info(f"{loaded:,} of {len(vocabulary.words):,} words have a pretrained vector")
    return tagger


def _claim_folder(folder: Path, job: TrainJob, *, resume: bool) -> None:
    """Mark a folder as this training's, or check that it is."""
    path = folder / JOB_NAME
    # Without a state nothing was trained yet, and the folder is free.
    if path.exists() and any(folder.rglob(STATE_NAME)):
        if differences := _differences(path, job):
            raise ConfigError(
                f"{folder}: contains another training; choose another --output, or continue that one with --resume and "
                f"its own settings, which differ in {differences}"
            )
        if not resume:
            raise ConfigError(f"{folder}: contains this training already; --resume continues it, or scores it again")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be created ({error.strerror}); choose another --output") from error
    _write_json(path, {"digest": job.digest, "job": job.deciding_values()})


def _differences(path: Path, job: TrainJob) -> str:
    """Return what decides the weights and differs from the job in a folder's file; empty if nothing does."""
    try:
        before = flatten(json.loads(path.read_bytes())["job"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "unknown keys, since its job.json cannot be read"
    now = flatten(job.deciding_values())
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    return ", ".join(f"{key} ({before.get(key)!r}, now {now.get(key)!r})" for key in changed)


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
