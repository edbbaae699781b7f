"""What a training has made: the bundle and its scores, as text, as metrics and as those of a registered version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from concord.models.training.fit import EpochResult
from concord.workflows.console import INLINE, REFUSED, indented, table
from concord.workflows.evaluation.evaluate import AnyEvaluation, EntityEvaluation, TokenEvaluation
from concord.workflows.training.job import TrainJob

METRICS = {"dev": "best_dev", "test": "test"}
"""Part of the corpora -> prefix of its metrics; the bare ``dev`` is that of the epochs' metrics."""


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
        folds: into how many parts the training documents were cut to choose the epoch; None if dev corpora chose it.
        best: the epoch of the bundle; with folds, its scores are the means over the parts.
        epochs: how many were trained.
        refused: whether it was not registered because it finds nothing on dev.
        evaluations: the scores on dev and test, for those that there are.
    """

    tagger: str
    profile: str
    folder: Path
    bundle: Path
    digest: str
    folds: int | None
    best: EpochResult
    epochs: int
    seconds: float
    refused: bool
    evaluations: Mapping[str, AnyEvaluation] = field(metadata=INLINE)
    version: RegisteredVersion | None = field(default=None, metadata=INLINE)

    @property
    def text(self) -> str:
        """The answer of ``concord train``."""
        best = self.best
        threshold = "" if best.threshold is None else f", threshold {best.threshold:.2f} nats"
        chosen = f"best of {self.epochs} epochs is {best.epoch}"
        if self.folds is not None:
            parts = f"{self.folds} parts of the training documents"
            chosen = f"epoch {best.epoch} by the mean over {parts}, whose scores are dev here"
        lines = [
            f"{self.tagger} ({self.profile}): {chosen}{threshold}",
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

    @property
    def metrics(self) -> dict[str, float]:
        """The scores in percent, overall and by type, as metrics of the tracking store."""
        metrics = {}
        for part, evaluation in self.evaluations.items():
            prefix = METRICS[part]
            if isinstance(evaluation, TokenEvaluation):
                metrics[f"{prefix}_accuracy"] = evaluation.accuracy
                continue
            for kind, scores in evaluation.scores.items():
                suffix = "" if kind == "all" else f".{kind}"
                metrics |= {f"{prefix}_{name}{suffix}": getattr(scores, name) for name in ("f1", "precision", "recall")}
        return metrics

    @property
    def version_scores(self) -> dict[str, float]:
        """The scores that a registered version shows, in percent: on dev or on folds, and on test."""
        scores = {f"{part}_{evaluation.measure}": evaluation.score for part, evaluation in self.evaluations.items()}
        if self.folds is not None:
            of_folds = {"folds_f1": self.best.dev_f1, "folds_accuracy": self.best.dev_accuracy}
            scores |= {name: score for name, score in of_folds.items() if score is not None}
        return scores

    def describe_version(self, job: TrainJob) -> str:
        """Return the description of the version that a job registers."""
        scores = [
            f"{name.replace('_f1', ' F1').replace('_', ' ')} {score:.2f}" for name, score in self.version_scores.items()
        ]
        data = ", ".join(Path(path).name for path in job.data.paths("train"))
        epoch = f"epoch {self.best.epoch} of {self.epochs}"
        return f"{self.tagger} ({self.profile}), {epoch}, trained on {data}: {', '.join(scores)}"


def _score_table(best: EpochResult, test: AnyEvaluation | None) -> str:
    if best.dev_f1 is None:
        accuracies: list[Sequence[object]] = [("dev", best.dev_accuracy, best.draft_accuracy)]
        if isinstance(test, TokenEvaluation):
            accuracies.append(("test", test.accuracy, test.draft_accuracy))
        return table(accuracies, header=("", "accuracy", "draft accuracy"))
    rows: list[Sequence[object]] = [("dev", best.dev_precision, best.dev_recall, best.dev_f1, best.draft_f1)]
    if isinstance(test, EntityEvaluation):
        scores = test.scores["all"]
        rows.append(("test", scores.precision, scores.recall, scores.f1, test.draft_scores["all"].f1))
    return table(rows, header=("", "precision", "recall", "F1", "draft F1"))
