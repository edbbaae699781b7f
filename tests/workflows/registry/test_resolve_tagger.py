"""Find the tagger that a name means."""

import json
import shutil
from pathlib import Path

import pytest

from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ModelError
from concord.pipeline.identity import component_signature
from concord.workflows.registry import resolve_tagger as taggers
from concord.workflows.registry.mlflow_client import open_run
from concord.workflows.registry.model_versions import register
from concord.workflows.registry.resolve_tagger import DEFAULT, FALLBACK, bundled_names, find_tagger


@pytest.fixture
def bundled(tmp_path: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of bundled taggers whose default needs an encoder that does not exist."""
    folder = tmp_path / "pretrained"
    for name in (DEFAULT, FALLBACK):
        shutil.copytree(tiny_bundle, folder / name)
    path = folder / DEFAULT / "tagger.json"
    saved = json.loads(path.read_text())
    saved["config"]["encoder"] = {"source": "no_such_encoder"}
    path.write_text(json.dumps(saved))
    monkeypatch.setattr(taggers, "BUNDLED_FOLDER", folder)
    return folder


def test_a_folder_is_named_after_its_tagger(tiny_bundle: Path, tmp_path: Path) -> None:
    found = find_tagger(str(tiny_bundle))
    assert (found.name, found.version, found.digest) == ("bilstm_crf", None, tagger_digest(tiny_bundle))
    moved = shutil.copytree(tiny_bundle, tmp_path / "elsewhere")
    assert find_tagger(str(moved)).name == found.name


def test_a_tagger_without_the_encoder_of_its_form_vectors_is_another_one(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "alone"))
    saved = json.loads((folder / "tagger.json").read_text())
    saved["config"]["representation"]["form_vectors"] = {"source": "no_such_encoder"}
    (folder / "tagger.json").write_text(json.dumps(saved))
    found = find_tagger(str(folder))
    assert component_signature(found.identity) == f"bilstm_crf@{found.digest}+table"
    assert not find_tagger(str(tiny_bundle)).table_alone


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
def test_the_small_tagger_replaces_a_default_that_the_user_did_not_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_tagger(DEFAULT, named=False).name == FALLBACK
    warned = capsys.readouterr().err
    assert warned.count("\n") == 1
    assert "no_such_encoder is not installed: using entities_en_small instead of entities_en" in warned
    with pytest.raises(ModelError, match=r"no_such_encoder, which is not installed: pip install"):
        find_tagger(DEFAULT)


def test_a_missing_encoder_is_reported_when_there_is_no_small_tagger(bundled: Path) -> None:
    shutil.rmtree(bundled / FALLBACK)
    with pytest.raises(ModelError, match="no_such_encoder, which is not installed"):
        find_tagger(DEFAULT, named=False)


@pytest.mark.usefixtures("bundled")
def test_an_unknown_name_suggests_the_nearest() -> None:
    assert bundled_names() == (DEFAULT, FALLBACK)
    with pytest.raises(ModelError, match="did you mean 'entities_en_small'"):
        find_tagger("entities_small")
    with pytest.raises(ModelError, match="bundled are entities_en, entities_en_small"):
        find_tagger("xyz")


def test_a_tuned_encoder_needs_only_the_library(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "tuned"))
    saved = json.loads((folder / "tagger.json").read_text())
    saved["config"]["encoder"] = {"source": "encoder", "tuned": True}
    (folder / "tagger.json").write_text(json.dumps(saved))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "transformers" else None)
    assert find_tagger(str(folder)).digest == tagger_digest(folder)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"bilstm_crf needs the library transformers.*: pip install '\.\[encoder\]'"):
        find_tagger(str(folder))


def test_a_folder_whose_encoder_is_missing_is_refused(bundled: Path) -> None:
    with pytest.raises(ModelError, match=r"bilstm_crf needs the encoder no_such_encoder, which is not installed"):
        find_tagger(str(bundled / DEFAULT))


def test_the_bundled_encoder_needs_nothing(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "bundled"))
    saved = json.loads((folder / "tagger.json").read_text())
    read = {"source": "multilingual-e5-small"}
    saved["config"] |= {"encoder": read, "representation": {"form_vectors": {"encoder": read}}}
    (folder / "tagger.json").write_text(json.dumps(saved))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = find_tagger(str(folder))
    assert (found.digest, found.table_alone) == (tagger_digest(folder), False)
