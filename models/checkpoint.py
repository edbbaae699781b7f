"""Saved taggers: a folder with tagger.json and weights.safetensors, nothing pickled."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from models.base import Tagger
from models.data import Vocabulary
from models.registry import build_tagger

FORMAT_VERSION = 1
CONFIG_NAME = "tagger.json"
WEIGHTS_NAME = "weights.safetensors"


class ModelLoadError(ValueError):
    """A saved tagger that cannot be loaded; the message says what is wrong with which file."""


def save_tagger(tagger: Tagger, folder: Path, *, half: bool = False) -> None:
    """Write a tagger into a folder, which is made if it is not there.

    Args:
        half: store weights in fp16, at half the size; they are computed with in fp32 all the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    saved = {
        "format_version": FORMAT_VERSION,
        "tagger": tagger.name,
        "config": tagger.config.model_dump(mode="json"),
        "vocabulary": tagger.vocabulary.to_mapping(),
    }
    (folder / CONFIG_NAME).write_text(json.dumps(saved, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    weights = {
        name: (value.half() if half and value.is_floating_point() else value).cpu().contiguous()
        for name, value in tagger.state_dict().items()
    }
    save_file(weights, folder / WEIGHTS_NAME)


def load_tagger(folder: Path, *, device: str = "cpu") -> Tagger:
    """Load a tagger, ready to predict.

    Args:
        device: ``cpu``, ``cuda``, or ``auto`` for cuda where there is one.

    Raises:
        ModelLoadError: when files are missing, broken, of another format, or ask for an encoder that is not there.
    """
    saved = _read_config(folder / CONFIG_NAME)
    try:
        tagger = build_tagger(saved["tagger"], saved["config"], Vocabulary.from_mapping(saved["vocabulary"]))
    except KeyError as error:
        raise ModelLoadError(f"{folder / CONFIG_NAME}: expected the key {error}, got none") from error
    except (ValueError, TypeError) as error:  # ConfigError and EncoderMissingError are ValueErrors
        raise ModelLoadError(f"{folder / CONFIG_NAME}: {error}") from error
    try:
        weights = {name: value.float() for name, value in load_file(folder / WEIGHTS_NAME).items()}
        tagger.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ModelLoadError(f"{folder / WEIGHTS_NAME}: {error}") from error
    return tagger.eval().move_to(pick_device(device))


def pick_device(device: str) -> str:
    """Turn ``auto`` into ``cuda`` where there is one and into ``cpu`` elsewhere."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def tagger_digest(folder: Path) -> str:
    """Give the sha256, in hex, over both files of a saved tagger.

    Raises:
        ModelLoadError: when one is missing.
    """
    digest = hashlib.sha256()
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        try:
            with (folder / name).open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise ModelLoadError(f"{folder / name}: {error.strerror or error}") from error
    return digest.hexdigest()


def _read_config(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"{path}: {error.strerror or error}; expected a folder that 'train' made") from error
    except ValueError as error:
        raise ModelLoadError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(saved, dict) or saved.get("format_version") != FORMAT_VERSION:
        found = saved.get("format_version") if isinstance(saved, dict) else saved
        raise ModelLoadError(f"{path}: expected format_version {FORMAT_VERSION}, got {found!r}")
    return saved
