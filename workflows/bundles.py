"""Pack a bundle for the registry with a manifest of its files, and check a packed one."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from concord.models.bundles.manifest import PARTS, part_files, tagger_digest
from concord.models.config import Config
from concord.models.errors import ConfigError, ModelError
from concord.pipeline.storage.files import file_sha256

BUNDLE = "bundle"
"""Folder of a packed bundle in an MLflow model."""
MANIFEST_NAME = "manifest.json"
# Nothing executable is packed, and nothing unrelated that is in the folder.
_DATA_SUFFIXES = {".json", ".safetensors", ".md", ".txt"}


class BundleManifest(Config):
    """The manifest of a packed bundle."""

    format_version: Literal[1]
    digest: str
    """Digest of the tagger (concord.models.bundles.manifest.tagger_digest)."""
    files: dict[str, str]
    """Path below the folder -> sha256 in hex."""


def pack_bundle(bundle: Path, folder: Path) -> None:
    """Copy the files of a bundle into a new folder and write their manifest.

    Raises:
        ModelError: when the bundle is incomplete or holds a link.
    """
    files = copy_bundle(bundle, folder)
    manifest = BundleManifest(
        format_version=1, digest=tagger_digest(folder), files={name: file_sha256(folder / name) for name in files}
    )
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest.model_dump(), indent=2) + "\n", encoding="utf-8")


def check_bundle(folder: Path) -> BundleManifest:
    """Check a packed bundle against its manifest and return the manifest.

    Raises:
        ModelError: naming a file that is missing, unknown or not what was registered.
    """
    path = folder / MANIFEST_NAME
    try:
        manifest = BundleManifest.read_json(path)
    except ModelError as error:
        raise ModelError(f"{path}: expected the manifest of a bundle; register the bundle again: {error}") from error
    expected = manifest.files
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {MANIFEST_NAME}
    for name in sorted(present - set(expected)):
        raise ModelError(f"{folder / name}: not in {MANIFEST_NAME}; the files are not what was registered")
    for name, digest in expected.items():
        actual = file_sha256(folder / name) if name in present else "no file"
        if actual != digest:
            raise ModelError(
                f"{folder / name}: expected the sha256 {digest[:12]} of {MANIFEST_NAME}, got {actual[:12]}; "
                "the files are not what was registered"
            )
    return manifest


def copy_bundle(source: Path, target: Path) -> list[str]:
    """Copy the files of a bundle and return their paths; ModelError for a link.

    The manifest of a registered version is none of them, because it lists its own files.
    """
    files = sorted(path.relative_to(source).as_posix() for path in _data_files(source))
    for name in files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
    return files


def require_new_folder(folder: Path, content: str) -> None:
    """Raise a ConfigError that names the content unless a folder for it is missing or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: expected a new or empty folder for {content}")


def _data_files(bundle: Path) -> Sequence[Path]:
    # A downloaded bundle already has a manifest.
    data = [path for path in bundle.glob("*") if path.suffix in _DATA_SUFFIXES and path.name != MANIFEST_NAME]
    files = [*filter(Path.is_file, data), *part_files(bundle)]
    folders = [bundle / part for part in PARTS]
    for path in (*data, *folders, *(path for folder in folders for path in folder.rglob("*"))):
        if path.is_symlink():
            raise ModelError(
                f"{path}: expected a file of the bundle, got a link, which may lead to anything; put the file here"
            )
    return files
