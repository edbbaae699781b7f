"""``concord registry sync``: send what runs have written in their folders, as far as MLflow lacks it.

A run that cannot be sent does not stop the others; an MLflow that does not answer does.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from concord.models.errors import ConcordError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.annotation.tracking import read_runs
from concord.workflows.console import Answer, counted, info, table, warn
from concord.workflows.registry.mlflow_client import REFUSAL, TrackingError, tracking_uri
from concord.workflows.registry.run_records import RunRecord, send, unsent
from concord.workflows.training.tracking import RUN_NAME, read_training


def sync_command(places: Sequence[OutputPath]) -> Answer:
    """Send the runs that MLflow lacks; exit code 1 if one cannot be sent.

    Args:
        places: trainings, collections, or local folders that hold some.

    Raises:
        TrackingError: when MLflow does not answer.
    """
    folders = find_folders(places)
    outcomes: dict[str, list[dict[str, str | None]]] = {"sent": [], "at_work": [], "failed": []}
    for folder in folders:
        for outcome, details in _sync(folder):
            outcomes[outcome].append({"folder": str(folder), **details})
    sent, at_work, failed = outcomes.values()
    rows = [(run["folder"], run["registered"]) for run in sent]
    counts = f"{counted(len(sent), 'run')} sent, {len(at_work):,} still running, {len(failed):,} failed"
    summary = f"{counted(len(folders), 'folder')} of runs in {', '.join(map(str, places))}: {counts}"
    return Answer(
        values={"store": tracking_uri(), "found": len(folders), **outcomes},
        text=f"{table(rows, header=('sent', 'registered'))}\n\n{summary}" if rows else summary,
        exit_code=1 if failed else 0,
    )


def find_folders(places: Sequence[OutputPath]) -> list[OutputPath]:
    """Return the folders of trainings and collections, each once, in the order of the places."""
    found: list[OutputPath] = []
    for place in places:
        if not isinstance(place, Path):
            found.append(place)
            continue
        candidates = [place, *sorted(path for path in place.glob("*") if path.is_dir())]
        found += [path for path in candidates if (path / RUN_NAME).exists() or (path / "_run").is_dir()]
    return list(dict.fromkeys(found))


def _sync(folder: OutputPath) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Send the runs of a folder, and yield the outcome of each with its details; none of one that was sent before."""
    try:
        records: Iterable[RunRecord]
        if isinstance(folder, Path) and (folder / RUN_NAME).exists():
            training = read_training(folder)
            if training.status is None:
                yield "at_work", {}
                return
            records = [training]
        else:
            records = read_runs(OutputFolder(folder))
        for record in unsent(records):
            version = send(record)
            info(f"{folder}: sent")
            yield "sent", {"registered": version.reference if version else None}
    except (ConcordError, OSError) as error:
        if isinstance(error, TrackingError) and error.code != REFUSAL:
            raise
        warn(f"{folder}: {error}")
        yield "failed", {"error": str(error)}
