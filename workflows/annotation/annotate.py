"""Annotation runs: ``concord annotate``, its dry run, and ``concord errors retry``."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from concord.models.errors import ConcordError, ConfigError
from concord.pipeline.annotate import annotate, dry_run
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.dead_letters import DeadLetterFilter
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.shard_stats import backed_off, collection_counts, total_counts
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.annotation.inspection import describe_no_match, existing_dead_letters
from concord.workflows.annotation.job import (
    annotate_config,
    find_job_tagger,
    last_config,
    names_model,
    with_settings_of_collection,
)
from concord.workflows.annotation.progress import RunProgress
from concord.workflows.annotation.summary import describe_changes, describe_component, describe_run
from concord.workflows.annotation.tracking import read_runs
from concord.workflows.console import Answer, counted, info, plain, table, warn
from concord.workflows.registry.model_versions import is_reference
from concord.workflows.registry.resolve_tagger import FALLBACK
from concord.workflows.registry.run_records import describe_sync, send_or_warn

SHOWN_DOCUMENTS = 10
"""Of each kind of change, in a dry run."""


def annotate_collection(config: AnnotateConfig) -> Answer:
    """Annotate everything that the output does not hold yet, with the collection's settings where none are given."""
    config, taken = _complete(config)
    _warn_of_ray_settings(config)
    tagger = find_job_tagger(config)
    if tagger.name == FALLBACK and not names_model(config):
        # Later runs keep to this tagger, whatever is installed then.
        config = config.model_copy(update={"tagger": config.tagger.model_copy(update={"model": FALLBACK})})
    answer = _run(config, tagger)
    return replace(answer, values={**answer.values, "taken": taken})


def retry_dead_letters(output: OutputPath, selection: DeadLetterFilter, *, overrides: Sequence[str]) -> Answer:
    """Process dead letters again, and change nothing else.

    Args:
        overrides: ``key=value`` over the run's own configuration; they must not affect labels.

    Raises:
        ConfigError: when there are dead letters, and none of them matches.
    """
    folder = OutputFolder(output)
    plan, existing = folder.plan(), existing_dead_letters(folder)
    if selection != DeadLetterFilter() and not any(map(selection.matches, existing)):
        manifest = folder.manifest()
        # Those that match may have been done by a retry that was interrupted before it was published.
        if existing and manifest is not None and manifest.plan == plan.digest:
            raise ConfigError(describe_no_match(existing, output=output))
        info(describe_no_match(existing, output=output))
    job = (last_config(folder) or plan.config).model_dump(mode="json")
    job["output"]["path"] = str(folder.output)
    config = annotate_config(job, overrides=overrides)
    return _run(
        config,
        ResolvedTagger(**plan.tagger.model_dump(exclude={"terms"}), folder=Path(plan.tagger_folder)),
        retry=selection,
    )


def preview(config: AnnotateConfig) -> Answer:
    """Report what a run would do, without writing anything."""
    config, taken = _complete(config)
    tagger = find_job_tagger(config)
    report = dry_run(config, tagger=tagger)
    executor = config.executor
    seconds = _expected_seconds(report)
    rows = [
        ("input", config.input),
        ("output", config.output.path),
        ("records", f"{report.read:,}, of which {report.changes.unchanged:,} documents are unchanged"),
        *zip(chain(["changes"], repeat("")), describe_changes(report), strict=False),
        *chain.from_iterable(_named_rows(kind, ids) for kind, ids in report.named.items()),
        ("shards", f"{report.shards - report.done_before:,} to do"),
        ("time", "unknown: no run has been timed here yet" if seconds is None else f"about {seconds:,.0f} s"),
        ("parser", config.parser.package if config.parser.trees else f"{config.parser.package}, without trees"),
        ("tagger", describe_component(tagger.identity)),
        ("executor", f"ray, {counted(executor.actors, 'actor')}" if executor.kind == "ray" else executor.kind),
    ]
    values = {"dry_run": True, "taken": taken, "named": report.named, "expected_seconds": seconds, "config": config}
    return Answer(
        values=_values(report, tagger) | values,
        text=f"{table(rows)}\n\nNothing was written; run without --dry-run to start.",
    )


def _warn_of_ray_settings(config: AnnotateConfig) -> None:
    """Warn of settings that only the Ray executor reads."""
    chosen = config.executor.model_dump(exclude_defaults=True)
    ignored = [name for name in ("actors", "gpus", "parse_actors", "worker_memory_bytes") if name in chosen]
    if ignored and config.executor.kind == "local":
        warn(f"executor.{', executor.'.join(ignored)}: read only with --executor ray, and ignored now")


def _named_rows(kind: str, ids: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the rows that name the first documents of a kind of change."""
    yield from zip(chain(["tag again" if kind == "again" else kind], repeat("")), ids[:SHOWN_DOCUMENTS], strict=False)
    if len(ids) > SHOWN_DOCUMENTS:
        yield ("", f"... and {len(ids) - SHOWN_DOCUMENTS:,} more; --json names all")


def _complete(config: AnnotateConfig) -> tuple[AnnotateConfig, dict[str, Any]]:
    """Return a job with the settings of the collection, and name those that are not the defaults."""
    config, taken = with_settings_of_collection(config)
    if taken:
        settings = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in taken.items())
        info(f"Settings of the collection: {', '.join(settings)}")
    return config, taken


def _run(config: AnnotateConfig, tagger: ResolvedTagger, *, retry: DeadLetterFilter | None = None) -> Answer:
    with closing(RunProgress()) as progress:
        report = annotate(config, tagger=tagger, retry=retry, progress=progress)
    collection = open_collection(report.output)
    manifest = collection.manifest
    if is_reference(config.tagger.model):
        try:
            send_or_warn(read_runs(report.output), report.output)
        except (OSError, ConcordError) as error:
            warn(f"the run is complete, but MLflow could not record it: {error}\n  {describe_sync(report.output)}")
    steps = {name: step.name.lower() for name, step in backed_off(manifest.shards).items()}
    return Answer(
        values={
            **_values(report, tagger),
            "collection": collection_counts(manifest),
            "counts": total_counts(manifest.shards),
            "backed_off": steps,
        },
        text=describe_run(report, config=config, collection=collection),
        exit_code=report.exit_code,
    )


def _expected_seconds(report: RunReport) -> float | None:
    """Estimate the time of a run from the time per document of earlier runs; None if there are none."""
    folder = OutputFolder(report.output)
    stats, manifest = folder.stats(), folder.manifest()
    counts = total_counts(manifest.shards) if manifest is not None else {}
    rate = stats.get("words_per_second", {}).get("run")
    if not counts.get("documents") or not rate:
        return None
    words = counts["tokens"] / counts["documents"]
    changes = report.changes
    to_parse = changes.new + changes.changed + changes.again - changes.parsed
    # Documents whose parses are reused take only the share of the time that the other stages take.
    seconds = stats["seconds"]
    without_parser = 1 - seconds["parse"] / max(sum(seconds.values()), 1e-9)
    return float(words * (to_parse + changes.parsed * without_parser) / rate)


def _values(report: RunReport, tagger: ResolvedTagger) -> dict[str, Any]:
    values: dict[str, Any] = plain(report)
    del values["named"]
    return {**values, "words_per_second": report.words_per_second, "tagger": tagger.identity}
