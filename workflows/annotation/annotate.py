"""One annotation run."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from concord.models.config import ConfigError
from concord.pipeline.annotate import RunReport, annotate, dry_run
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.errors import ConcordError, IntegrityError
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output.manifest import Manifest
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.shard_stats import backed_off
from concord.workflows.annotation.progress import RunProgress
from concord.workflows.annotation.summary import describe_changes, describe_component, describe_run, total_counts
from concord.workflows.console import Answer, counted, table, warn
from concord.workflows.environment import code_tags
from concord.workflows.jobs import flatten, names_model
from concord.workflows.registry.model_versions import is_reference
from concord.workflows.registry.outbox import (
    COLLECTION_OUTBOX,
    EXPERIMENT,
    existing_entry,
    log_finished_run,
    read_entry,
    send_or_warn,
)
from concord.workflows.registry.resolve_tagger import find_entity_tagger

PLAN_TAG = "concord.plan"
KEPT = ("report.html", "config.resolved.yaml", "stats.json")


def run(config: AnnotateConfig) -> Answer:
    """Annotate what is not annotated yet.

    Raises:
        ConcordError: as ``concord.pipeline.annotate.annotate`` does; what is committed stays.
    """
    tagger = find_entity_tagger(config.tagger.model, named=names_model(config))
    with RunProgress() as progress:
        report = annotate(config, tagger=tagger, progress=progress)
    return describe(report, config=config, tagger=tagger)


def describe(report: RunReport, *, config: AnnotateConfig, tagger: ResolvedTagger) -> Answer:
    """Say what a run did, to the caller and, where the tagger is of the registry, to MLflow.

    Raises:
        IntegrityError: when its manifest is gone.
    """
    folder = OutputFolder(report.output)
    plan, manifest = folder.plan(), folder.manifest()
    if manifest is None:
        raise IntegrityError(f"{folder.manifest_path}: gone as soon as the run was finished; run the command again")
    if is_reference(config.tagger.model):
        _try_track(config, tagger, report, folder=folder, manifest=manifest)
    return Answer(
        values={
            **_values(report, tagger),
            "counts": total_counts(manifest),
            "backed_off": {name: step.name.lower() for name, step in backed_off(manifest.shards).items()},
        },
        text=describe_run(report, config=config, plan=plan, manifest=manifest),
        exit_code=report.exit_code,
    )


def preview(config: AnnotateConfig) -> Answer:
    """Say what a run would do; nothing is written.

    Raises:
        ConcordError: as a run would, before its first shard.
    """
    tagger = find_entity_tagger(config.tagger.model, named=names_model(config))
    report = dry_run(config, tagger=tagger)
    executor = config.executor
    left = report.shards - report.done_before
    seconds = _expected_seconds(report)
    rows = [
        ("input", config.input),
        ("output", config.output),
        ("records", f"{report.read:,}, of which {report.changes.unchanged:,} documents stay as they are"),
        *zip(chain(["changes"], repeat("")), describe_changes(report), strict=False),
        ("shards", f"{left:,} to do"),
        ("time", "unknown: nothing has been timed here yet" if seconds is None else f"about {seconds:,.0f} s"),
        ("parser", config.parser.package),
        ("tagger", describe_component(tagger.identity)),
        ("executor", f"ray, {counted(executor.actors, 'actor')}" if executor.kind == "ray" else executor.kind),
    ]
    return Answer(
        values={
            **_values(report, tagger),
            "dry_run": True,
            "expected_seconds": seconds,
            "config": config.model_dump(mode="json"),
        },
        text=f"{table(rows)}\n\nNothing was written; leave --dry-run out to start.",
    )


def _try_track(
    config: AnnotateConfig, tagger: ResolvedTagger, report: RunReport, *, folder: OutputFolder, manifest: Manifest
) -> None:
    try:
        _track(config, tagger, report, folder=folder, manifest=manifest)
    except (OSError, ConcordError, ConfigError) as error:
        warn(f"the run is done and whole, but there is no record of it for MLflow: {error}")


def _track(
    config: AnnotateConfig, tagger: ResolvedTagger, report: RunReport, *, folder: OutputFolder, manifest: Manifest
) -> None:
    """Log a run whose tagger came from the registry, once, linked to the version."""
    if not isinstance(report.output, Path):
        # What tells that a run is logged already, and waits for a server that is down, is a folder of the collection.
        raise ConfigError("a run is recorded from the folder that it wrote, and this one wrote to S3")
    outbox = report.output / COLLECTION_OUTBOX
    place = outbox / str(manifest.generation)
    standing = existing_entry(place)
    if standing is not None and standing.tags.get(PLAN_TAG) == manifest.plan:
        if not standing.sent:
            send_or_warn(place)
        return
    place.mkdir(parents=True, exist_ok=True)
    # Copies: the next run writes over what stands in the collection, and the store may be down till then.
    files = [name for name in KEPT if (folder.run / name).exists()]
    for name in files:
        (place / name).write_bytes((folder.run / name).read_bytes())
    log_finished_run(
        place,
        experiment=EXPERIMENT,
        name=report.output.name,
        seconds=report.wall_seconds,
        parameters=flatten(config.model_dump(mode="json")),
        tags={
            "concord.kind": "annotation",
            "concord.model": f"models:/{tagger.name}/{tagger.version}",
            "concord.digest": tagger.digest,
            PLAN_TAG: manifest.plan,
            **code_tags(),
        },
        metrics=_metrics(report, counts=total_counts(manifest)),
        files=files,
    )
    for earlier in set(outbox.iterdir()) - {place}:
        if read_entry(earlier).sent:
            shutil.rmtree(earlier)


def _metrics(report: RunReport, *, counts: Mapping[str, int]) -> dict[str, float]:
    """Give outcome, changes and counts of a collection, and the rates of the call that finished it."""
    outcome = {name: getattr(report, name) for name in ("read", "annotated", "unchanged", "dead_letters", "shards")}
    share = {"dead_letter_share": report.dead_letters / report.read} if report.read else {}
    seconds = {**report.seconds, "run": report.wall_seconds}
    return {
        **outcome,
        **share,
        **{f"changes.{name}": number for name, number in report.changes.model_dump().items()},
        **{f"counts.{name}": count for name, count in counts.items()},
        **{f"words_per_second.{stage}": report.words / taken for stage, taken in seconds.items() if taken},
    }


def _expected_seconds(report: RunReport) -> float | None:
    """Estimate the time of a run from what earlier ones have taken for each document; None where there were none."""
    folder = OutputFolder(report.output)
    stats, manifest = folder.stats(), folder.manifest()
    counts = total_counts(manifest) if manifest is not None else {}
    rate = stats.get("words_per_second", {}).get("run")
    if not counts.get("documents") or not rate:
        return None
    words = counts["tokens"] / counts["documents"]
    found = report.changes
    to_parse = found.new + found.changed + found.again - found.parsed
    # Without parsing, a run takes the share of its time that its other stages take.
    seconds = stats["seconds"]
    without_parser = 1 - seconds["parse"] / max(sum(seconds.values()), 1e-9)
    return float(words * (to_parse + found.parsed * without_parser) / rate)


def _values(report: RunReport, tagger: ResolvedTagger) -> dict[str, Any]:
    return {
        **asdict(report),
        "output": str(report.output),
        "changes": report.changes.model_dump(),
        "report": str(report.report) if report.report is not None else None,
        "words_per_second": report.words_per_second,
        "tagger": {"name": tagger.name, "version": tagger.version, "digest": tagger.digest},
    }
