"""Versions of models in the registry, and the tagger that a name means.

``concord registry`` lists, shows and registers versions, whose bundles are cached on this machine. A model, version or
alias that does not exist is a ModelError, a registry that cannot be reached a TrackingError.

A tagger is a folder, a bundled tagger, a registered version, or another library's model; ``concord bundle`` writes it
to a folder.
"""

import difflib
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from concord.models.bundles.manifest import BUNDLE_NAME, CONFIG_NAME, needed_encoders, read_saved, tagger_digest
from concord.models.errors import ConfigError, EncoderMissingError, ModelError
from concord.models.labels import TOKENS
from concord.models.words.encoder_config import find_encoder
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.storage.atomic_writes import write_atomically
from concord.pipeline.storage.locks import exclusive
from concord.workflows.bundles import copy_bundle, require_new_folder
from concord.workflows.console import Answer, plain, table
from concord.workflows.job_files import cache_folder
from concord.workflows.mlflow_client import (
    EXPERIMENT,
    REFUSAL,
    TrackingError,
    code_tags,
    download,
    every_page,
    has_store,
    mlflow_errors,
    open_client,
    open_run,
    tracking_uri,
)

DIGEST_TAG = "concord.digest"
CHAMPION, PREVIOUS = "champion", "previous"
GUARDED_ALIASES = (CHAMPION, PREVIOUS)
"""Moved by promotions and rollbacks only."""
MODEL = "model"
DATA = "data/bundle"
"""Path of the bundle in an MLflow model."""
_LISTED = 10
"""Versions that a message lists."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"\w[\w. -]*")
_REFERENCE = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[\w.-]+)|/(?P<version>\d+))")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVersion:
    """A version in the registry.

    Attributes:
        digest: sha256 of the bundle in hex, recorded at registration; None if it was registered by other software.
        source: address of the MLflow model in the store.
        created: when it was registered, UTC, ISO 8601.
        run_id: the run that produced it, if any.
        aliases: those that point at it now.
    """

    name: str
    version: int
    aliases: tuple[str, ...] = ()
    digest: str | None
    created: str = ""
    run_id: str | None = None
    source: str
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """The address of this version, independent of aliases."""
        return f"models:/{self.name}/{self.version}"


def is_reference(model: str) -> bool:
    """Return whether a model is given as ``models:/...``."""
    return model.startswith("models:/")


def resolve(reference: str) -> ModelVersion:
    """Return the version that ``models:/NAME@ALIAS`` or ``models:/NAME/VERSION`` refers to now."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ModelError(f"{reference}: expected models:/NAME@ALIAS or models:/NAME/VERSION")
    name, alias, version = match["name"], match["alias"], match["version"]
    moved = "; the alias may have moved, so a cached bundle cannot be used" if alias is not None else ""
    with lookup_errors(reference, name, note=moved) as client:
        if alias is not None:
            version = client.get_model_version_by_alias(name, alias).version
        return _model_version(client.get_model_version(name, str(version)))


@contextmanager
def lookup_errors(wanted: str, name: str, *, note: str = "") -> Iterator[Any]:
    """Yield MLflow's client to look up something of a model, and say what there is if that does not exist.

    Args:
        wanted: what is looked up.
        note: added to the message if the store fails.

    Raises:
        ModelError: when it does not exist, or there is no store.
        TrackingError: for any other error.
    """
    if not has_store():
        raise ModelError(
            f"{wanted}: there is no registry at {tracking_uri()}; set MLFLOW_TRACKING_URI, or train a model here first"
        )
    try:
        with mlflow_errors(f"{wanted} could not be looked up{note}"):
            yield open_client()
    except TrackingError as error:
        # The code of an alias that does not exist is that of a refusal.
        if error.code not in ("RESOURCE_DOES_NOT_EXIST", REFUSAL):
            raise
        raise ModelError(f"{wanted}: not in the registry {tracking_uri()}; {_existing(name)}") from error


def _existing(name: str) -> str:
    """Return which versions and aliases a model has; if there is no such model, which models there are."""
    names = model_names()
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        return f"{hint}registered are: {', '.join(names) or 'none'}"
    found = versions(name)
    aliases = ", ".join(f"@{alias}" for version in found for alias in version.aliases) or "none"
    numbers = ", ".join(str(version.version) for version in found[:_LISTED]) or "none"
    return f"the newest versions of {name}: {numbers}; its aliases: {aliases}"


def model_names() -> list[str]:
    """Return the names of all registered models, sorted."""
    client = open_client()
    with mlflow_errors("the models could not be listed"):
        return sorted(model.name for model in every_page(client.search_registered_models))


def versions(name: str) -> list[ModelVersion]:
    """Return all versions of a model, newest first."""
    aliases = aliases_of(name)
    with lookup_errors(name, name) as client:
        found = every_page(client.search_model_versions, filter_string=f"name = '{name}'")
    # The search does not return aliases.
    all_versions = [
        _model_version(version, aliases=[alias for alias, it in aliases.items() if it == int(version.version)])
        for version in found
    ]
    return sorted(all_versions, key=lambda version: version.version, reverse=True)


def aliases_of(name: str) -> dict[str, int]:
    """Return the aliases of a model with the version that each points at."""
    with lookup_errors(name, name) as client:
        return {alias: int(version) for alias, version in client.get_registered_model(name).aliases.items()}


def check_name(name: str) -> None:
    """Raise ConfigError unless ``models:/NAME@ALIAS`` can refer to a name."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"a model's name: expected letters, digits, '_', '.', '-' and spaces, got {name!r}")


def register(
    bundle: Path,
    *,
    name: str,
    run_id: str,
    alias: str | None = None,
    description: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> ModelVersion:
    """Register a bundle of a run as a new version of a model, and point the alias at it.

    Description and tags are shown beside the version in MLflow's pages.
    """
    from concord.workflows.serving import write_model  # imports torch

    client = open_client()
    with mlflow_errors(f"the bundle could not be registered as {name}"):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / MODEL
            write_model(bundle, model)
            client.log_artifacts(run_id, str(model), MODEL)
        create_model(name)
        source = f"{client.get_run(run_id).info.artifact_uri}/{MODEL}"
        tags = {**(tags or {}), DIGEST_TAG: tagger_digest(bundle)}
        created = client.create_model_version(name, source, run_id=run_id, description=description, tags=tags)
        version = _model_version(created)
    if alias is not None:
        set_alias(name, alias, version.version)
    return version


def set_alias(name: str, alias: str, version: int) -> None:
    """Point an alias at a version."""
    client = open_client()
    with mlflow_errors(f"the alias {alias} of {name} could not be set"):
        client.set_registered_model_alias(name, alias, str(version))


def create_model(name: str) -> None:
    """Create a registered model unless it exists."""
    client = open_client()
    try:
        with mlflow_errors(f"{name} could not be created in the registry"):
            client.create_registered_model(name)
    except TrackingError as error:
        if error.code != "RESOURCE_ALREADY_EXISTS":
            raise


def fetch(version: ModelVersion) -> Path:
    """Download the bundle of a version into the cache folder, unless it is there already, and check its digest.

    Workers on other machines must see the cache folder too.

    Raises:
        ModelError: when the bundle is not what was registered.
    """
    # It names a folder of the cache.
    if version.digest is None or not _DIGEST.fullmatch(version.digest):
        raise ModelError(
            f"{version.reference}: expected a sha256 in the tag {DIGEST_TAG}, got {version.digest or 'none'}; the "
            "version was not registered by concord"
        )
    target = cache_folder() / "bundles" / version.digest
    if not _is_whole(target):
        with _incoming(target.parent) as incoming:
            fetched = download(f"{version.source}/{DATA}", incoming)
            try:
                digest = tagger_digest(fetched)
            except ModelError as error:
                raise ModelError(f"{version.reference}: {error}") from error
            if digest != version.digest:
                raise ModelError(
                    f"{version.reference}: expected the digest {version.digest}, got {digest}; "
                    "the files are not what was registered"
                )
            _keep(fetched, target)
    return target


def list_command() -> Answer:
    """List every model with its newest version and its aliases."""
    models, rows = list[Mapping[str, object]](), list[Sequence[object]]()
    for name in model_names() if has_store() else ():
        found = versions(name)
        newest = found[0].version if found else None
        aliases = {alias: version.version for version in found for alias in version.aliases}
        models.append({"name": name, "versions": len(found), "newest": newest, "aliases": aliases})
        shown = ", ".join(f"{alias} {version}" for alias, version in sorted(aliases.items()))
        rows.append((name, len(found), newest, shown))
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
        return Answer(values=version, text=table([*shown.items(), *tags]))
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


def register_command(bundle: Path, *, name: str, alias: str | None) -> Answer:
    """Register a bundle as a new version of a model, unless it is one of its versions already."""
    check_name(name)
    digest = tagger_digest(bundle)
    known = versions(name) if name in model_names() else []
    version = next((version for version in known if version.digest == digest), None)
    if version is None:
        tags = {"concord.kind": "registration", **code_tags()}
        parameters = {"bundle": bundle.absolute()}
        with open_run(experiment=EXPERIMENT, name=f"register {name}", parameters=parameters, tags=tags) as run:
            shown = f"registered from {bundle.absolute()}"
            version = register(bundle, name=name, run_id=run.run_id, alias=alias, description=shown)
    elif alias is not None and all(alias not in newer.aliases for newer in known if newer.version > version.version):
        set_alias(name, alias, version.version)
    lines = [f"registered  {version.reference}", f"digest      {version.digest}"]
    if alias is not None:
        lines.append(f"alias       {alias}")
    lines.append(f"try it      concord annotate examples/news --output out/try --model {version.reference}")
    return Answer(values=version, text="\n".join(lines))


def _model_version(version: Any, *, aliases: list[str] | None = None) -> ModelVersion:
    """Convert a version of MLflow, whose number is text over HTTP and an int from SQLite."""
    return ModelVersion(
        name=version.name,
        version=int(version.version),
        digest=version.tags.get(DIGEST_TAG),
        source=version.source,
        created=datetime.fromtimestamp(int(version.creation_timestamp) / 1000, UTC).isoformat(timespec="seconds"),
        run_id=version.run_id or None,
        tags=dict(version.tags),
        description=version.description or "",
        aliases=tuple(sorted(version.aliases if aliases is None else aliases)),
    )


BUNDLED_FOLDER = Path(__file__).resolve().parents[1] / "models" / "pretrained"
INSTALL_TRANSFORMERS = "pip install '.[hf]'"


def find_tagger(model: str) -> ResolvedTagger:
    """Resolve folder, name, version and digest of a tagger.

    Args:
        model: a folder, the name of a bundled tagger, models:/NAME@ALIAS, models:/NAME/VERSION, or the model of another
            library, such as spacy:NAME or hf:FOLDER.

    Raises:
        ModelError: when there is no such tagger, or something it needs is not installed.
        TrackingError: when the registry cannot be reached.
    """
    if is_reference(model):
        version = resolve(model)
        folder = fetch(version)
        return _resolved(folder, name=version.name, version=str(version.version), digest=version.digest)
    adapter, colon, source = model.partition(":")
    if colon and adapter.isidentifier():
        folder = _adapt(model, adapter, source)
        return _resolved(folder, name=adapter, digest=folder.name)
    folder = Path(model).expanduser()
    if (folder / CONFIG_NAME).is_file():
        # Not named after its folder: a bundle that was moved is still the same tagger.
        return _resolved(folder.absolute(), name=read_saved(folder).tagger)
    if (folder / BUNDLE_NAME / CONFIG_NAME).is_file():
        raise ModelError(
            f"{model}: expected a folder with {CONFIG_NAME}, got that of a training; "
            f"its tagger is {folder / BUNDLE_NAME}"
        )
    return _find_bundled(model)


def find_entity_tagger(model: str) -> ResolvedTagger:
    """Resolve the tagger of an annotation, as ``find_tagger`` does; a tagger of token labels is a ModelError."""
    tagger = find_tagger(model)
    if read_saved(tagger.folder).vocabulary.get("scheme") == TOKENS.name:
        raise ModelError(
            f"{model}: a tagger of token labels, which can be evaluated but cannot annotate, since the output tables "
            "hold entities; choose a tagger of entities"
        )
    return tagger


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


def bundled_names() -> tuple[str, ...]:
    """Return the names of the bundled taggers, sorted."""
    return tuple(sorted(path.parent.name for path in BUNDLED_FOLDER.glob(f"*/{CONFIG_NAME}")))


def _adapt(model: str, adapter: str, source: str) -> Path:
    """Save the tagger that wraps the model of another library to the cache folder, unless it is there, and return it.

    Workers on other machines must see the cache folder too.
    """
    from concord.models.adapters.base import AdaptedTagger  # imports torch
    from concord.models.bundles.checkpoint import save_tagger
    from concord.models.bundles.registry import tagger_class

    try:
        tagger_type = tagger_class(adapter)
    except ConfigError as error:
        raise ModelError(f"{model}: expected the name of a tagger before the colon: {error}") from error
    if not issubclass(tagger_type, AdaptedTagger):
        raise ModelError(f"{model}: expected a tagger that wraps models of another library, got {adapter}")
    folder = cache_folder() / "adapted"
    try:
        # Names the digest of the tagger that a model became, so that it is loaded once.
        known = folder / f"{tagger_type.model_digest(tagger_type.find(source))}.txt"
        if known.is_file() and _is_whole(target := folder / known.read_text(encoding="ascii")):
            return target
        with _incoming(folder) as incoming:
            saved = incoming / BUNDLE_NAME
            save_tagger(tagger_type.adapt(source), saved)
            target = folder / tagger_digest(saved)
            _keep(saved, target)
    except ModelError as error:
        raise ModelError(f"{model}: {error}") from error
    write_atomically(known, target.name.encode(), staging=folder)
    return target


@contextmanager
def _incoming(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder on the file system of a folder of the cache, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".incoming-") as incoming:
        yield Path(incoming)


def _keep(bundle: Path, target: Path) -> None:
    """Move a bundle to the folder of the cache that is named after its digest, unless another process just has."""
    with exclusive(target.with_suffix(".lock")):
        if not _is_whole(target):
            shutil.rmtree(target, ignore_errors=True)
            bundle.rename(target)


def _is_whole(folder: Path) -> bool:
    """Return whether a folder holds the tagger whose digest it is named after."""
    try:
        return tagger_digest(folder) == folder.name
    except ModelError:
        return False


def _find_bundled(name: str) -> ResolvedTagger:
    names = bundled_names()
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"bundled are {', '.join(names) or 'none'}"
        raise ModelError(
            f"{name}: expected a folder with {CONFIG_NAME}, a bundled tagger or models:/NAME@ALIAS; {hint}"
        )
    return _resolved(BUNDLED_FOLDER / name, name=name)


def _resolved(folder: Path, *, name: str, version: str | None = None, digest: str | None = None) -> ResolvedTagger:
    """Return the tagger in a folder; its digest is taken, unless the files were just checked against it."""
    for encoder in needed_encoders(folder):
        # A tuned encoder is in the tagger's folder and needs the library only.
        if not encoder.tuned:
            try:
                find_encoder(encoder.source)
            except EncoderMissingError as error:
                raise ModelError(f"{name}: {error}") from error
        if importlib.util.find_spec("transformers") is None:
            raise ModelError(f"{name}: the library transformers is not installed: {INSTALL_TRANSFORMERS}")
    saved = read_saved(folder)
    return ResolvedTagger(
        name=name,
        version=version,
        digest=digest or tagger_digest(folder),
        folder=folder,
        trees=saved.trees,
        parser=saved.parser,
    )
