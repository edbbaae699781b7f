"""What a saved tagger's folder holds, read without importing torch: its configuration and its digest."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from concord.models.config import Config
from concord.models.errors import ConfigError, ModelError
from concord.models.regular_files import file_digest
from concord.models.words.encoder_config import BUNDLED_NAME, ENCODER_NAME, EncoderConfig, FormVectorConfig

FORMAT_VERSION = 1
CONFIG_NAME = "tagger.json"
WEIGHTS_NAME = "weights.safetensors"
SOURCE_NAME = "source"
PARTS = (ENCODER_NAME, SOURCE_NAME)
"""Folders that may be part of a saved tagger."""
CALIBRATION_NAME = "calibration.json"
BUNDLE_NAME = "bundle"
"""Folder of the saved tagger in that of its training."""


class SavedTagger(Config):
    """The content of a saved tagger's ``tagger.json``."""

    format_version: Literal[1]
    tagger: str
    """Its name."""
    config: dict[str, Any]
    """Checked by the configuration class of the tagger."""
    vocabulary: dict[str, Any]
    """Checked by Vocabulary.from_mapping."""
    trees: str | None
    parser: str | None = None
    """As Tagger.trees and Tagger.parser."""


def read_saved(folder: Path) -> SavedTagger:
    """Read the ``tagger.json`` of a saved tagger.

    Raises:
        ModelError: if it is missing or not of this format, or if something in the tagger's folders is no file.
    """
    path = folder / CONFIG_NAME
    for other in (other for part in PARTS for other in (folder / part).rglob("*")):
        if not (other.is_file() or other.is_dir()):
            raise ModelError(f"{other}: expected a file of a saved tagger, got a device, a FIFO or a link to nothing")
    if not path.exists():
        raise ModelError(f"{path}: no such file; expected a folder written by `concord train`")
    status = path.stat()
    return _read_config(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)
def _read_config(path: Path, modified: int, size: int) -> SavedTagger:
    del modified, size  # part of the cache key: a changed file is read again
    return SavedTagger.read_json(path)


def with_own_encoder(config: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Point the configuration of a saved tagger at the encoder in its folder, or at another library's model there."""
    if "source" in config:
        return {**config, "source": str(folder / SOURCE_NAME)}
    read = config.get("encoder")
    if not isinstance(read, dict):
        return config
    if read.get("weights") is not None:
        return {**config, "encoder": read | {"weights": str(folder)}}
    if read.get("tuned") is not True:
        return config
    return {**config, "encoder": read | {"source": str(folder / ENCODER_NAME)}}


def needed_encoders(folder: Path) -> list[EncoderConfig]:
    """Return the encoders of a saved tagger and of its form vectors, besides the bundled one.

    Each of them needs the library transformers.

    Raises:
        ModelError: if ``tagger.json`` is missing or broken, or the configuration of an encoder or of form vectors is.
    """
    config, where = with_own_encoder(read_saved(folder).config, folder), folder / CONFIG_NAME
    encoders = []
    try:
        if (values := config.get("encoder")) is not None:
            encoders.append(EncoderConfig.from_mapping(values, where=f"{where}: encoder"))
        for name, part in config.items():
            if isinstance(part, dict) and (values := part.get("form_vectors")) is not None:
                vectors = FormVectorConfig.from_mapping(values, where=f"{where}: {name}.form_vectors")
                encoders.append(vectors.encoder)
    except ConfigError as error:
        raise ModelError(str(error)) from error
    return [encoder for encoder in encoders if encoder.source != BUNDLED_NAME]


def tagger_digest(folder: Path) -> str:
    """Return the sha256, in hex, over the files of a saved tagger; raise ModelError if one is missing.

    It covers the tuned encoder and the calibration: a tagger with other probabilities is another one.
    """
    digest = hashlib.sha256()
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        digest.update(file_digest(folder / name))
    if (folder / CALIBRATION_NAME).exists():
        digest.update(CALIBRATION_NAME.encode() + file_digest(folder / CALIBRATION_NAME))
    # Any file beside a tuned encoder may change how it is read, so names are hashed as well.
    for path in part_files(folder):
        digest.update(path.relative_to(folder).as_posix().encode() + file_digest(path))
    return digest.hexdigest()


def part_files(folder: Path) -> list[Path]:
    """Return the files of the parts of a saved tagger that have a folder of their own, in a fixed order."""
    return [path for part in PARTS for path in sorted((folder / part).rglob("*")) if path.is_file()]
