"""Packed bundles: data only, with the sha256 of every file."""

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ConfigError, ModelError
from concord.workflows.bundles import check_bundle, pack_bundle
from concord.workflows.corpora import read_provenance
from concord.workflows.registry import find_entity_tagger

pytestmark = pytest.mark.slow


@pytest.fixture
def packed(tiny_bundle: Path, tmp_path: Path) -> Path:
    pack_bundle(tiny_bundle, tmp_path / "packed")
    return tmp_path / "packed"


def test_the_manifest_names_every_file(packed: Path) -> None:
    manifest = check_bundle(packed)
    weights = hashlib.sha256((packed / "weights.safetensors").read_bytes()).hexdigest()
    assert set(manifest.files) == {"tagger.json", "weights.safetensors"}
    assert manifest.files["weights.safetensors"] == weights
    assert manifest.digest == tagger_digest(packed)


def test_only_files_of_the_bundle_are_packed(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    (bundle / "encoder").mkdir()
    for name in ("calibration.json", "provenance.json", "README.md", "encoder/merges", "state.pt", "script.py"):
        (bundle / name).write_text("{}")
    pack_bundle(bundle, tmp_path / "packed")
    expected = {"tagger.json", "weights.safetensors", "calibration.json", "provenance.json", "README.md"}
    assert set(check_bundle(tmp_path / "packed").files) == {*expected, "encoder/merges"}


def test_a_packed_bundle_can_be_packed_again(packed: Path, tmp_path: Path) -> None:
    pack_bundle(packed, tmp_path / "again")
    assert check_bundle(tmp_path / "again") == check_bundle(packed)


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


def _places(values: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of every value in JSON, of lists only those of the first."""
    yield place
    items = values.items() if isinstance(values, dict) else enumerate(values[:1]) if isinstance(values, list) else ()
    for key, value in items:
        yield from _places(value, (*place, key))


def _replaced(values: Any, place: tuple[str | int, ...], new: Any) -> Any:
    if not place:
        return new
    copy: Any = dict(values) if isinstance(values, dict) else list(values)
    copy[place[0]] = _replaced(values[place[0]], place[1:], new)
    return copy


def _use(folder: Path) -> None:
    find_entity_tagger(str(folder))
    load_tagger(folder, device="cpu")
    read_provenance(folder)
    check_bundle(folder)


@pytest.mark.parametrize("name", ["tagger.json", "calibration.json", "provenance.json", "manifest.json"])
def test_a_value_of_another_type_is_no_bug(packed: Path, name: str) -> None:
    (packed / "calibration.json").write_text('{"tokens": {"method": "temperature", "temperature": 1.5}}')
    (packed / "provenance.json").write_text('{"parts": [{"role": "train", "files": [], "documents": ["a"]}]}')
    original = json.loads((packed / name).read_text())
    for place in _places(original):
        others: tuple[Any, ...] = (7, "text", None, [7], {"a": []})
        for new in others:
            (packed / name).write_text(json.dumps(_replaced(original, place, new)))
            with suppress(ModelError, ConfigError):
                _use(packed)


@pytest.mark.parametrize("name", ["tagger.json", "weights.safetensors", "calibration.json", "manifest.json"])
def test_damaged_files_are_no_bug(packed: Path, name: str) -> None:
    (packed / "calibration.json").write_text('{"tokens": {"method": "temperature", "temperature": 1.5}}')
    content, chance = (packed / name).read_bytes(), random.Random(1)
    for _ in range(15):
        flipped = bytearray(content)
        for _ in range(3):
            flipped[chance.randrange(min(500, len(content)))] ^= 1 << chance.randrange(8)
        for damaged in (flipped, content[: chance.randrange(len(content))], chance.randbytes(chance.randrange(200))):
            (packed / name).write_bytes(damaged)
            with suppress(ModelError, ConfigError):
                _use(packed)


def test_a_number_in_place_of_a_list_is_named(packed: Path) -> None:
    values = json.loads((packed / "tagger.json").read_text())
    (packed / "tagger.json").write_text(json.dumps(_replaced(values, ("vocabulary", "words"), 7)))
    with pytest.raises(ModelError, match=r"tagger\.json: vocabulary: words: input should be .* array, got 7"):
        load_tagger(packed, device="cpu")
