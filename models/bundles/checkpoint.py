"""Save and load taggers: folders with tagger.json, weights.safetensors, and calibration.json if fitted.

Nothing is pickled; ``manifest`` reads the rest of such a folder without torch.

A tuned encoder is saved beside them in the folder `encoder`, a complete Hugging Face folder (weights, configuration,
tokenizer), so loading the tagger needs no pretrained one. Of a frozen encoder only those weights are saved there, in
fp16, that another training has tuned. The files from which another library reads its model are in the folder `source`.
"""

import json
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

from concord.models.adapters.base import AdaptedConfig, AdaptedTagger
from concord.models.bundles.manifest import (
    CALIBRATION_NAME,
    CONFIG_NAME,
    FORMAT_VERSION,
    SOURCE_NAME,
    WEIGHTS_NAME,
    read_saved,
    with_own_encoder,
)
from concord.models.bundles.registry import build_tagger
from concord.models.confidence import Calibration
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConcordError, ConfigError, ModelError
from concord.models.regular_files import check_regular, file_digest
from concord.models.taggers.base import Tagger
from concord.models.words import encoder_config
from concord.models.words.encoder import TunedEncoder, read_difference
from concord.models.words.encoder_config import ENCODER_NAME, EncoderConfig

_ENCODER_PREFIX = "tuned_encoder."

_DRAWS = frozenset({init.kaiming_uniform_, init.normal_, init.uniform_, Tensor.normal_, Tensor.uniform_})


class _Undrawn(TorchFunctionMode):
    """Leaves weights as they are where they would be drawn at random, since the saved ones replace them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func in _DRAWS:
            return args[0] if args else options["tensor"]
        return func(*args, **options)


def save_tagger(tagger: Tagger, folder: Path, *, half: bool = False) -> None:
    """Save a tagger, creating the folder; ``half`` stores weights in fp16, at half the size, to be read as fp32."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tagger.config.model_dump(mode="json")
    if tagger.tuned_encoder is not None:
        digest = _save_encoder(tagger.tuned_encoder, folder / ENCODER_NAME, half=half)
        config["encoder"] |= {"source": ENCODER_NAME, "sha256": digest}
    elif tagger.config.encoder is not None and tagger.config.encoder.weights is not None:
        _save_difference(tagger.config.encoder, folder / ENCODER_NAME)
        config["encoder"] |= {"weights": "."}
    if isinstance(tagger, AdaptedTagger) and isinstance(tagger.config, AdaptedConfig):
        _copy_source(tagger, Path(tagger.config.source), folder / SOURCE_NAME)
        config["source"] = SOURCE_NAME
    saved = {
        "format_version": FORMAT_VERSION,
        "tagger": tagger.name,
        "config": config,
        "vocabulary": tagger.vocabulary.model_dump(mode="json"),
        "trees": tagger.trees,
    }
    if tagger.parser is not None:
        saved["parser"] = tagger.parser
    (folder / CONFIG_NAME).write_text(json.dumps(saved, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    weights = {name: value for name, value in tagger.state_dict().items() if not name.startswith(_ENCODER_PREFIX)}
    write_tensors(_stored(weights, half=half), folder / WEIGHTS_NAME)
    save_calibration(tagger.calibration, folder)


def save_calibration(calibration: Calibration | None, folder: Path) -> None:
    """Write a calibration to the folder of a saved tagger; None removes the existing one."""
    path = folder / CALIBRATION_NAME
    if calibration is None:
        path.unlink(missing_ok=True)
        return
    text = json.dumps(calibration.model_dump(mode="json"), ensure_ascii=False, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


def load_tagger(folder: Path, *, device: str = "cpu") -> Tagger:
    """Load a tagger, ready to predict, to ``cpu``, ``cuda``, or ``auto`` for cuda if available.

    Raises:
        ConfigError: for ``cuda`` where there is none.
        ModelError: if files are missing, broken, of another format, or need an encoder that is not installed.
    """
    picked, saved = pick_device(device), read_saved(folder)
    try:
        config = with_own_encoder(saved.config, folder)
        with _Undrawn():
            vocabulary = Vocabulary.from_mapping(saved.vocabulary, where="vocabulary")
            tagger = build_tagger(saved.tagger, config, vocabulary)
    # A layer of an impossible size is one of the others.
    except (ConcordError, ValueError, TypeError, ArithmeticError, RuntimeError, MemoryError) as error:
        raise ModelError(f"{folder / CONFIG_NAME}: {error or type(error).__name__}") from error
    tagger.trees, tagger.parser = saved.trees, saved.parser
    try:
        weights = {name: value.float() for name, value in load_file(check_regular(folder / WEIGHTS_NAME)).items()}
        loaded = {name: value for name, value in tagger.state_dict().items() if name.startswith(_ENCODER_PREFIX)}
        tagger.load_state_dict(weights | loaded)
    except (OSError, SafetensorError, ValueError, RuntimeError, MemoryError) as error:
        raise ModelError(f"{folder / WEIGHTS_NAME}: {error or type(error).__name__}") from error
    calibration = folder / CALIBRATION_NAME
    tagger.calibration = Calibration.read_json(calibration) if calibration.exists() else None
    return tagger.eval().move_to(picked)


def pick_device(device: str, *, key: str = "device") -> Literal["cpu", "cuda"]:
    """Resolve ``auto`` to ``cuda`` if available, else to ``cpu``.

    Raises:
        ConfigError: for ``cuda`` where there is none; the message starts with ``key``, the setting of the device.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigError(f"{key}: expected a CUDA device, found none; use {key}=auto or cpu")
    return "cuda" if device != "cpu" and available else "cpu"


def write_tensors(tensors: Mapping[str, Tensor], path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Atomically write tensors, replacing an existing file, which may still be mapped into memory."""
    staged = path.with_name(f"{path.name}.staged")
    staged.unlink(missing_ok=True)
    # The library makes files that only their owner can read; a new file has the mode that the umask allows.
    staged.touch()
    mode = stat.S_IMODE(staged.stat().st_mode)
    save_file(dict(tensors), staged, metadata=None if metadata is None else dict(metadata))
    staged.chmod(mode)
    staged.replace(path)


def _save_encoder(tuned: TunedEncoder, folder: Path, *, half: bool) -> str:
    """Save a tuned encoder to a folder of its own and return the sha256, in hex, of its weights."""
    folder.mkdir(exist_ok=True)
    for name, content in tuned.files.items():
        (folder / name).write_bytes(content)
    weights = folder / encoder_config.WEIGHTS_NAME
    write_tensors(_stored(tuned.network.state_dict(), half=half), weights, metadata={"format": "pt"})
    return file_digest(weights).hex()


def _save_difference(config: EncoderConfig, folder: Path) -> None:
    """Save what another training has tuned of a frozen encoder."""
    weights = read_difference(config)  # first: it may be read from the same folder
    folder.mkdir(exist_ok=True)
    write_tensors(_stored(weights, half=True), folder / encoder_config.DIFFERENCE_NAME)


def _copy_source(tagger: AdaptedTagger, source: Path, target: Path) -> None:
    """Copy the files that another library reads, unless the tagger is saved where it was loaded."""
    for path in tagger.source_files(source) if source != target else ():
        copied = target / path.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)


def _stored(weights: Mapping[str, Tensor], *, half: bool) -> dict[str, Tensor]:
    return {
        name: (value.half() if half and value.is_floating_point() else value).cpu().contiguous()
        for name, value in weights.items()
    }
