"""Trainings as MLflow records them: from ``run.json``, the job, the epochs and the result in the folder of each."""

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, StringConstraints, field_validator

from concord.models.bundles.manifest import BUNDLE_NAME
from concord.models.config import Config
from concord.models.errors import ConfigError
from concord.models.regular_files import read_regular
from concord.models.taggers.base import Tagger
from concord.models.training.fit import STATE_NAME, EpochResult, read_history
from concord.pipeline.errors import InputError
from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.files import file_sha256
from concord.workflows.environment import code_tags, has_ended, process_name
from concord.workflows.job_files import flatten
from concord.workflows.registry.mlflow_client import Dataset, RunStatus
from concord.workflows.registry.model_versions import GUARDED_ALIASES
from concord.workflows.registry.run_records import Metrics, Registration, RunRecord
from concord.workflows.training.job import TrainJob
from concord.workflows.training.train_corpora import datasets

RUN_NAME = "run.json"
JOB_NAME = "job.json"
RESULT_NAME = "result.json"
RESOLVED_NAME = "config.resolved.yaml"
ENVIRONMENT_NAME = "environment.json"


class RunState(Config):
    """How a training that MLflow is to record runs; written when it starts and when it ends."""

    key: str
    """Identifies the run in any store."""
    process: str
    """The process that trains (environment.process_name)."""
    started_ms: int
    """Milliseconds since 1970, as ``ended_ms``."""
    ended_ms: int | None = None
    status: RunStatus | None = None
    """None while it works."""
    alias: str | None = None
    """What the registered version gets."""
    sizes: dict[str, int]
    tags: dict[str, str]
    datasets: list[Dataset]
    files: list[Annotated[str, StringConstraints(pattern=r"^\w[\w.-]*$")]] = Field(default_factory=list)
    """Files of the folder to store with the run, besides those of every training."""

    @field_validator("alias")
    @classmethod
    def _leave_champions(cls, alias: str | None) -> str | None:
        # Somebody else may have made the folder.
        if alias in GUARDED_ALIASES:
            raise ValueError("expected an alias that is not moved by 'concord promote' alone")
        return alias


class _BestEpoch(Config, extra="ignore"):
    epoch: int
    dev_f1: float | None = None
    dev_accuracy: float | None = None


class _PartScores(Config, extra="ignore"):
    """The accuracy of token labels, or the scores of entities by type and for ``all``, in percent."""

    accuracy: float | None = None
    scores: dict[str, dict[str, float]] = Field(default_factory=dict)


class _SavedResult(Config, extra="ignore"):
    """What MLflow gets of a ``TrainResult``, from its file."""

    best: _BestEpoch
    epochs: int
    refused: bool
    dev: _PartScores = _PartScores()
    test: _PartScores = _PartScores()


def start(
    folder: Path, job: TrainJob, tagger: Tagger, *, alias: str | None, tags: Mapping[str, str], files: Iterable[str]
) -> None:
    """Write that a training starts, or that one which was interrupted goes on."""
    earlier = _read_state(folder) if (folder / RUN_NAME).exists() else None
    sizes = {
        "parameters": sum(weight.numel() for weight in tagger.parameters() if weight.requires_grad),
        "threads": torch.get_num_threads(),
    }
    state = RunState(
        key=uuid.uuid4().hex if earlier is None else earlier.key,
        process=process_name(),
        started_ms=_now() if earlier is None else earlier.started_ms,
        alias=alias,
        sizes=sizes,
        tags={"concord.kind": "training", "concord.job": job.digest, **code_tags(), **tags},
        datasets=[_describe_dataset(path, role) for path, role in datasets(job)],
        files=list(files),
    )
    _write_state(folder, state)


def end(folder: Path, status: RunStatus) -> None:
    """Write that a training has ended."""
    _write_state(folder, _read_state(folder).model_copy(update={"status": status, "ended_ms": _now()}))


def read_training(folder: Path) -> RunRecord:
    """Read the record of a training.

    An epoch is logged at the time that the training took up to its end, so a resumed training shows no gap.

    Raises:
        ConfigError, InputError: when a file of the folder is broken.
    """
    state, job = _read_state(folder), _read_job(folder)
    epochs = read_history(folder / STATE_NAME) if (folder / STATE_NAME).exists() else []
    metrics = list(_epoch_metrics(epochs, state.started_ms))
    last_ms = metrics[-1].time_ms if metrics else state.started_ms
    # A process that was killed could not write that it ended.
    is_dead = state.status is None and has_ended(state.process)
    registration = None
    if state.status == "FINISHED":
        result = _SavedResult.from_mapping(_read_json(folder / RESULT_NAME), where=str(folder / RESULT_NAME))
        try:
            metrics.append(Metrics(step=result.best.epoch, time_ms=last_ms, values=_result_metrics(result)))
            registration = None if result.refused else _registration(result, job, state, folder)
        except KeyError as error:
            raise InputError(f"{folder / RESULT_NAME}: expected the result of a training, got {error!r}") from error
    names = [ENVIRONMENT_NAME, JOB_NAME, RESOLVED_NAME, RESULT_NAME, *state.files]
    return RunRecord(
        folder=folder,
        key=state.key,
        experiment=job.experiment,
        started_ms=state.started_ms,
        ended_ms=last_ms if is_dead else state.ended_ms,
        status="KILLED" if is_dead else state.status,
        parameters=flatten({**job.model_dump(mode="json", exclude={"experiment"}), **state.sizes}),
        tags=state.tags,
        datasets=state.datasets,
        metrics=metrics,
        files={name: folder / name for name in names if (folder / name).exists()},
        registration=registration,
    )


def _epoch_metrics(epochs: Iterable[EpochResult], started_ms: int) -> Iterable[Metrics]:
    seconds = 0.0
    for epoch in epochs:
        seconds += epoch.seconds + epoch.dev_seconds
        numbers = {key: value for key, value in flatten(asdict(epoch)).items() if isinstance(value, int | float)}
        yield Metrics(step=epoch.epoch, time_ms=started_ms + int(1000 * seconds), values=numbers)


def _registration(result: _SavedResult, job: TrainJob, state: RunState, folder: Path) -> Registration:
    scores = _version_scores(result)
    shown = [f"{name.replace('_f1', ' F1').replace('_', ' ')} {score:.2f}" for name, score in scores.items()]
    data = ", ".join(Path(path).name for path in job.data.paths("train"))
    epoch = f"epoch {result.best.epoch} of {result.epochs}"
    return Registration(
        bundle=folder / BUNDLE_NAME,
        name=job.register_as,
        alias=state.alias,
        description=f"{job.tagger} ({job.profile}), {epoch}, trained on {data}: {', '.join(shown)}",
        tags={name: f"{score:.2f}" for name, score in scores.items()},
    )


def _result_metrics(result: _SavedResult) -> dict[str, float]:
    """Return the scores of a result in percent, overall and by type."""
    metrics: dict[str, float] = {}
    # The bare ``dev`` is the prefix of the epochs' metrics.
    for prefix, part in (("best_dev", result.dev), ("test", result.test)):
        if part.accuracy is not None:
            metrics[f"{prefix}_accuracy"] = part.accuracy
            continue
        for kind, scores in part.scores.items():
            suffix = "" if kind == "all" else f".{kind}"
            metrics |= {f"{prefix}_{name}{suffix}": scores[name] for name in ("f1", "precision", "recall")}
    return metrics


def _version_scores(result: _SavedResult) -> dict[str, float]:
    """Return the scores that a registered version shows, in percent."""
    scores: dict[str, float] = {}
    for name, part in (("dev", result.dev), ("test", result.test)):
        if part.accuracy is not None:
            scores[f"{name}_accuracy"] = part.accuracy
        elif part.scores:
            scores[f"{name}_f1"] = part.scores["all"]["f1"]
    return scores


def _describe_dataset(place: str, role: str) -> Dataset:
    return Dataset(place=place, sha256=file_sha256(Path(place)), role=role)


def _read_job(folder: Path) -> TrainJob:
    values = _read_json(folder / JOB_NAME)
    if not isinstance(values.get("job"), Mapping):
        raise InputError(f"{folder / JOB_NAME}: expected the job of a training")
    return TrainJob.from_mapping(values["job"], where=str(folder / JOB_NAME))


def _read_state(folder: Path) -> RunState:
    return RunState.from_mapping(_read_json(folder / RUN_NAME), where=str(folder / RUN_NAME))


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected a file of a training: {error}") from error
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path}: expected a mapping, got {type(values).__name__}")
    return values


def _write_state(folder: Path, state: RunState) -> None:
    path = folder / RUN_NAME
    with store_errors(path):
        write_atomically(path, f"{state.model_dump_json(indent=1)}\n".encode(), staging=folder)


def _now() -> int:
    return int(time.time() * 1000)
