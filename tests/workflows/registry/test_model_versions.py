"""Versions of models: looked up by name, and downloaded with the registered bytes."""

import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from concord_testing.runs import in_child

from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ConfigError, ModelError
from concord.workflows.bundles import pack_bundle
from concord.workflows.registry import model_versions as registry
from concord.workflows.registry.mlflow_client import TrackingError, download, open_run
from concord.workflows.registry.model_versions import (
    DIGEST_TAG,
    ModelVersion,
    create_model,
    fetch,
    model_names,
    register_command,
    resolve,
    versions,
)

pytestmark = pytest.mark.slow


def register(bundle: Path, *, alias: str | None = None) -> ModelVersion:
    run = open_run(experiment="test", name="run", parameters={"a": 1}, tags={"b": "c"})
    version = registry.register(bundle, name="tiny", run_id=run.run_id, alias=alias)
    run.close("FINISHED")
    return version


def test_a_version_is_found_by_alias_and_by_number(store: Path, tiny_bundle: Path) -> None:
    first = register(tiny_bundle, alias="champion")
    second = register(tiny_bundle)
    assert (first.version, second.version) == (1, 2)
    assert resolve("models:/tiny@champion") == resolve("models:/tiny/1") == replace(first, aliases=("champion",))
    assert resolve("models:/tiny/2") == second
    assert second.tags == {DIGEST_TAG: tagger_digest(tiny_bundle)}
    assert second.digest == tagger_digest(tiny_bundle)
    assert second.run_id != first.run_id
    assert second.reference == "models:/tiny/2"


def test_versions_are_listed_newest_first_with_their_aliases(store: Path, tiny_bundle: Path) -> None:
    assert model_names() == []
    first, second = register(tiny_bundle, alias="champion"), register(tiny_bundle)
    assert versions("tiny") == [second, replace(first, aliases=("champion",))]
    assert model_names() == ["tiny"]
    with pytest.raises(ModelError, match="other: not in the registry"):
        versions("other")


def test_a_run_registers_a_bundle_once(store: Path, tiny_bundle: Path) -> None:
    first = register(tiny_bundle)
    assert first.run_id is not None
    again = registry.register(tiny_bundle, name="tiny", run_id=first.run_id, alias="late")
    assert again.version == first.version
    assert [version.aliases for version in versions("tiny")] == [("late",)]


@pytest.mark.parametrize("name", ["", "a/b", "a@b", "o'brien"])
def test_an_invalid_name_is_refused(store: Path, tiny_bundle: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="a model's name"):
        register_command(tiny_bundle, name=name, alias=None)
    assert model_names() == []


def test_a_registered_model_is_created_once(store: Path) -> None:
    create_model("tiny")
    create_model("tiny")
    assert model_names() == ["tiny"]
    with pytest.raises(TrackingError, match="could not be created in the registry"):
        create_model("")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("models:/tiny", "expected models:/NAME@ALIAS or models:/NAME/VERSION"),
        ("models:/tiny/latest", "expected models:/NAME@ALIAS or models:/NAME/VERSION"),
        ("models:/tiny@none", "not in the registry"),
        ("models:/tiny/9", "not in the registry"),
        ("models:/other@champion", "not in the registry"),
    ],
)
def test_a_missing_version_is_a_model_error(store: Path, tiny_bundle: Path, reference: str, message: str) -> None:
    register(tiny_bundle)
    with pytest.raises(ModelError, match=message):
        resolve(reference)


def test_a_lookup_does_not_create_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ModelError, match="there is no registry at sqlite"):
        resolve("models:/tiny@champion")
    assert list(tmp_path.iterdir()) == []


def stored(version: ModelVersion) -> Path:
    """Return the folder of a version's bundle in the store."""
    return Path(version.source.removeprefix("file://")) / registry.DATA


def test_a_bundle_is_downloaded_once_and_checked(store: Path, tiny_bundle: Path) -> None:
    version = register(tiny_bundle)
    folder = fetch(version)
    assert folder == store / "cache" / "bundles" / tagger_digest(tiny_bundle)
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "tagger.json", "weights.safetensors"}
    assert (folder / "tagger.json").read_bytes() == (tiny_bundle / "tagger.json").read_bytes()
    (stored(version) / "tagger.json").unlink()
    assert fetch(version) == folder
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f"{folder.name}.lock"}


@pytest.mark.parametrize("name", ["tagger.json", "weights.safetensors"])
def test_a_bundle_that_was_changed_is_refused(store: Path, tiny_bundle: Path, name: str) -> None:
    version = register(tiny_bundle)
    (stored(version) / name).write_bytes((stored(version) / name).read_bytes() + b" ")
    with pytest.raises(ModelError, match=rf"models:/tiny/1: .*{name}: expected the sha256 \w+ of manifest.json, got"):
        fetch(version)
    assert [path.suffix for path in (store / "cache" / "bundles").iterdir()] == [".lock"]


def test_a_bundle_whose_manifest_was_changed_with_it_is_refused(store: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    version = register(tiny_bundle)
    other = Path(shutil.copytree(tiny_bundle, tmp_path / "other"))
    (other / "tagger.json").write_bytes((other / "tagger.json").read_bytes() + b" ")
    shutil.rmtree(stored(version))
    pack_bundle(other, stored(version))
    with pytest.raises(ModelError, match=f"expected the digest {version.digest}, got {tagger_digest(other)}"):
        fetch(version)


def test_a_version_registered_by_other_software_is_refused(store: Path, tiny_bundle: Path) -> None:
    version = register(tiny_bundle)
    with pytest.raises(ModelError, match=r"models:/tiny/1: expected a sha256 in the tag concord\.digest, got none"):
        fetch(replace(version, digest=None))


def test_four_processes_download_a_bundle_once(store: Path, tiny_bundle: Path) -> None:
    version = register(tiny_bundle)
    processes = [in_child(partial(fetch_slowly, version)) for _ in range(4)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert (store / "fetched").read_text() == f"{store / 'cache' / 'bundles' / str(version.digest)}\n" * 4
    assert (store / "downloads").read_text() == "x"


def fetch_slowly(version: ModelVersion) -> None:
    """Fetch a bundle in the working folder, with a line in ``fetched``, and a letter in ``downloads`` if it has to."""

    def slow_download(source: str, folder: Path) -> Path:
        with Path("downloads").open("a") as log:
            log.write("x")
        time.sleep(0.5)
        return download(source, folder)

    with mock.patch.object(registry, "download", slow_download):
        folder = fetch(version)
    with Path("fetched").open("a") as log:
        log.write(f"{folder}\n")


def test_a_damaged_copy_is_downloaded_again(store: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = register(tiny_bundle)
    copy = fetch(version)
    (copy / "tagger.json").write_text("{}")
    assert fetch(version) == copy
    assert (copy / "tagger.json").read_bytes() == (tiny_bundle / "tagger.json").read_bytes()
    assert "is damaged and downloaded again" in capsys.readouterr().err
