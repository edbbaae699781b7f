"""The run of a training in the tracking store: its settings and files.

A store that fails after the start of a training causes a warning and never stops the training.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from concord.models.tagger import Tagger
from concord.pipeline.corpora.soft_corpus import LABELLING_NAME, is_soft_corpus
from concord.workflows.environment import code_tags, describe_environment
from concord.workflows.registry.outbox import TrackedRun, describe_dataset, start_run
from concord.workflows.training.job import TrainJob
from concord.workflows.training.train_corpora import datasets
from concord.workflows.yaml_values import flatten

ENVIRONMENT_NAME = "environment.json"


def start_training_run(job: TrainJob, tagger: Tagger, folder: Path, *, tags: Mapping[str, str]) -> TrackedRun:
    """Open the run of a training, or that of an interrupted one again, and describe the machine in its folder."""
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


def existing_files(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the files of a folder among these, by their paths in it; a folder stands for what is in it."""
    paths = [path for name in names for path in (sorted((folder / name).glob("*")) or [folder / name])]
    return [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
