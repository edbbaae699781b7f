"""Versions in the registry and ``concord registry``, and the tagger that a name means."""

import json
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from concord_testing.command_line import concord
from concord_testing.runs import in_child

from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ConfigError, ModelError
from concord.workflows import registry
from concord.workflows.mlflow_client import TrackingError, download, open_run
from concord.workflows.registry import (
    DIGEST_TAG,
    ModelVersion,
    bundled_names,
    create_model,
    fetch,
    find_tagger,
    model_names,
    register_command,
    resolve,
    versions,
)

pytestmark = pytest.mark.slow


def register(bundle: Path, *, alias: str | None = None) -> ModelVersion:
    with open_run(experiment="test", name="run", parameters={"a": 1}, tags={"b": "c"}) as run:
        return registry.register(bundle, name="tiny", run_id=run.run_id, alias=alias)


def test_versions_are_found_by_alias_and_by_number_and_listed_newest_first(store: Path, tiny_bundle: Path) -> None:
    assert model_names() == []
    first = register(tiny_bundle, alias="champion")
    second = register(tiny_bundle)
    assert (first.version, second.version) == (1, 2)
    assert resolve("models:/tiny@champion") == resolve("models:/tiny/1") == replace(first, aliases=("champion",))
    assert resolve("models:/tiny/2") == second
    assert second.tags == {DIGEST_TAG: tagger_digest(tiny_bundle)}
    assert second.digest == tagger_digest(tiny_bundle)
    assert second.run_id != first.run_id
    assert second.reference == "models:/tiny/2"
    assert versions("tiny") == [second, replace(first, aliases=("champion",))]
    assert model_names() == ["tiny"]
    with pytest.raises(ModelError, match="other: not in the registry"):
        versions("other")


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
@pytest.mark.usefixtures("registered_store")
def test_a_missing_version_is_a_model_error(reference: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(reference)


@pytest.fixture
def version(registered_store: Path) -> ModelVersion:
    """Return version 1 of ``tiny``, whose store is in the working folder."""
    del registered_store
    return resolve("models:/tiny/1")


def stored(version: ModelVersion) -> Path:
    """Return the folder of a version's bundle in the store."""
    return Path(version.source.removeprefix("file://")) / registry.DATA


def test_a_bundle_is_downloaded_once_and_checked(version: ModelVersion, tiny_bundle: Path) -> None:
    folder = fetch(version)
    assert folder == Path.cwd() / "cache" / "bundles" / tagger_digest(tiny_bundle)
    assert {path.name for path in folder.iterdir()} == {"tagger.json", "weights.safetensors"}
    assert (folder / "tagger.json").read_bytes() == (tiny_bundle / "tagger.json").read_bytes()
    (stored(version) / "tagger.json").unlink()
    assert fetch(version) == folder
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f"{folder.name}.lock"}


@pytest.mark.parametrize("name", ["tagger.json", "weights.safetensors"])
def test_a_bundle_that_was_changed_is_refused(version: ModelVersion, tiny_bundle: Path, name: str) -> None:
    (stored(version) / name).write_bytes((stored(version) / name).read_bytes() + b" ")
    with pytest.raises(ModelError, match=f"models:/tiny/1: expected the digest {version.digest}, got"):
        fetch(version)
    (stored(version) / name).unlink()
    with pytest.raises(ModelError, match=rf"models:/tiny/1: .*{name}"):
        fetch(version)
    assert not list(Path("cache/bundles").iterdir())


def test_a_version_registered_by_other_software_is_refused(version: ModelVersion, tiny_bundle: Path) -> None:
    with pytest.raises(ModelError, match=r"models:/tiny/1: expected a sha256 in the tag concord\.digest, got none"):
        fetch(replace(version, digest=None))


def test_two_processes_fetch_a_bundle_at_once(version: ModelVersion, tiny_bundle: Path) -> None:
    processes = [in_child(partial(fetch_slowly, version)) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 2
    assert Path("fetched").read_text() == f"{Path.cwd()}/cache/bundles/{version.digest}\n" * 2
    assert tagger_digest(Path("cache/bundles") / str(version.digest)) == version.digest


def fetch_slowly(version: ModelVersion) -> None:
    """Fetch a bundle in the working folder, with a line in ``fetched``."""

    def slow_download(source: str, folder: Path) -> Path:
        time.sleep(0.5)
        return download(source, folder)

    with mock.patch.object(registry, "download", slow_download):
        folder = fetch(version)
    with Path("fetched").open("a") as log:
        log.write(f"{folder}\n")


def test_a_damaged_copy_is_downloaded_again(version: ModelVersion, tiny_bundle: Path) -> None:
    copy = fetch(version)
    (copy / "tagger.json").write_text("{}")
    assert fetch(version) == copy
    assert (copy / "tagger.json").read_bytes() == (tiny_bundle / "tagger.json").read_bytes()


def with_config(folder: Path, config: dict[str, Any]) -> Path:
    """Change keys of the configuration of a saved tagger; return its folder."""
    saved = json.loads((folder / "tagger.json").read_text())
    saved["config"] |= config
    (folder / "tagger.json").write_text(json.dumps(saved))
    return folder


@pytest.fixture
def bundled(tmp_path: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of bundled taggers."""
    folder = tmp_path / "pretrained"
    for name in ("entities_multi", "entities_bio"):
        shutil.copytree(tiny_bundle, folder / name)
    monkeypatch.setattr(registry, "BUNDLED_FOLDER", folder)
    return folder


def test_a_folder_is_named_after_its_tagger(tiny_bundle: Path, tmp_path: Path) -> None:
    found = find_tagger(str(tiny_bundle))
    assert (found.name, found.version, found.digest) == ("bilstm_crf", None, tagger_digest(tiny_bundle))
    moved = shutil.copytree(tiny_bundle, tmp_path / "elsewhere")
    assert find_tagger(str(moved)).name == found.name


def test_the_folder_of_a_training_points_to_its_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "runs" / "mine" / "bundle")
    with pytest.raises(ModelError, match=r"that of a training; its tagger is .*runs/mine/bundle"):
        find_tagger(str(tmp_path / "runs" / "mine"))


def test_a_registered_version_is_fetched_into_the_cache(version: ModelVersion) -> None:
    found = find_tagger("models:/tiny@live")
    assert (found.name, found.version, found.digest) == ("tiny", "1", version.digest)
    assert found.folder.is_relative_to(Path.cwd() / "cache")


@pytest.mark.usefixtures("bundled")
def test_an_unknown_name_suggests_the_nearest() -> None:
    assert bundled_names() == ("entities_bio", "entities_multi")
    with pytest.raises(ModelError, match="did you mean 'entities_bio'"):
        find_tagger("entity_bio")
    with pytest.raises(ModelError, match="bundled are entities_bio, entities_multi"):
        find_tagger("xyz")


def test_a_tuned_encoder_needs_only_the_library(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "tuned"))
    with_config(folder, {"encoder": {"source": "encoder", "tuned": True}})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "transformers" else None)
    assert find_tagger(str(folder)).digest == tagger_digest(folder)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ModelError, match=r"^bilstm_crf: the library transformers is not installed: pip install '\.\[hf\]'$"
    ):
        find_tagger(str(folder))


@pytest.mark.parametrize(
    "config",
    [
        {"encoder": {"source": "no_such_encoder"}},
        {"representation": {"form_vectors": {"encoder": {"source": "no_such_encoder"}}}},
    ],
)
def test_a_folder_whose_encoder_is_missing_is_refused(
    tiny_bundle: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    folder = with_config(Path(shutil.copytree(tiny_bundle, tmp_path / "missing")), config)
    expected = (
        "bilstm_crf: encoder.source: expected multilingual-e5-small, a folder or an installed package, "
        "got 'no_such_encoder'"
    )
    with pytest.raises(ModelError) as caught:
        find_tagger(str(folder))
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"encoder": {"last_layers": 0}}, r"tagger\.json: encoder: last_layers: .* got 0"),
        (
            {"representation": {"form_vectors": {"encoder": {"sources": "x"}}}},
            r"tagger\.json: representation\.form_vectors: encoder\.sources: unknown key; did you mean 'source'",
        ),
        ({"representation": {"form_vectors": {"hidden": 1}}}, r"representation\.form_vectors: hidden: .* got 1"),
        ({"representation": {"form_vectors": "yes"}}, r"representation\.form_vectors: .* got 'yes'"),
    ],
)
def test_a_faulty_configuration_of_an_encoder_is_refused(
    tiny_bundle: Path, tmp_path: Path, config: dict[str, Any], expected: str
) -> None:
    folder = with_config(Path(shutil.copytree(tiny_bundle, tmp_path / "faulty")), config)
    with pytest.raises(ModelError, match=expected):
        find_tagger(str(folder))


def test_the_bundled_encoder_needs_nothing(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: dict[str, Any] = {"encoder": {}, "representation": {"form_vectors": {"encoder": {}}}}
    folder = with_config(Path(shutil.copytree(tiny_bundle, tmp_path / "bundled")), config)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_tagger(str(folder)).digest == tagger_digest(folder)


def test_a_bundle_is_registered_once(store: Path, tiny_bundle: Path) -> None:
    first = concord("registry", "register", tiny_bundle, "--name", "tiny", "--alias", "live")
    assert first.exit_code == 0, first.output
    assert "registered  models:/tiny/1\n" in first.stdout
    again = json.loads(concord("registry", "register", tiny_bundle, "--name", "tiny", "--json").stdout)
    assert (again["version"], again["digest"]) == (1, tagger_digest(tiny_bundle))
    other = json.loads(concord("registry", "register", tiny_bundle, "--name", "other", "--json").stdout)
    assert (other["name"], other["version"]) == ("other", 1)


def test_models_are_listed_and_shown(store: Path, tiny_bundle: Path, token_bundle: Path) -> None:
    for bundle in (tiny_bundle, token_bundle):
        concord("registry", "register", bundle, "--name", "tiny", "--alias", f"of_{bundle.name}")
    listed = concord("registry", "list")
    assert listed.stdout.splitlines()[1].split() == ["tiny", "2", "2", "of_tiny", "1,", "of_tokens", "2"]
    assert json.loads(concord("registry", "list", "--json").stdout)["models"] == [
        {"name": "tiny", "versions": 2, "newest": 2, "aliases": {"of_tokens": 2, "of_tiny": 1}}
    ]
    shown = json.loads(concord("registry", "show", "tiny", "--json").stdout)
    assert [version["version"] for version in shown["versions"]] == [2, 1]
    for place in ("tiny/1", "tiny@of_tiny", "models:/tiny/1"):
        one = json.loads(concord("registry", "show", place, "--json").stdout)
        assert one == shown["versions"][1]
    assert f"concord.digest {tagger_digest(tiny_bundle)}" in concord("registry", "show", "tiny/1").stdout


def test_register_does_not_move_an_alias_of_a_newer_version(store: Path, tiny_bundle: Path, token_bundle: Path) -> None:
    for bundle in (tiny_bundle, token_bundle, tiny_bundle):
        concord("registry", "register", bundle, "--name", "tiny", "--alias", "live")
    assert resolve("models:/tiny@live").version == 2


def test_a_folder_without_a_bundle_is_refused(store: Path, tmp_path: Path) -> None:
    refused = concord("registry", "register", tmp_path, "--name", "tiny")
    assert (refused.exit_code, "tagger.json" in refused.stderr) == (2, True)


@pytest.mark.parametrize("alias", ["champion", "previous"])
def test_register_refuses_the_aliases_that_only_promotion_may_move(tiny_bundle: Path, alias: str) -> None:
    result = concord("registry", "register", tiny_bundle, "--name", "tiny", "--alias", alias)
    assert result.exit_code == 2
    assert "concord promote" in result.stderr
