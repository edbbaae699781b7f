"""One annotation run."""

from dataclasses import asdict
from typing import Any

from pipeline.annotate import ResolvedTagger, RunReport, annotate, dry_run
from pipeline.commits import RunFolder
from pipeline.config import AnnotateConfig
from pipeline.errors import IntegrityError
from pipeline.signatures import ComponentIdentity
from workflows.config import names_model
from workflows.console import Answer, counted, table
from workflows.progress import RunProgress
from workflows.summary import component, describe_run, total_counts
from workflows.taggers import find_entity_tagger


def run(config: AnnotateConfig) -> Answer:
    """Annotate what is not annotated yet.

    Raises:
        ConcordError: as ``pipeline.annotate.annotate`` does; what is committed stays.
    """
    tagger = find_entity_tagger(config.tagger.model, named=names_model(config))
    with RunProgress() as progress:
        report = annotate(config, tagger=tagger, progress=progress)
    folder = RunFolder(report.output)
    plan, manifest = folder.plan(), folder.manifest()
    if manifest is None:
        raise IntegrityError(f"{folder.manifest_path}: gone as soon as the run was finished; run the command again")
    return Answer(
        values={**_values(report, tagger), "counts": total_counts(manifest)},
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
    identity = ComponentIdentity(name=tagger.name, version=tagger.version, digest=tagger.digest)
    left = report.shards - report.done_before
    rows = [
        ("input", config.input),
        ("output", config.output),
        ("records", f"{report.read:,} in {counted(report.shards, 'shard')}, {left:,} to do"),
        ("parser", config.parser.package),
        ("tagger", component(identity)),
        ("executor", f"ray, {counted(executor.actors, 'actor')}" if executor.kind == "ray" else executor.kind),
    ]
    return Answer(
        values={**_values(report, tagger), "dry_run": True, "config": config.model_dump(mode="json")},
        text=f"{table(rows)}\n\nNothing was written; leave --dry-run out to start.",
    )


def _values(report: RunReport, tagger: ResolvedTagger) -> dict[str, Any]:
    return {
        **asdict(report),
        "output": str(report.output),
        "report": str(report.report) if report.report is not None else None,
        "words_per_second": report.words_per_second,
        "tagger": {"name": tagger.name, "version": tagger.version, "digest": tagger.digest},
    }
