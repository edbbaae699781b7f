"""Annotation runs: ``concord annotate``, its dry run and its record in MLflow."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, repeat
from typing import Any

from concord.models.config import flatten
from concord.pipeline.annotate import annotate, dry_run
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.run_stats import STATS_NAME, read_stats
from concord.pipeline.output.shard_stats import collection_counts, total_counts
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.output_paths import read_bytes
from concord.workflows.annotation.summary import describe_changes, describe_run
from concord.workflows.console import Answer, counted, plain, table, warn
from concord.workflows.mlflow_client import EXPERIMENT, TrackingError, code_tags, open_run
from concord.workflows.progress import RunProgress
from concord.workflows.registry import is_reference

SHOWN_DOCUMENTS = 10
"""Of each kind of change, in a dry run."""
RECORDED_FILES = ("report.html", STATS_NAME)


def annotate_collection(job: ResolvedJob) -> Answer:
    """Annotate everything that the output does not hold yet."""
    executor = job.config.executor
    if executor.kind == "local" and (executor.actors or executor.worker_memory_bytes):
        warn("executor.actors, executor.worker_memory_bytes: read only with --executor ray, and ignored now")
    registered = is_reference(job.config.tagger.model)
    before = _generation(job) if registered else None
    with closing(RunProgress()) as progress:
        report = annotate(job, progress=progress)
    collection = open_collection(job.folder)
    manifest = collection.manifest
    if registered and _generation(job) != before:
        log_run(report, collection)
    return Answer(
        values={
            **_values(report, job.tagger),
            "collection": collection_counts(manifest),
            "counts": total_counts(manifest.shards),
            "taken": job.taken,
        },
        text=describe_run(report, config=job.config, collection=collection),
        exit_code=report.exit_code,
    )


def preview(job: ResolvedJob) -> Answer:
    """Report what a run would do, without writing anything."""
    config, report = job.config, dry_run(job)
    seconds = _expected_seconds(job.folder, report)
    rows = [
        ("input", config.input),
        ("output", config.output.path),
        ("files", _files(report)),
        ("records", f"{report.read:,}, of which {report.changes.unchanged:,} documents are unchanged"),
        *zip(chain(["changes"], repeat("")), describe_changes(report), strict=False),
        *chain.from_iterable(_named_rows(kind, ids) for kind, ids in report.named.items()),
        ("shards", f"{report.shards - report.done_before:,} to do"),
        ("time", "unknown: no run has been timed here yet" if seconds is None else f"about {seconds:,.0f} s"),
        ("parser", config.parser.package if config.parser.trees else f"{config.parser.package}, without trees"),
        ("tagger", job.tagger.identity.description),
        ("executor", _executor(config)),
    ]
    values = {"dry_run": True, "taken": job.taken, "named": report.named, "expected_seconds": seconds, "config": config}
    return Answer(
        values=_values(report, job.tagger) | values,
        text=f"{table(rows)}\n\nNothing was written; run without --dry-run to start.",
    )


def log_run(report: RunReport, collection: Collection) -> None:
    """Log a finished run with a registered model; a store that does not answer costs a warning."""
    plan = collection.plan
    try:
        parameters = flatten(plan.config.model_dump(mode="json"))
        tags = {
            "concord.kind": "annotation",
            "concord.model": f"models:/{plan.tagger.name}/{plan.tagger.version}",
            "concord.digest": plan.tagger.digest,
            "concord.plan": plan.digest,
            **code_tags(),
        }
        with open_run(experiment=EXPERIMENT, name=report.output.name, parameters=parameters, tags=tags) as run:
            run.log_metrics(_metrics(report, collection), step=0)
            for name in RECORDED_FILES:
                if (path := collection.folder.metadata / name).exists():
                    run.log_text(name, read_bytes(path).decode())
    except (OSError, TrackingError) as error:
        warn(f"the run is complete, but MLflow could not record it: {error}")


def _executor(config: AnnotateConfig) -> str:
    """Describe where shards are to be done."""
    if config.executor.kind == "local":
        return "local"
    actors = config.executor.num_actors(config.tagger.device)
    return f"ray, {'as many actors as its GPUs have room for' if actors is None else counted(actors, 'actor')}"


def _files(report: RunReport) -> str:
    """Count the files by format; a warning has named those that are skipped, and why."""
    skipped = [f"{report.ignored:,} skipped, whose names end in no known suffix"] if report.ignored else []
    return ", ".join([*(f"{count:,} {format}" for format, count in report.formats.items()), *skipped])


def _named_rows(kind: str, ids: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the rows that name the first documents of a kind of change."""
    yield from zip(chain(["tag again" if kind == "again" else kind], repeat("")), ids[:SHOWN_DOCUMENTS], strict=False)
    if len(ids) > SHOWN_DOCUMENTS:
        yield ("", f"... and {len(ids) - SHOWN_DOCUMENTS:,} more; --json names all")


def _generation(job: ResolvedJob) -> str | None:
    """Return the name of the current generation, which a run that changes nothing leaves."""
    current = job.folder.generations.current()
    return None if current is None else current.name


def _expected_seconds(folder: OutputFolder, report: RunReport) -> float | None:
    """Estimate the time of a run from the time per document of earlier runs; None if there are none."""
    stats, manifest = read_stats(folder), folder.manifest()
    counts = total_counts(manifest.shards) if manifest is not None else {}
    if not counts.get("documents") or not stats.words_per_second:
        return None
    words = counts["tokens"] / counts["documents"]
    changes = report.changes
    to_parse = changes.new + changes.changed + changes.again - changes.parsed
    # Documents whose parses are reused take only the share of the time that the other stages take.
    without_parser = 1 - stats.seconds["parse"] / max(sum(stats.seconds.values()), 1e-9)
    return words * (to_parse + changes.parsed * without_parser) / stats.words_per_second


def _values(report: RunReport, tagger: ResolvedTagger) -> dict[str, Any]:
    values: dict[str, Any] = plain(report)
    del values["named"]
    return {**values, "words_per_second": report.words_per_second, "tagger": tagger.identity}


def _metrics(report: RunReport, collection: Collection) -> dict[str, float]:
    """Return outcome, changes and counts of a run, and the words that it annotated in a second of work."""
    outcome = ("read", "annotated", "unchanged", "dead_letters", "shards")
    return {
        **{name: getattr(report, name) for name in outcome},
        "dead_letter_share": report.dead_letters / report.read if report.read else 0.0,
        **{f"changes.{name}": number for name, number in report.changes.model_dump().items()},
        **{f"counts.{name}": count for name, count in total_counts(collection.manifest.shards).items()},
        "words_per_second.run": report.words_per_second,
    }
