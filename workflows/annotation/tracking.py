"""Annotation runs as MLflow records them: the generations of a collection, linked to the version of the model used."""

from collections.abc import Iterator

from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.output.generations import Generation
from concord.pipeline.output.output_folder import CONFIG_NAME, STATS_NAME, OutputFolder
from concord.pipeline.output.shard_stats import PastGeneration, past_generations, total_counts
from concord.pipeline.plan import Plan
from concord.workflows.environment import code_tags
from concord.workflows.job_files import flatten
from concord.workflows.registry.model_versions import is_reference
from concord.workflows.registry.run_records import EXPERIMENT, Metrics, RunRecord

PLAN_TAG = "concord.plan"
RECORDED_FILES = ("report.html", CONFIG_NAME, STATS_NAME)


def read_runs(folder: OutputFolder) -> Iterator[RunRecord]:
    """Yield the records of a collection's runs with registered models, the newest first.

    Of a generation that is removed, ``stats.json`` has the model, the times and some of the counts. The files are those
    of the newest run.
    """
    kept = {generation.name: generation for generation in folder.generations.history()}
    generations = past_generations(folder)
    for past in reversed(generations):
        if is_reference(past.stats.get("model", "")) and past.stats.get("finished"):
            yield _record(folder, past, kept.get(past.name), is_newest=past is generations[-1])


def _record(folder: OutputFolder, past: PastGeneration, kept: Generation | None, *, is_newest: bool) -> RunRecord:
    stats = past.stats
    tagger = ComponentIdentity.from_mapping(stats["tagger"], where=str(folder.metadata / STATS_NAME))
    ended_ms = int(1000 * stats["finished"])
    files = {name: folder.metadata / name for name in RECORDED_FILES if is_newest}
    plan = None if kept is None else kept.plan()
    return RunRecord(
        folder=folder.output,
        # Equal plans have equal digests, wherever and whenever they are carried out.
        key=f"{stats['plan']} {ended_ms}",
        experiment=EXPERIMENT,
        started_ms=ended_ms - int(1000 * stats.get("seconds", 0.0)),
        ended_ms=ended_ms,
        status="FINISHED",
        parameters={} if plan is None else flatten(plan.config.model_dump(mode="json")),
        tags={
            "concord.kind": "annotation",
            "concord.model": f"models:/{tagger.name}/{tagger.version}",
            "concord.digest": tagger.digest,
            PLAN_TAG: stats["plan"],
            **(code_tags() if is_newest else {}),
        },
        metrics=[Metrics(step=0, time_ms=ended_ms, values=_metrics(past, kept, plan))],
        files={name: path for name, path in files.items() if path.exists()},
    )


def _metrics(past: PastGeneration, kept: Generation | None, plan: Plan | None) -> dict[str, float]:
    """Return outcome, changes and counts of a generation, and the words that it annotated in a second of work."""
    known = dict(past.stats.get("counts", {}))
    metrics: dict[str, float] = {name: known.pop(name) for name in ("read", "dead_letters") if name in known}
    if kept is not None and plan is not None:
        manifest = kept.manifest()
        metrics |= {"annotated": manifest.annotated, "unchanged": manifest.unchanged, "shards": len(plan.shards)}
        metrics |= {f"changes.{name}": number for name, number in plan.changes.model_dump().items()}
        known |= total_counts(manifest.shards)
    if metrics.get("read"):
        metrics["dead_letter_share"] = metrics["dead_letters"] / metrics["read"]
    metrics |= {f"counts.{name}": count for name, count in known.items()}
    if past.words_per_second is not None:
        metrics["words_per_second.run"] = past.words_per_second
    return metrics
