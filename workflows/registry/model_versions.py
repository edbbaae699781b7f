"""Versions of models: what the registry says of them, and their bundles on this machine.

MLflow itself is spoken to through the client of workflows/tracking.py.
"""

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from typing import Any

from concord.models.config import ConfigError
from concord.pipeline.errors import ModelError
from concord.workflows.bundles import bundle_digest, check_bundle
from concord.workflows.console import info
from concord.workflows.registry.file_locks import exclusive
from concord.workflows.registry.mlflow_client import (
    TrackingError,
    download,
    explained,
    has_store,
    open_client,
    tracking_uri,
)
from concord.workflows.serving import BUNDLE, write_model

DIGEST_TAG = "concord.digest"
MODEL = "model"
DATA = f"data/{BUNDLE}"
"""Where a bundle lies in an MLflow model."""
LOCK_SUFFIX = ".promotion-lock"
"""A name that ends so is no model: it stands while the champion of the model before it is moved."""
_NAME = re.compile(r"\w[\w. -]*")
_REFERENCE = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[\w.-]+)|/(?P<version>\d+))")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVersion:
    """A version in the registry.

    Attributes:
        digest: sha256 in hex over the bundle, as written down when it was registered; None if it was not.
        source: where the store keeps the bundle.
        created_ms: when it was registered, in milliseconds since 1970.
        run_id: the run that made it, if one did.
        aliases: those that point at it now.
    """

    name: str
    version: int
    digest: str | None
    source: str
    created_ms: int = 0
    run_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """The address that means this version for good."""
        return f"models:/{self.name}/{self.version}"


def is_reference(model: str) -> bool:
    """Say whether a model is named by its place in the registry."""
    return model.startswith("models:/")


def resolve(reference: str) -> ModelVersion:
    """Find the version that ``models:/NAME@ALIAS`` or ``models:/NAME/VERSION`` means now.

    Raises:
        ModelError: when there is no such version.
        TrackingError: when the store cannot be reached.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ModelError(f"{reference}: expected models:/NAME@ALIAS or models:/NAME/VERSION")
    _check_store(reference)
    client = open_client()
    name, alias, version = match["name"], match["alias"], match["version"]
    moved = "; the alias may have moved, so a cached bundle cannot be used" if alias is not None else ""
    with explained(f"{reference} could not be looked up{moved}", absent=reference):
        if alias is not None:
            version = client.get_model_version_by_alias(name, alias).version
        return _model_version(client.get_model_version(name, str(version)))


def model_names() -> list[str]:
    """Give the names of all registered models, sorted; locks are none.

    Raises:
        TrackingError: when the store cannot be reached.
    """
    client = open_client()
    with explained("the models could not be listed"):
        names = [model.name for model in _every_page(client.search_registered_models)]
    return sorted(name for name in names if not name.endswith(LOCK_SUFFIX))


def versions(name: str) -> list[ModelVersion]:
    """Give all versions of a model, newest first.

    Raises:
        ModelError: when there is no such model.
        TrackingError: when the store cannot be reached.
    """
    _check_store(name)
    client = open_client()
    with explained(f"the versions of {name} could not be listed", absent=name):
        aliases = client.get_registered_model(name).aliases
        found = _every_page(client.search_model_versions, filter_string=f"name = '{name}'")
    by_version: dict[int, list[str]] = {}
    for alias, version in aliases.items():
        by_version.setdefault(int(version), []).append(alias)
    # A search leaves the aliases out.
    listed = [_model_version(version, aliases=by_version.get(int(version.version), [])) for version in found]
    return sorted(listed, key=lambda version: version.version, reverse=True)


def check_name(name: str) -> None:
    """Check that a model may bear a name: it must be found again by ``models:/NAME@ALIAS`` and be no lock.

    Raises:
        ConfigError: when it may not.
    """
    if _NAME.fullmatch(name) is None or name.endswith(LOCK_SUFFIX):
        raise ConfigError(
            f"a model's name: expected letters, digits, '_', '.', '-' and spaces, not ending in {LOCK_SUFFIX}, "
            f"got {name!r}"
        )


def register(bundle: Path, *, name: str, run_id: str, alias: str | None = None) -> ModelVersion:
    """Keep a bundle with a run and make it the newest version of a model, unless the run has done so before.

    Args:
        alias: pointed at the version, unless a newer version has it already: this one may come late.

    Raises:
        ModelError: when the bundle is not whole.
        TrackingError: when the store cannot be reached or refuses.
    """
    digest = bundle_digest(bundle)
    client = open_client()
    with explained(f"the bundle could not be registered as {name}"):
        version = _registered(client, name, digest, run_id) or _register(client, bundle, name, digest, run_id)
        holder = int(client.get_registered_model(name).aliases.get(alias, 0))
    if alias is not None and holder <= version.version:
        set_alias(name, alias, version.version)
    return version


def set_alias(name: str, alias: str, version: int) -> None:
    """Point an alias at a version, wherever it pointed before.

    Raises:
        TrackingError: when the store cannot be reached or there is no such version.
    """
    client = open_client()
    with explained(f"the alias {alias} of {name} could not be set"):
        client.set_registered_model_alias(name, alias, str(version))


def create_model(name: str, *, tags: Mapping[str, str] | None = None) -> bool:
    """Make a name in the registry; of several processes that do so at once, one does.

    Returns:
        False when it is there already, or was when this was asked.

    Raises:
        TrackingError: when the store cannot be reached or refuses.
    """
    client = open_client()
    try:
        with explained(f"{name} could not be made in the registry"):
            client.create_registered_model(name, tags=dict(tags or {}))
    except TrackingError as error:
        # MLflow looks up who has the name, and it may be gone by then.
        if error.code not in ("RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"):
            raise
        return False
    return True


def fetch(version: ModelVersion) -> Path:
    """Bring a version's bundle to this machine, once for all its processes, and check every file of it.

    It lies in the cache folder, which workers on other machines must see too.

    Raises:
        ModelError: when the bundle is not what was registered.
        TrackingError: when it cannot be brought.
    """
    if version.digest is None:
        raise ModelError(
            f"{version.reference}: expected the tag {DIGEST_TAG}, got none; it was not registered by concord"
        )
    folder = cache_folder() / "bundles"
    target = folder / version.digest
    with exclusive(folder / f"{version.digest}.lock"):
        if target.is_dir() and _is_whole(target, version):
            return target
        with tempfile.TemporaryDirectory(dir=folder, prefix=".incoming-") as incoming:
            fetched = download(f"{version.source}/{DATA}", Path(incoming))
            _check(fetched, version)
            shutil.rmtree(target, ignore_errors=True)
            fetched.rename(target)
    return target


def _is_whole(copy: Path, version: ModelVersion) -> bool:
    """Say whether a copy on this machine is what was registered; harm to it is no fault of the version."""
    try:
        _check(copy, version)
    except ModelError as error:
        info(f"{copy} is damaged and fetched anew: {error}")
        return False
    return True


def cache_folder() -> Path:
    """Give the folder where fetched bundles are kept."""
    chosen = environ.get("CONCORD_CACHE")
    if chosen:
        return Path(chosen).absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "concord"


def _check_store(wanted: str) -> None:
    if not has_store():
        raise ModelError(
            f"{wanted}: there is no registry at {tracking_uri()}; set MLFLOW_TRACKING_URI, or train a model here first"
        )


def _registered(client: Any, name: str, digest: str, run_id: str) -> ModelVersion | None:
    for found in _every_page(client.search_model_versions, filter_string=f"run_id = '{run_id}'"):
        if found.name == name and found.tags.get(DIGEST_TAG) == digest:
            return _model_version(found)
    return None


def _register(client: Any, bundle: Path, name: str, digest: str, run_id: str) -> ModelVersion:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / MODEL
        write_model(bundle, model)
        client.log_artifacts(run_id, str(model), MODEL)
    create_model(name)
    source = f"{client.get_run(run_id).info.artifact_uri}/{MODEL}"
    return _model_version(client.create_model_version(name, source, run_id=run_id, tags={DIGEST_TAG: digest}))


def _every_page(search: Any, **arguments: Any) -> list[Any]:
    page = search(**arguments)
    found = list(page)
    while page.token:
        page = search(**arguments, page_token=page.token)
        found.extend(page)
    return found


def _model_version(found: Any, *, aliases: list[str] | None = None) -> ModelVersion:
    """Read what MLflow gives, whose version is text over HTTP and a number from sqlite."""
    return ModelVersion(
        name=found.name,
        version=int(found.version),
        digest=found.tags.get(DIGEST_TAG),
        source=found.source,
        created_ms=int(found.creation_timestamp),
        run_id=found.run_id or None,
        tags=dict(found.tags),
        aliases=tuple(sorted(found.aliases if aliases is None else aliases)),
    )


def _check(bundle: Path, version: ModelVersion) -> None:
    try:
        check_bundle(bundle)
        digest = bundle_digest(bundle)
    except ModelError as error:
        raise ModelError(f"{version.reference}: {error}") from error
    if digest != version.digest:
        raise ModelError(
            f"{version.reference}: {bundle}: expected the digest {version.digest}, got {digest}; "
            "the files are not what was registered"
        )
