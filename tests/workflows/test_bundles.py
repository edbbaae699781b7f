"""Packed bundles: data only, with the sha256 of every file and the signature of the parser."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from concord.models.checkpoint import tagger_digest
from concord.pipeline.config import ParserConfig
from concord.pipeline.errors import ModelError
from concord.pipeline.identity import component_signature
from concord.pipeline.parsing.stanza_parser import parser_identity
from concord.workflows.bundles import check_bundle, pack_bundle


@pytest.fixture
def packed(tiny_bundle: Path, tmp_path: Path) -> Path:
    pack_bundle(tiny_bundle, tmp_path / "packed")
    return tmp_path / "packed"


def test_the_manifest_names_every_file_and_the_parser(packed: Path) -> None:
    manifest = check_bundle(packed)
    weights = hashlib.sha256((packed / "weights.safetensors").read_bytes()).hexdigest()
    assert set(manifest["files"]) == {"tagger.json", "weights.safetensors"}
    assert manifest["files"]["weights.safetensors"] == weights
    assert manifest["digest"] == tagger_digest(packed)
    assert manifest["parser"] == component_signature(parser_identity(ParserConfig()))


def test_only_files_of_the_bundle_are_packed(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    (bundle / "encoder").mkdir()
    for name in ("calibration.json", "provenance.json", "README.md", "encoder/merges", "state.pt", "script.py"):
        (bundle / name).write_text("{}")
    pack_bundle(bundle, tmp_path / "packed")
    expected = {"tagger.json", "weights.safetensors", "calibration.json", "provenance.json", "README.md"}
    assert set(check_bundle(tmp_path / "packed")["files"]) == {*expected, "encoder/merges"}


def test_a_packed_bundle_can_be_packed_again(packed: Path, tmp_path: Path) -> None:
    pack_bundle(packed, tmp_path / "again")
    assert check_bundle(tmp_path / "again") == check_bundle(packed)


def test_the_manifest_names_the_parser_that_a_tagger_was_trained_on(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    saved = json.loads((bundle / "tagger.json").read_text())
    for trees, parser in (("big@0123", "big@0123"), ("gold", component_signature(parser_identity(ParserConfig())))):
        (bundle / "tagger.json").write_text(json.dumps(saved | {"trees": trees}))
        pack_bundle(bundle, tmp_path / trees)
        assert check_bundle(tmp_path / trees)["parser"] == parser


def test_a_changed_missing_or_unknown_file_is_named(packed: Path) -> None:
    (packed / "extra.json").write_text("{}")
    with pytest.raises(ModelError, match=r"extra\.json: not in manifest\.json"):
        check_bundle(packed)
    (packed / "extra.json").unlink()
    content = bytearray((packed / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (packed / "weights.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"weights\.safetensors: expected the sha256 \w+ of manifest\.json, got"):
        check_bundle(packed)
    (packed / "weights.safetensors").unlink()
    with pytest.raises(ModelError, match=r"weights\.safetensors: .* got no file"):
        check_bundle(packed)


@pytest.mark.parametrize("content", [None, "[", "[]", '{"format_version": 0}'])
def test_an_unreadable_manifest_is_refused(packed: Path, content: str | None) -> None:
    (packed / "manifest.json").unlink()
    if content is not None:
        (packed / "manifest.json").write_text(content)
    with pytest.raises(ModelError, match=r"manifest\.json: expected"):
        check_bundle(packed)


def test_an_incomplete_bundle_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    (bundle / "weights.safetensors").unlink()
    with pytest.raises(ModelError, match=r"weights\.safetensors"):
        pack_bundle(bundle, tmp_path / "packed")
