"""Log an annotation run to MLflow, linked to the version of the model that it used."""

from pathlib import Path

from concord.models.errors import ConfigError
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output.collection import Collection
from concord.pipeline.output.output_folder import CONFIG_NAME, STATS_NAME
from concord.pipeline.output.shard_stats import total_counts
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.atomic_writes import write_atomically
from concord.pipeline.storage.guarded import names_in, remove_tree
from concord.pipeline.storage.output_paths import read_bytes, staging_folder
from concord.workflows.environment import code_tags
from concord.workflows.registry import outbox
from concord.workflows.yaml_values import flatten

PLAN_TAG = "concord.plan"
LOGGED_FILES = ("report.html", CONFIG_NAME, STATS_NAME)


def log_run(config: AnnotateConfig, tagger: ResolvedTagger, report: RunReport, *, collection: Collection) -> None:
    """Log a run, once; if the store is down, warn.

    Raises:
        ConfigError: when the output is not a local folder.
    """
    if not isinstance(report.output, Path):
        # The outbox, which shows that a run was logged and waits for a server that is down, is a local folder.
        raise ConfigError("runs are logged only if their output is a local folder, and this one is in a store")
    manifest, metadata = collection.manifest, report.output / "_run"
    place = report.output / outbox.COLLECTION_OUTBOX / str(manifest.generation)
    existing = outbox.existing_entry(place)
    if existing is not None and existing.tags.get(PLAN_TAG) == manifest.plan:
        if not existing.sent:
            outbox.send_or_warn(place)
        return
    # Copied, since the next run replaces these files and the store may be down until then.
    files = [name for name in LOGGED_FILES if (metadata / name).exists()]
    for name in files:
        write_atomically(place / name, read_bytes(metadata / name), staging=staging_folder(report.output))
    outbox.log_finished_run(
        place,
        experiment=outbox.EXPERIMENT,
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
        metrics=_metrics(report, collection),
        files=files,
    )
    for name in names_in(place.parent):
        if name != place.name and outbox.read_entry(place.parent / name).sent:
            remove_tree(place.parent / name)


def _metrics(report: RunReport, collection: Collection) -> dict[str, float]:
    """Return outcome, changes and counts of the generation, and the rates of the call that finished it."""
    manifest, plan = collection.manifest, collection.plan
    outcome = {name: getattr(manifest, name) for name in ("read", "annotated", "unchanged", "dead_letters")}
    seconds = {**report.seconds, "run": report.wall_seconds}
    return {
        **outcome,
        "shards": len(plan.shards),
        **({"dead_letter_share": manifest.dead_letters / manifest.read} if manifest.read else {}),
        **{f"changes.{name}": number for name, number in plan.changes.model_dump().items()},
        **{f"counts.{name}": count for name, count in total_counts(manifest.shards).items()},
        **{f"words_per_second.{stage}": report.words / taken for stage, taken in seconds.items() if taken},
    }
