"""What a job finds to do: a digest that changes with the input, the tagger or the job."""

import hashlib
import json
from pathlib import Path

from concord.models.errors import ConcordError
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.corrections.log import LOG_NAME
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.planning.inputs import absolute_input, absolute_output, find_inputs
from concord.pipeline.storage.files import file_sha256, file_state
from concord.workflows.annotation.job import find_job_tagger
from concord.workflows.registry import model_versions


def work_digest(config: AnnotateConfig, *, job_digest: str) -> str | None:
    """Return the SHA-256, in hex, of a job, its tagger, its corrections, and the sizes and times of its files.

    The files are those of the input and the list of terms.

    Jobs of equal digests do the same, so that one of them is enough. None if this machine cannot see the input or the
    tagger, which only the nodes of a cluster need to.
    """
    try:
        inputs = find_inputs(
            absolute_input(config.input), output=absolute_output(config.output.path), format=config.reader.format
        )
        states = [(file.path, file.state or file_state(file.path)) for file in inputs.files]
        if config.tagger.terms is not None:
            states.append((config.tagger.terms, file_state(config.tagger.terms)))
        tagger = _tagger(config)
    except ConcordError:
        return None
    corrections = Path(config.output.path) / LOG_NAME
    decisive = json.dumps(
        [job_digest, tagger, states, *([file_sha256(corrections)] if corrections.is_file() else [])], sort_keys=True
    )
    return hashlib.sha256(decisive.encode()).hexdigest()


def is_finished(config: AnnotateConfig) -> bool:
    """Tell whether this machine sees a finished collection in the output."""
    try:
        return OutputFolder(config.output.path).manifest() is not None
    except ConcordError:
        return False


def _tagger(config: AnnotateConfig) -> str:
    if model_versions.is_reference(config.tagger.model):
        return model_versions.resolve(config.tagger.model).reference
    return find_job_tagger(config).digest
