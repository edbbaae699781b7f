"""``concord bundle``, and ``concord registry``: list, show and register models."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from concord.models.bundles.manifest import tagger_digest
from concord.workflows.bundles import copy_bundle, require_new_folder
from concord.workflows.console import Answer, plain, table
from concord.workflows.environment import code_tags
from concord.workflows.registry.mlflow_client import has_store, open_run, tracking_uri
from concord.workflows.registry.model_versions import check_name, is_reference, model_names, register, resolve, versions
from concord.workflows.registry.resolve_tagger import find_tagger
from concord.workflows.registry.run_records import EXPERIMENT


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSummary:
    """A registered model: how many versions it has, the newest, and the version of each alias."""

    name: str
    versions: int
    newest: int | None
    aliases: Mapping[str, int]


def list_command() -> Answer:
    """List every model with its newest version and its aliases."""
    models = [_summary(name) for name in model_names()] if has_store() else []
    aliases = [", ".join(f"{alias} {version}" for alias, version in sorted(it.aliases.items())) for it in models]
    rows = [(it.name, it.versions, it.newest, shown) for it, shown in zip(models, aliases, strict=True)]
    text = table(rows, header=("model", "versions", "newest", "aliases"))
    if not rows:
        text = f"No model is registered at {tracking_uri()}; use 'concord train' or 'concord registry register'."
    return Answer(values={"store": tracking_uri(), "models": models}, text=text)


def show_command(model: str) -> Answer:
    """List the versions of a model, or show the details of one.

    Args:
        model: NAME, NAME/VERSION or NAME@ALIAS, optionally with a leading ``models:/``.
    """
    name = model.removeprefix("models:/")
    if "/" in name or "@" in name:
        version = resolve(model if is_reference(model) else f"models:/{model}")
        shown = plain(version) | {"aliases": ", ".join(version.aliases)}
        tags = [("tag", f"{key} {value}") for key, value in shown.pop("tags").items()]
        return Answer.of(version, text=table([*shown.items(), *tags]))
    all_versions = versions(name)
    rows = [
        (
            version.version,
            ", ".join(version.aliases),
            *(version.tags.get(f"{part}_f1") or version.tags.get(f"{part}_accuracy") for part in ("dev", "test")),
            version.digest and version.digest[:12],
            version.created,
            version.run_id,
        )
        for version in all_versions
    ]
    header = ("version", "aliases", "dev", "test", "digest", "created", "run")
    return Answer(values={"name": name, "versions": all_versions}, text=table(rows, header=header))


def bundle_command(model: str, output: Path) -> Answer:
    """Write the bundle of a tagger, also of one that wraps another library's model, to a new folder.

    Raises:
        ConfigError: when the folder is not empty.
        ModelError: when there is no such tagger, or its library is not installed.
    """
    require_new_folder(output, "the bundle")
    tagger = find_tagger(model)
    copy_bundle(tagger.folder, output)
    lines = (f"bundle   {output}", f"digest   {tagger.digest}", f"try it   concord tag TEXT --model {output}")
    return Answer(values={"folder": output, "digest": tagger.digest}, text="\n".join(lines))


def register_command(bundle: Path, *, name: str, alias: str | None) -> Answer:
    """Register a bundle as a new version of a model, unless it was registered before."""
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
    version = register(
        bundle, name=name, run_id=run.run_id, alias=alias, description=f"registered from {bundle.absolute()}"
    )
    run.close("FINISHED")
    lines = [f"registered  {version.reference}", f"digest      {version.digest}"]
    if alias is not None:
        lines.append(f"alias       {alias}")
    lines.append(f"try it      concord annotate examples/news --output out/try --model {version.reference}")
    return Answer.of(version, text="\n".join(lines))


def _summary(name: str) -> ModelSummary:
    all_versions = versions(name)
    newest = all_versions[0].version if all_versions else None
    aliases = {alias: version.version for version in all_versions for alias in version.aliases}
    return ModelSummary(name=name, versions=len(all_versions), newest=newest, aliases=aliases)
