"""Find the tagger that a name means."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ModelError
from concord.workflows.registry import resolve_tagger as taggers
from concord.workflows.registry.mlflow_client import open_run
from concord.workflows.registry.model_versions import register
from concord.workflows.registry.resolve_tagger import DEFAULT, bundled_names, find_tagger


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
    for name in (DEFAULT, "entities_bio"):
        shutil.copytree(tiny_bundle, folder / name)
    monkeypatch.setattr(taggers, "BUNDLED_FOLDER", folder)
    return folder


def test_a_folder_is_named_after_its_tagger(tiny_bundle: Path, tmp_path: Path) -> None:
    found = find_tagger(str(tiny_bundle))
    assert (found.name, found.version, found.digest) == ("bilstm_crf", None, tagger_digest(tiny_bundle))
    moved = shutil.copytree(tiny_bundle, tmp_path / "elsewhere")
    assert find_tagger(str(moved)).name == found.name


def test_a_broken_folder_is_a_model_error(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "broken"))
    (folder / "weights.safetensors").unlink()
    with pytest.raises(ModelError, match=r"weights\.safetensors"):
        find_tagger(str(folder))
    (folder / "tagger.json").write_text("[")
    with pytest.raises(ModelError, match="expected JSON"):
        find_tagger(str(folder))
    (folder / "tagger.json").write_text("[]")
    with pytest.raises(ModelError, match=r"tagger\.json: input should be an object, got \[\]"):
        find_tagger(str(folder))


def test_the_folder_of_a_training_points_to_its_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "runs" / "mine" / "bundle")
    with pytest.raises(ModelError, match=r"that of a training; its tagger is .*runs/mine/bundle"):
        find_tagger(str(tmp_path / "runs" / "mine"))


@pytest.mark.slow
def test_a_registered_version_is_fetched_into_the_cache(store: Path, tiny_bundle: Path) -> None:
    run = open_run(experiment="test", name="run", parameters={}, tags={})
    register(tiny_bundle, name="tiny", run_id=run.run_id, alias="champion")
    found = find_tagger("models:/tiny@champion")
    assert (found.name, found.version, found.digest) == ("tiny", "1", tagger_digest(tiny_bundle))
    assert found.folder.is_relative_to(store / "cache")


@pytest.mark.usefixtures("bundled")
def test_an_unknown_name_suggests_the_nearest() -> None:
    assert bundled_names() == ("entities_bio", DEFAULT)
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
