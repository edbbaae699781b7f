"""``concord registry``: list and show models, register a bundle, and send what waits in outboxes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from concord.models.errors import ConfigError, ModelError
from concord.models.saved_tagger import tagger_digest
from concord.pipeline.errors import InputError
from concord.workflows.console import Answer, counted, info, table, warn
from concord.workflows.environment import code_tags
from concord.workflows.registry import model_versions
from concord.workflows.registry.mlflow_client import REFUSAL, TrackingError, has_store, open_run, tracking_uri
from concord.workflows.registry.outbox import EXPERIMENT, find_entries, read_entry, send


def list_models() -> Answer:
    """List every model with its newest version and its aliases."""
    found = {name: model_versions.versions(name) for name in model_versions.model_names()} if has_store() else {}
    values: list[dict[str, Any]] = [
        {
            "name": name,
            "versions": len(known),
            "newest": known[0].version if known else None,
            "aliases": {alias: version.version for version in known for alias in version.aliases},
        }
        for name, known in found.items()
    ]
    aliases = (", ".join(f"{alias} {number}" for alias, number in sorted(it["aliases"].items())) for it in values)
    rows = [(it["name"], it["versions"], it["newest"], shown) for it, shown in zip(values, aliases, strict=True)]
    text = table(rows, header=("model", "versions", "newest", "aliases"))
    if not rows:
        text = f"No model is registered at {tracking_uri()}; use 'concord train' or 'concord registry register'."
    return Answer(values={"store": tracking_uri(), "models": values}, text=text)


def show(model: str) -> Answer:
    """List the versions of a model, or show the details of one.

    Args:
        model: NAME, NAME/VERSION or NAME@ALIAS, optionally with a leading ``models:/``.
    """
    name = model.removeprefix("models:/")
    if "/" in name or "@" in name:
        version = model_versions.resolve(model if model_versions.is_reference(model) else f"models:/{model}")
        values = _values(version)
        shown = {**values, "aliases": ", ".join(values["aliases"])}
        tags = [("tag", f"{key} {value}") for key, value in shown.pop("tags").items()]
        return Answer(values=values, text=table([*shown.items(), *tags]))
    found = [_values(version) for version in model_versions.versions(name)]
    rows = [
        (
            *(it["version"], ", ".join(it["aliases"])),
            *(it["tags"].get(f"{part}_f1") or it["tags"].get(f"{part}_accuracy") for part in ("dev", "test")),
            *(it["digest"] and it["digest"][:12], it["created"], it["run_id"]),
        )
        for it in found
    ]
    header = ("version", "aliases", "dev", "test", "digest", "created", "run")
    return Answer(values={"name": name, "versions": found}, text=table(rows, header=header))


def register_bundle(bundle: Path, *, name: str, alias: str | None) -> Answer:
    """Register a bundle as a new version of a model, unless it was registered before."""
    model_versions.check_name(name)
    digest = tagger_digest(bundle)
    run = open_run(
        experiment=EXPERIMENT,
        name=f"register {name}",
        parameters={"bundle": bundle.absolute()},
        tags={"concord.kind": "registration", **code_tags()},
        # The same bundle under the same name is the same registration.
        key=f"{name} {digest}",
    )
    version = model_versions.register(
        bundle, name=name, run_id=run.run_id, alias=alias, description=f"registered from {bundle.absolute()}"
    )
    run.close("FINISHED")
    lines = [f"registered  {version.reference}", f"digest      {version.digest}"]
    if alias is not None:
        lines.append(f"alias       {alias}")
    lines.append(f"try it      concord annotate examples/news --output out/try --model {version.reference}")
    return Answer(values=_values(version), text="\n".join(lines))


def sync(places: Sequence[Path]) -> Answer:
    """Send trainings and annotations that are not in the store yet; exit code 1 if one cannot be sent."""
    folders = find_entries(places)
    found: dict[str, list[dict[str, Any]]] = {"sent": [], "at_work": [], "failed": []}
    for folder in folders:
        _sync(folder, found)
    sent, at_work, failed = found.values()
    rows = [(item["folder"], item["registered"]) for item in sent]
    counts = f"{len(sent):,} sent, {len(at_work):,} still running, {len(failed):,} failed"
    summary = f"{counted(len(folders), 'run')} in {', '.join(map(str, places))}: {counts}"
    return Answer(
        values={"store": tracking_uri(), "found": len(folders), **found},
        text=f"{table(rows, header=('sent', 'registered'))}\n\n{summary}" if rows else summary,
        exit_code=1 if failed else 0,
    )


def _sync(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    """Send the run of a folder unless it was sent or is in progress; a broken one does not stop the others."""
    try:
        entry = read_entry(folder)
        if entry.is_in_progress:
            found["at_work"].append({"folder": str(folder)})
        elif not entry.sent:
            version = send(folder)
            found["sent"].append({"folder": str(folder), "registered": version.reference if version else None})
            info(f"{folder}: sent")
    except (ConfigError, InputError, ModelError, TrackingError) as error:
        if isinstance(error, TrackingError) and error.code != REFUSAL:
            raise
        found["failed"].append({"folder": str(folder), "error": str(error)})
        warn(f"{folder}: {error}")


def _values(version: model_versions.ModelVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "version": version.version,
        "aliases": list(version.aliases),
        "digest": version.digest,
        "created": datetime.fromtimestamp(version.created_ms / 1000, UTC).isoformat(timespec="seconds"),
        "run_id": version.run_id,
        "source": version.source,
        "description": version.description,
        "tags": dict(version.tags),
    }
