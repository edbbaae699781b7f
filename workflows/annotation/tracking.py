"""An annotation run as MLflow shows it, linked to the version of the model that it used."""

import tempfile
from pathlib import Path

from concord.pipeline.output.collection import Collection
from concord.pipeline.output.output_folder import CONFIG_NAME, STATS_NAME
from concord.pipeline.output.shard_stats import total_counts
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.output_paths import read_bytes
from concord.workflows.console import warn
from concord.workflows.environment import code_tags
from concord.workflows.job_files import flatten
from concord.workflows.registry.mlflow_client import EXPERIMENT, TrackingError, open_run

RECORDED_FILES = ("report.html", CONFIG_NAME, STATS_NAME)


def log_run(report: RunReport, collection: Collection) -> None:
    """Log a finished run with a registered model; a store that does not answer costs a warning."""
    plan = collection.plan
    try:
        run = open_run(
            experiment=EXPERIMENT,
            name=report.output.name,
            parameters=flatten(plan.config.model_dump(mode="json")),
            tags={
                "concord.kind": "annotation",
                "concord.model": f"models:/{plan.tagger.name}/{plan.tagger.version}",
                "concord.digest": plan.tagger.digest,
                "concord.plan": plan.digest,
                **code_tags(),
            },
        )
        run.log_metrics(_metrics(report, collection), step=0)
        with tempfile.TemporaryDirectory() as folder:
            for name in RECORDED_FILES:
                if (path := collection.folder.metadata / name).exists():
                    (Path(folder) / name).write_bytes(read_bytes(path))
                    run.log_file(Path(folder) / name)
        run.close("FINISHED")
    except (OSError, TrackingError) as error:
        warn(f"the run is complete, but MLflow could not record it: {error}")


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
