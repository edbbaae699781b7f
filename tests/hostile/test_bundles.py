"""A tagger that somebody else has made: it is loaded, tagged with or packed, or a named error says why not."""

import shutil
from pathlib import Path

import pytest
from concord_testing import hostile
from concord_testing.command_line import concord as command
from concord_testing.tiny_taggers import tiny_bundle

import concord
from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import read_saved, tagger_digest
from concord.models.errors import ConcordError, ModelError
from concord.workflows.bundles import copy_bundle
from concord.workflows.registry import ModelVersion, fetch

__all__ = ["tiny_bundle"]

FILES = ("tagger.json", "weights.safetensors", "calibration.json")
KINDS = ("dangling_link", "loop", "link_to_device", "fifo", "folder", *hostile.CONTENTS)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Return a copy of a tagger, to be attacked."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_bundles_with_other_things_in_place_of_files_are_refused(
    bundle: Path, tmp_path: Path, name: str, kind: str
) -> None:
    hostile.replace(bundle / name, kind, tmp_path)
    if name == "calibration.json" and kind in {"dangling_link", "loop"}:
        load_tagger(bundle)  # as if there were none
        return
    with pytest.raises(ModelError, match=name.split("/")[-1]):
        load_tagger(bundle)


@pytest.mark.parametrize("kind", ["dangling_link", "loop", "link_to_device", "fifo"])
@pytest.mark.parametrize("name", ["encoder/config.json", "encoder/tokenizer.json", "encoder/deep/er"])
def test_whatever_is_no_file_within_a_bundle_is_named(bundle: Path, tmp_path: Path, name: str, kind: str) -> None:
    hostile.replace(bundle / name, kind, tmp_path)
    with pytest.raises(ModelError, match=f"{name}: expected a file of a saved tagger"):
        load_tagger(bundle)


@pytest.mark.parametrize("name", ["README.md", "calibration.json", "tagger.json", "encoder", "encoder/notes.txt"])
def test_links_of_a_bundle_are_not_copied(bundle: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.txt").write_text("secret")
    (bundle / name).parent.mkdir(exist_ok=True)
    target = tmp_path / "secret" if name.endswith("encoder") else tmp_path / "secret" / "key.txt"
    if name == "tagger.json":
        target = bundle / "original.json"
        (bundle / name).rename(target)
    (bundle / name).symlink_to(target)
    with pytest.raises(ModelError, match=f"{name}: expected a file of the bundle, got a link"):
        copy_bundle(bundle, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("digest", ["../victim", "/tmp/victim", "", "0" * 63, "0" * 64 + "\n", "A" * 64])
def test_digests_of_a_registry_name_no_other_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    monkeypatch.setenv("CONCORD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "victim").mkdir(parents=True)
    with pytest.raises(ModelError, match=r"expected a sha256 in the tag concord\.digest"):
        fetch(ModelVersion(name="tiny", version=1, digest=digest, source="nowhere"))
    assert (tmp_path / "cache" / "victim").exists()


def test_bundle_behind_a_link_is_the_users(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(bundle)
    copy_bundle(tmp_path / "link", tmp_path / "copy")
    assert tagger_digest(tmp_path / "copy") == tagger_digest(bundle)
    assert load_tagger(tmp_path / "link").trees == read_saved(bundle).trees


@pytest.mark.parametrize("kind", ["fifo", "link_to_device", "deep", "number"])
def test_commands_name_what_is_wrong_with_a_bundle(bundle: Path, tmp_path: Path, kind: str) -> None:
    hostile.replace(bundle / "tagger.json", kind, tmp_path)
    result = command("tag", "Anna met Bob.", "-m", bundle)
    assert (type(result.exception), result.exit_code) == (SystemExit, 2), result.output
    with pytest.raises(ConcordError):
        concord.load(str(bundle))


@pytest.mark.parametrize("name", ["tagger.json", "weights.safetensors"])
def test_files_without_end_are_not_hashed(bundle: Path, tmp_path: Path, name: str) -> None:
    hostile.replace(bundle / name, "sparse", tmp_path)
    with pytest.raises(ModelError, match=f"{name}: more than"):
        tagger_digest(bundle)
