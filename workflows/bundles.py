"""Copy the files of a bundle, and nothing else that is in its folder."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from concord.models.bundles.manifest import PARTS, part_files
from concord.models.errors import ConfigError, ModelError

# Nothing executable is copied, and nothing unrelated that is in the folder.
_DATA_SUFFIXES = {".json", ".safetensors", ".md", ".txt"}


def copy_bundle(source: Path, target: Path) -> None:
    """Copy the files of a bundle; ModelError for a link."""
    for path in _data_files(source):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def require_new_folder(folder: Path, content: str) -> None:
    """Raise a ConfigError that names the content unless a folder for it is missing or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: expected a new or empty folder for {content}")


def _data_files(bundle: Path) -> Sequence[Path]:
    data = [path for path in bundle.glob("*") if path.suffix in _DATA_SUFFIXES]
    folders = [bundle / part for part in PARTS]
    for path in (*data, *folders, *(path for folder in folders for path in folder.rglob("*"))):
        if path.is_symlink():
            raise ModelError(
                f"{path}: expected a file of the bundle, got a link, which may lead to anything; put the file here"
            )
    return [*filter(Path.is_file, data), *part_files(bundle)]
