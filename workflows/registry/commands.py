"""What ``concord registry`` answers: models and their versions, a bundle made a version, records sent late."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from concord.models.config import ConfigError
from concord.pipeline.errors import InputError, ModelError
from concord.workflows.bundles import bundle_digest
from concord.workflows.console import Answer, counted, info, table, warn
from concord.workflows.environment import code_tags
from concord.workflows.registry.mlflow_client import REFUSAL, TrackingError, has_store, open_run, tracking_uri
from concord.workflows.registry.model_versions import (
    ModelVersion,
    check_name,
    is_reference,
    model_names,
    register,
    resolve,
    versions,
)
from concord.workflows.registry.outbox import EXPERIMENT, find_entries, read_entry, send

SHOWN_DIGEST = 12


def list_models() -> Answer:
    """Give every model with its newest version and its aliases.

    Raises:
        TrackingError: when the store cannot be reached.
    """
    found = {name: versions(name) for name in model_names()} if has_store() else {}
    values: list[dict[str, Any]] = [
        {
            "name": name,
            "versions": len(known),
            "newest": known[0].version if known else None,
            "aliases": {alias: version.version for version in known for alias in version.aliases},
        }
        for name, known in found.items()
    ]
    rows = [(item["name"], item["versions"], item["newest"], _aliases(item["aliases"])) for item in values]
    text = table(rows, header=("model", "versions", "newest", "aliases"))
    if not rows:
        text = f"No model is registered at {tracking_uri()}; 'concord train' and 'concord registry register' do that."
    return Answer(values={"store": tracking_uri(), "models": values}, text=text)


def show(model: str) -> Answer:
    """Give the versions of a model, or all about one of them.

    Args:
        model: NAME, NAME/VERSION or NAME@ALIAS, also with ``models:/`` before it.

    Raises:
        ModelError: when there is no such model or version.
        TrackingError: when the store cannot be reached.
    """
    name = model.removeprefix("models:/")
    if "/" in name or "@" in name:
        version = resolve(model if is_reference(model) else f"models:/{model}")
        values = _values(version)
        told = [(key, _told(value)) for key, value in values.items() if key != "tags"]
        tags = [("tag", f"{key} {value}") for key, value in values["tags"].items()]
        return Answer(values=values, text=table([*told, *tags]))
    found = [_values(version) for version in versions(name)]
    rows = [
        (item["version"], ", ".join(item["aliases"]), _short(item["digest"]), item["created"], item["run_id"])
        for item in found
    ]
    header = ("version", "aliases", "digest", "created", "run")
    return Answer(values={"name": name, "versions": found}, text=table(rows, header=header))


def register_bundle(bundle: Path, *, name: str, alias: str | None) -> Answer:
    """Make a bundle that was trained elsewhere the newest version of a model, unless it is one of its versions.

    Raises:
        ConfigError: when no model may bear the name.
        ModelError: when the bundle is not whole.
        TrackingError: when the store cannot be reached.
    """
    check_name(name)
    digest = bundle_digest(bundle)
    run = open_run(
        experiment=EXPERIMENT,
        name=f"register {name}",
        parameters={"bundle": bundle.absolute()},
        tags={"concord.kind": "registration", **code_tags()},
        # The same bundle under the same name is the same registration, however often it is asked for.
        key=f"{name} {digest}",
    )
    version = register(bundle, name=name, run_id=run.run_id, alias=alias)
    run.close("FINISHED")
    lines = [f"registered  {version.reference}", f"digest      {version.digest}"]
    if alias is not None:
        lines.append(f"alias       {alias}")
    lines.append(f"try it      concord annotate examples/news --output out/try --model {version.reference}")
    return Answer(values=_values(version), text="\n".join(lines))


def sync(places: Sequence[Path]) -> Answer:
    """Send what the store has missed of trainings and annotations; exit code 1 when a record cannot be sent.

    Raises:
        TrackingError: when the store cannot be reached; what was sent stays.
    """
    folders = find_entries(places)
    found: dict[str, list[dict[str, Any]]] = {"sent": [], "at_work": [], "failed": []}
    for folder in folders:
        _sync(folder, found)
    sent, at_work, failed = found.values()
    rows = [(item["folder"], item["registered"]) for item in sent]
    counts = f"{len(sent):,} sent, {len(at_work):,} at work, {len(failed):,} failed"
    summary = f"{counted(len(folders), 'record')} in {', '.join(map(str, places))}: {counts}"
    return Answer(
        values={"store": tracking_uri(), "found": len(folders), **found},
        text=f"{table(rows, header=('sent', 'registered'))}\n\n{summary}" if rows else summary,
        exit_code=1 if failed else 0,
    )


def _sync(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    """Send the record of a folder unless it was sent or is being written; one that is broken stops no other."""
    try:
        record = read_entry(folder)
        if record.is_in_progress:
            found["at_work"].append({"folder": str(folder)})
        elif not record.sent:
            version = send(folder)
            found["sent"].append({"folder": str(folder), "registered": version.reference if version else None})
            info(f"{folder}: sent")
    except (ConfigError, InputError, ModelError, TrackingError) as error:
        if isinstance(error, TrackingError) and error.code != REFUSAL:
            raise
        found["failed"].append({"folder": str(folder), "error": str(error)})
        warn(f"{folder}: {error}")


def _values(version: ModelVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "version": version.version,
        "aliases": list(version.aliases),
        "digest": version.digest,
        "created": datetime.fromtimestamp(version.created_ms / 1000, UTC).isoformat(timespec="seconds"),
        "run_id": version.run_id,
        "source": version.source,
        "tags": dict(version.tags),
    }


def _aliases(aliases: dict[str, int]) -> str:
    return ", ".join(f"{alias} {version}" for alias, version in sorted(aliases.items()))


def _short(digest: str | None) -> str | None:
    return digest[:SHOWN_DIGEST] if digest is not None else None


def _told(value: object) -> object:
    return ", ".join(value) if isinstance(value, list) else value
