"""The run of a training in the tracking store: its settings, files and version.

A store that fails after the start of a training causes a warning and never stops the training.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from concord.models.tagger import Tagger
from concord.pipeline.corpora.soft_corpus import LABELLING_NAME, is_soft_corpus
from concord.workflows.environment import code_tags, describe_environment
from concord.workflows.registry.mlflow_client import RunStatus
from concord.workflows.registry.outbox import Registration, TrackedRun, describe_dataset, start_run
from concord.workflows.training.job import TrainJob
from concord.workflows.training.train_corpora import datasets
from concord.workflows.training.train_result import RegisteredVersion
from concord.workflows.yaml_values import flatten

ENVIRONMENT_NAME = "environment.json"


@dataclass(kw_only=True, slots=True)
class TrainingRun:
    """What a training logs and registers; nothing if it is not tracked.

    Attributes:
        registration: the bundle to register when the run ends.
        version: what was registered, after the end.
    """

    run: TrackedRun | None = None
    registration: Registration | None = None
    version: RegisteredVersion | None = None

    def log(self, metrics: Mapping[str, float], *, epoch: int) -> None:
        """Log metrics of an epoch."""
        if self.run is not None:
            self.run.log_metrics(metrics, step=epoch)


@contextmanager
def tracked(
    job: TrainJob, tagger: Tagger, folder: Path, *, tags: Mapping[str, str], files: Sequence[str]
) -> Iterator[TrainingRun]:
    """Start a run, or continue that of an interrupted training, and end it with files and version of the training.

    Args:
        files: of the folder, to upload if they exist by then; a folder stands for what is in it.
    """
    training = TrainingRun(run=(run := _start(job, tagger, folder, tags)))
    status: RunStatus = "FAILED"
    try:
        yield training
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        registration = training.registration if status == "FINISHED" else None
        version = run.end(status, files=_existing(folder, [ENVIRONMENT_NAME, *files]), registration=registration)
        if version is not None and registration is not None:
            training.version = RegisteredVersion(registered=version.reference, alias=registration.alias)


def _start(job: TrainJob, tagger: Tagger, folder: Path, tags: Mapping[str, str]) -> TrackedRun:
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


def _existing(folder: Path, names: Sequence[str]) -> list[str]:
    paths = [path for name in names for path in (sorted((folder / name).glob("*")) or [folder / name])]
    return [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
