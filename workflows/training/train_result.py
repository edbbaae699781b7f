"""What a training has made: the files of its folder, the bundle with its scores, and its run in MLflow.

MLflow listens to a training. A store that does not answer costs a warning, and the training goes on.
"""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType

import torch

from concord.models.taggers.base import Tagger
from concord.models.training.fit import EpochResult
from concord.pipeline.storage.files import file_sha256
from concord.workflows.console import INLINE, REFUSED, indented, table, warn
from concord.workflows.environment import code_tags
from concord.workflows.evaluation.evaluate import Evaluation
from concord.workflows.job_files import flatten
from concord.workflows.registry.mlflow_client import Run, TrackingError, open_run
from concord.workflows.registry.model_versions import register
from concord.workflows.training.job import TrainJob
from concord.workflows.training.train_corpora import PARTS

JOB_NAME = "job.json"
RESULT_NAME = "result.json"
RESOLVED_NAME = "config.resolved.yaml"
ENVIRONMENT_NAME = "environment.json"
FILES = (ENVIRONMENT_NAME, JOB_NAME, RESOLVED_NAME, RESULT_NAME)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredVersion:
    """The version that a training has registered."""

    registered: str
    """As models:/NAME/VERSION."""
    alias: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """A trained tagger and its scores.

    Attributes:
        best: the epoch of the bundle.
        epochs: how many were trained.
        refused: whether it is not to be registered because it finds nothing on dev.
        evaluations: the scores on dev and test, for those that there are.
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
    version: RegisteredVersion | None = field(default=None, metadata=INLINE)

    @property
    def text(self) -> str:
        """The answer of ``concord train``."""
        best = self.best
        threshold = "" if best.threshold is None else f", threshold {best.threshold:.2f} nats"
        lines = [
            f"{self.tagger} ({self.profile}): best of {self.epochs} epochs is {best.epoch}{threshold}",
            indented(_score_table(best, self.evaluations.get("test"))),
            f"bundle      {self.bundle}",
            f"registered  {self.registered}",
        ]
        if best.dev_f1 is not None:
            lines.append(f"try it      concord annotate examples/news --output out/try --model {self.bundle}")
        return "\n".join(lines)

    @property
    def registered(self) -> str:
        """The registered version, or why there is none."""
        if self.refused:
            register = f"concord registry register {self.bundle} --name NAME"
            return f"no, since {self.best.measure} on dev is 0.00; --force registers it all the same, or {register}"
        return "no" if self.version is None else self.version.registered

    @property
    def exit_code(self) -> int:
        """That of ``concord train``."""
        return REFUSED if self.refused else 0


class TrackedRun:
    """The run of a training in MLflow; a training that continues in its folder continues its run."""

    def __init__(self, job: TrainJob, tagger: Tagger, folder: Path, *, alias: str | None) -> None:
        self._job, self._folder, self._alias = job, folder.absolute(), alias
        self._sizes = {
            "parameters": sum(weight.numel() for weight in tagger.parameters() if weight.requires_grad),
            "threads": torch.get_num_threads(),
        }
        self._run: Run | None = None
        self._answers = True

    def __enter__(self) -> "TrackedRun":
        """Open the run."""
        try:
            self._opened()
        except TrackingError as error:
            self._give_up(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the run of a training that failed."""
        if kind is None or self._run is None:
            return
        try:
            self._run.close("KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED")
        except TrackingError as unanswered:
            warn(str(unanswered))

    def log_epoch(self, epoch: EpochResult) -> None:
        """Log the scores of an epoch, unless an earlier call was not answered: each takes seconds then."""
        if self._answers:
            try:
                self._log(self._opened(), epoch)
            except TrackingError as error:
                self._give_up(error)

    def finish(self, result: TrainResult, epochs: Sequence[EpochResult]) -> TrainResult:
        """Log all that is missing, register the bundle unless it finds nothing, and return the result with its version.

        If MLflow does not answer, a warning names the command that registers the bundle later.
        """
        try:
            run = self._opened()
            logged = run.logged_steps("loss")
            for epoch in epochs:
                if epoch.epoch not in logged:
                    self._log(run, epoch)
            run.log_metrics(_result_metrics(result), step=result.best.epoch)
            for name in FILES:
                run.log_file(self._folder / name)
            if not result.refused:
                result = replace(result, version=self._register(result, run))
            run.close("FINISHED")
        except TrackingError as error:
            command = ["concord", "registry", "register", str(result.bundle), "--name", self._job.register_as]
            command += [] if self._alias is None else ["--alias", self._alias]
            warn(
                f"all results are on disk, but MLflow could not record them: {error}\n"
                f"  To register the tagger later: {shlex.join(command)}"
            )
        return result

    def _opened(self) -> Run:
        if self._run is None:
            job, data = self._job, self._job.data
            paths = [path for part in PARTS for path in data.paths(part)]
            hashes = {f"sha256 {Path(path).parent.name}/{Path(path).name}": file_sha256(path) for path in paths}
            self._run = open_run(
                experiment=job.experiment,
                name=self._folder.name,
                parameters=flatten({**job.model_dump(mode="json", exclude={"experiment"}), **self._sizes}),
                tags={"concord.kind": "training", "concord.job": job.digest, **hashes, **code_tags()},
                key=hashlib.sha256(f"{job.digest} {self._folder}".encode()).hexdigest(),
            )
        return self._run

    def _give_up(self, error: TrackingError) -> None:
        self._answers = False
        warn(f"MLflow does not answer; the training goes on, and is recorded when it ends. {error}")

    def _log(self, run: Run, epoch: EpochResult) -> None:
        numbers = {key: value for key, value in flatten(asdict(epoch)).items() if isinstance(value, int | float)}
        run.log_metrics(numbers, step=epoch.epoch)

    def _register(self, result: TrainResult, run: Run) -> RegisteredVersion:
        job, scores = self._job, {name: f"{score:.2f}" for name, score in _version_scores(result).items()}
        shown = [f"{name.replace('_f1', ' F1').replace('_', ' ')} {score}" for name, score in scores.items()]
        data = ", ".join(Path(path).name for path in job.data.paths("train"))
        origin = f"{job.tagger} ({job.profile}), epoch {result.best.epoch} of {result.epochs}, trained on {data}"
        version = register(
            result.bundle,
            name=job.register_as,
            run_id=run.run_id,
            alias=self._alias,
            description=f"{origin}: {', '.join(shown)}",
            tags=scores,
        )
        return RegisteredVersion(registered=version.reference, alias=self._alias)


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


def _version_scores(result: TrainResult) -> dict[str, float]:
    """Return the scores that a registered version shows, in percent, such as ``{"dev_f1": 91.2}``."""
    return {
        f"{part}_{'f1' if evaluation.accuracy is None else 'accuracy'}": evaluation.score
        for part, evaluation in result.evaluations.items()
    }


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
