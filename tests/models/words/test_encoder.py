"""Finding an encoder in folders and installed packages, and errors when one is missing."""

import sys
from pathlib import Path

import pytest

from concord.models.errors import EncoderMissingError
from concord.models.words.encoder import read_encoder
from concord.models.words.encoder_config import EncoderConfig, find_encoder


def test_missing_encoder_says_where_it_may_be() -> None:
    config = EncoderConfig(source="no_such_encoder")
    with pytest.raises(EncoderMissingError, match=r"expected multilingual-e5-small, a folder .*'no_such_encoder'"):
        find_encoder(config.source)


def test_missing_transformers_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = EncoderConfig(source=str(tmp_path))
    with pytest.raises(EncoderMissingError, match=r"transformers.*extra 'hf'"):
        read_encoder(config)


def test_folder_without_weights_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(EncoderMissingError, match=r"expected .*model\.safetensors"):
        find_encoder(str(tmp_path))


def test_package_is_found_without_running_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "encoder_in_a_package"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('this code must not run')\n")
    (package / "model" / "model.safetensors").write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_encoder(package.name) == package / "model"
    assert package.name not in sys.modules
