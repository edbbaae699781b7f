"""Write a Stanza package of trained networks: weights in 16 bits, the index, and what other networks they need."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch

_PACKAGE = "compact"
_PROCESSORS = ("tokenize", "mwt", "pos", "lemma", "depparse")
_NEED_VECTORS = ("pos", "depparse")


def pack(trained: Path, earlier: Path, output: Path) -> None:
    """Write the package: ``tokenize.pt``, ``pos.pt``, ``depparse.pt`` and ``pretrain.pt`` of a folder.

    The rest, multi-word tokens and lemmas, comes from an earlier package.
    """
    models: dict[str, dict[str, Any]] = {}
    for processor in (*_PROCESSORS, "pretrain"):
        target = output / "en" / processor / f"{_PACKAGE}.pt"
        target.parent.mkdir(parents=True, exist_ok=True)
        source = trained / f"{processor}.pt"
        if source.exists():
            torch.save(_halved(torch.load(source, weights_only=True), whole=processor == "pretrain"), target)
        else:
            shutil.copyfile(earlier / "en" / processor / target.name, target)
        needs = [{"model": "pretrain", "package": _PACKAGE}] if processor in _NEED_VECTORS else []
        md5 = hashlib.md5(target.read_bytes(), usedforsecurity=False).hexdigest()
        models[processor] = {_PACKAGE: {"md5": md5, "dependencies": needs}}
    processors = dict.fromkeys(_PROCESSORS, _PACKAGE)
    english = {"lang_name": "English", "packages": {_PACKAGE: processors, "default": processors}, **models}
    index = {"en": english, "english": {"alias": "en"}, "url": ""}
    (output / "resources.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def pack_multilingual(trained: Path, output: Path) -> None:
    """Write ``tokenize.pt`` and ``mwt.pt`` as a package that Stanza reads for any language."""
    models: dict[str, dict[str, Any]] = {}
    for processor in _PROCESSORS[:2]:
        target = output / "multilingual" / processor / f"{_PACKAGE}.pt"
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(
            _halved(torch.load(trained / f"{processor}.pt", weights_only=True), whole=processor == "mwt"), target
        )
        md5 = hashlib.md5(target.read_bytes(), usedforsecurity=False).hexdigest()
        models[processor] = {_PACKAGE: {"md5": md5, "dependencies": []}}
    chosen = dict.fromkeys(models, _PACKAGE)
    language = {"lang_name": "Multilingual", "packages": {_PACKAGE: chosen, "default": chosen}, **models}
    index = {"multilingual": language, "url": ""}
    (output / "resources.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _halved(saved: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """Return what is saved with weights of 16 bits, but for vectors, which Stanza computes with as they are."""
    if whole:
        return saved
    weights = {
        name: value.half() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in saved["model"].items()
    }
    return {**saved, "model": weights}
