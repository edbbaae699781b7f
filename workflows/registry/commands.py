"""``concord registry``: list and show models, register a bundle, and send what waits in outboxes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from concord.models.config import ConfigError
from concord.pipeline.errors import InputError, ModelError
from concord.pipeline.saved_tagger import tagger_digest
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
    """List every model with its newest version and its aliases.

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
        text = f"No model is registered at {tracking_uri()}; use 'concord train' or 'concord registry register'."
    return Answer(values={"store": tracking_uri(), "models": values}, text=text)


def show(model: str) -> Answer:
    """List the versions of a model, or show the details of one.

    Args:
        model: NAME, NAME/VERSION or NAME@ALIAS, optionally with a leading ``models:/``.

    Raises:
        ModelError: when there is no such model or version.
        TrackingError: when the store cannot be reached.
    """
    name = model.removeprefix("models:/")
    if "/" in name or "@" in name:
        version = resolve(model if is_reference(model) else f"models:/{model}")
        values = _values(version)
        fields = [
            (key, ", ".join(value) if isinstance(value, list) else value)
            for key, value in values.items()
            if key != "tags"
        ]
        tags = [("tag", f"{key} {value}") for key, value in values["tags"].items()]
        return Answer(values=values, text=table([*fields, *tags]))
    found = [_values(version) for version in versions(name)]
    rows = [
        (item["version"], ", ".join(item["aliases"]), _short(item["digest"]), item["created"], item["run_id"])
        for item in found
    ]
    header = ("version", "aliases", "digest", "created", "run")
    return Answer(values={"name": name, "versions": found}, text=table(rows, header=header))


def register_bundle(bundle: Path, *, name: str, alias: str | None) -> Answer:
    """Register a bundle as a new version of a model, unless it was registered before.

    Raises:
        ConfigError: when the name is not valid.
        ModelError: when the bundle is incomplete.
        TrackingError: when the store cannot be reached.
    """
    check_name(name)
    digest = tagger_digest(bundle)
    run = open_run(
        experiment=EXPERIMENT,
        name=f"register {name}",
        parameters={"bundle": bundle.absolute()},
        tags={"concord.kind": "registration", **code_tags()},
        # The same bundle under the same name is the same registration.
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
    """Send trainings and annotations that are not in the store yet; exit code 1 if one cannot be sent.

    Raises:
        TrackingError: when the store cannot be reached; whatever was sent is not sent again.
    """
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
