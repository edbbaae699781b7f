"""Read the job of an annotation, strict YAML with overrides from ``--set``, and resolve it.

A mistake in a file or an override is a ConfigError that names the file and the key.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from concord.models.config import Config, flatten
from concord.models.errors import ConfigError, ModelError
from concord.pipeline.config import AnnotateConfig, OutputConfig, ParserConfig, TaggerRunConfig
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.output_folder import SETTINGS_NAME, OutputFolder
from concord.workflows.console import info
from concord.workflows.job_files import make_paths_absolute, nested, parse_override, read_yaml, set_value
from concord.workflows.registry import find_entity_tagger

JOB_SUFFIXES = {".yaml", ".yml"}
"""How the names of job files end."""
_OPTION_KEYS = {
    "output": "output.path",
    "model": "tagger.model",
    "terms": "tagger.terms",
    "device": "tagger.device",
    "executor": "executor.kind",
    "actors": "executor.actors",
    "threads": "executor.threads",
    "keep": "output.keep",
    "limit": "limit",
    "rehash": "planning.rehash",
    "retry": "planning.retry",
    "trees": "parser.trees",
}


def job_values(options: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the dotted keys of an annotation job that options of a command or function set; None sets nothing.

    Settings are further keys, dotted or nested. They win over options, as ``--set`` does.
    """
    chosen = {_OPTION_KEYS[name]: value for name, value in options.items() if value is not None}
    return {**chosen, **flatten(settings or {})}


def read_annotate_job(
    path: Path | None, *, values: Mapping[str, Any] | None = None, overrides: Sequence[str] = ()
) -> AnnotateConfig:
    """Return the annotation job of a file, of values, or of both, with absolute paths.

    An output that is a plain string is a path, and leaves the other keys of its section as they are.

    Args:
        values: dotted key -> value, from options of the command line; they take precedence over the file.
        overrides: ``key=value`` of ``--set``; they take precedence over everything.
    """
    job = read_yaml(path) if path is not None else {}
    if isinstance(output := job.get("output"), str):
        job["output"] = {"path": output}
    for key, value in [*(values or {}).items(), *map(parse_override, overrides)]:
        set_value(job, "output.path" if key == "output" and isinstance(value, str) else key, value)
    make_paths_absolute(job)
    return AnnotateConfig.from_mapping(job, where=str(path or ""))


def resolve_job(config: AnnotateConfig) -> ResolvedJob:
    """Add the settings of the collection to a job of ``read_annotate_job``, tell which, and find tagger and parser.

    Raises:
        PlanError: when the output holds a collection that cannot be read.
        ModelError, ConfigError, InputError: see ``find_entity_tagger`` and ``ResolvedJob.of``.
    """
    folder = OutputFolder(config.output.path)
    config, taken = with_settings_of_collection(config, folder)
    if taken:
        settings = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in taken.items())
        info(f"Settings of the collection: {', '.join(settings)}")
    try:
        tagger = find_entity_tagger(config.tagger.model)
    except ModelError as error:
        if "tagger.model" not in taken:
            raise
        raise ModelError(
            f"{error}\n{config.tagger.model} is the tagger with which {config.output.path} was annotated last, since "
            "the job names none. Name one in the job, as tagger.model: of the bundled taggers, `concord submit` sends "
            "only the one that the job names, or that of an output which it sees."
        ) from error
    return ResolvedJob.of(config, folder, tagger, taken=taken)


def with_settings_of_collection(config: AnnotateConfig, folder: OutputFolder) -> tuple[AnnotateConfig, dict[str, Any]]:
    """Return a job in which the keys that nobody gave have the values with which the collection was last annotated.

    Returns:
        The job, and what was taken: dotted key -> value, where it is not the default.

    Raises:
        PlanError: when the output holds a collection that cannot be read.
    """
    defaults = AnnotateConfig(input="", output=OutputConfig(path="")).lasting
    try:
        # Whoever wrote the file decides neither where a run works nor what it may do.
        settings = {key: value for key, value in read_yaml(folder.metadata / SETTINGS_NAME).items() if key in defaults}
    except ConfigError:  # not there, or damaged
        settings = {} if folder.latest_generation() is None else folder.plan().config.lasting
    given = flatten(config.model_dump(mode="json", exclude_unset=True))
    taken = {key: value for key, value in settings.items() if key not in given}
    if not taken:
        return config, {}
    config = AnnotateConfig.from_mapping(nested({**taken, **given}), where=str(folder.metadata / SETTINGS_NAME))
    return config, {key: value for key, value in taken.items() if value != defaults[key]}


class TextConfig(Config):
    """The sections of an annotation job that apply to texts in memory."""

    parser: ParserConfig = ParserConfig()
    tagger: TaggerRunConfig = TaggerRunConfig()


def read_text_config(options: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> TextConfig:
    """Return how to annotate texts in memory; options and settings are those of ``job_values``."""
    job = nested(job_values(options, settings))
    make_paths_absolute(job)
    return TextConfig.from_mapping(job)
