"""What a training has made: the files of its folder, and the bundle with its scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from concord.models.training.fit import EpochResult
from concord.workflows.console import INLINE, REFUSED, indented, table
from concord.workflows.evaluation.evaluate import Evaluation

JOB_NAME = "job.json"
RESULT_NAME = "result.json"
RESOLVED_NAME = "config.resolved.yaml"
ENVIRONMENT_NAME = "environment.json"


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
