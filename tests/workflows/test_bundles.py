"""Bundles: which files are theirs, and what is said of damaged ones."""

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
from concord.workflows.bundles import copy_bundle
from concord.workflows.corpora import read_provenance
from concord.workflows.registry import find_entity_tagger

pytestmark = pytest.mark.slow


@pytest.fixture
def packed(tiny_bundle: Path, tmp_path: Path) -> Path:
    copy_bundle(tiny_bundle, tmp_path / "packed")
    return tmp_path / "packed"


def test_only_files_of_the_bundle_are_copied(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    (bundle / "encoder").mkdir()
    for name in ("calibration.json", "provenance.json", "README.md", "encoder/merges", "state.pt", "script.py"):
        (bundle / name).write_text("{}")
    copy_bundle(bundle, tmp_path / "copy")
    copied = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*.*")}
    assert copied == {"tagger.json", "weights.safetensors", "calibration.json", "provenance.json", "README.md"}
    assert (tmp_path / "copy" / "encoder" / "merges").is_file()
    assert tagger_digest(tmp_path / "copy") == tagger_digest(bundle)


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


@pytest.mark.parametrize("name", ["tagger.json", "calibration.json", "provenance.json"])
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


@pytest.mark.parametrize("name", ["tagger.json", "weights.safetensors", "calibration.json"])
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
