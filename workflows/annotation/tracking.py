"""Log an annotation run to MLflow, linked to the version of the model that it used."""

from collections.abc import Mapping
from pathlib import Path

from concord.models.errors import ConfigError
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output.manifest import Manifest
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.atomic_writes import write_atomically
from concord.pipeline.storage.guarded import names_in, remove_tree
from concord.pipeline.storage.output_paths import read_bytes
from concord.workflows.annotation.summary import total_counts
from concord.workflows.environment import code_tags
from concord.workflows.registry import outbox
from concord.workflows.yaml_values import flatten

PLAN_TAG = "concord.plan"
LOGGED_FILES = ("report.html", "config.resolved.yaml", "stats.json")


def log_run(
    config: AnnotateConfig, tagger: ResolvedTagger, report: RunReport, *, folder: OutputFolder, manifest: Manifest
) -> None:
    """Log a run, once; if the store is down, warn.

    Raises:
        ConfigError: when the output is not a local folder.
    """
    if not isinstance(report.output, Path):
        # The outbox, which shows that a run was logged and waits for a server that is down, is a local folder.
        raise ConfigError("runs are logged only if their output is a local folder, and this one is in a store")
    place = report.output / outbox.COLLECTION_OUTBOX / str(manifest.generation)
    existing = outbox.existing_entry(place)
    if existing is not None and existing.tags.get(PLAN_TAG) == manifest.plan:
        if not existing.sent:
            outbox.send_or_warn(place)
        return
    # Copied, since the next run replaces these files and the store may be down until then.
    files = [name for name in LOGGED_FILES if (folder.metadata / name).exists()]
    for name in files:
        write_atomically(place / name, read_bytes(folder.metadata / name), staging=folder.staging)
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
        metrics=_metrics(report, counts=total_counts(manifest)),
        files=files,
    )
    for name in names_in(place.parent):
        if name != place.name and outbox.read_entry(place.parent / name).sent:
            remove_tree(place.parent / name)


def _metrics(report: RunReport, *, counts: Mapping[str, int]) -> dict[str, float]:
    """Return outcome, changes and counts of the collection, and the rates of the call that finished it."""
    outcome = {name: getattr(report, name) for name in ("read", "annotated", "unchanged", "dead_letters", "shards")}
    seconds = {**report.seconds, "run": report.wall_seconds}
    return {
        **outcome,
        **({"dead_letter_share": report.dead_letters / report.read} if report.read else {}),
        **{f"changes.{name}": number for name, number in report.changes.model_dump().items()},
        **{f"counts.{name}": count for name, count in counts.items()},
        **{f"words_per_second.{stage}": report.words / taken for stage, taken in seconds.items() if taken},
    }
