"""Which tagger a name means."""

import json
import shutil
from pathlib import Path

import pytest

from concord.models.checkpoint import tagger_digest
from concord.pipeline.errors import ModelError
from concord.workflows.registry import resolve_tagger as taggers
from concord.workflows.registry.mlflow_client import open_run
from concord.workflows.registry.model_versions import register
from concord.workflows.registry.resolve_tagger import DEFAULT, FALLBACK, embedded_names, find_tagger


@pytest.fixture
def embedded(tmp_path: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder of embedded taggers, in which the default reads an encoder that nobody has."""
    folder = tmp_path / "pretrained"
    for name in (DEFAULT, FALLBACK):
        shutil.copytree(tiny_bundle, folder / name)
    path = folder / DEFAULT / "tagger.json"
    saved = json.loads(path.read_text())
    saved["config"]["encoder"] = {"source": "no_such_encoder"}
    path.write_text(json.dumps(saved))
    monkeypatch.setattr(taggers, "EMBEDDED", folder)
    return folder


def test_a_folder_is_named_by_what_it_holds(tiny_bundle: Path, tmp_path: Path) -> None:
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
    with pytest.raises(ModelError, match="expected a mapping"):
        find_tagger(str(folder))


def test_a_version_of_the_registry_is_settled_once(store: Path, tiny_bundle: Path) -> None:
    run = open_run(experiment="test", name="run", parameters={}, tags={})
    register(tiny_bundle, name="tiny", run_id=run.run_id, alias="champion")
    found = find_tagger("models:/tiny@champion")
    assert (found.name, found.version, found.digest) == ("tiny", "1", tagger_digest(tiny_bundle))
    assert found.folder.is_relative_to(store / "cache")


@pytest.mark.usefixtures("embedded")
def test_the_small_tagger_stands_in_for_the_unnamed_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_tagger(DEFAULT, named=False).name == FALLBACK
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "no_such_encoder is not installed: entities_en_small stands in" in told
    with pytest.raises(ModelError, match=r"no_such_encoder, which is not installed: pip install"):
        find_tagger(DEFAULT)


def test_no_tagger_stands_in_where_there_is_none(embedded: Path) -> None:
    shutil.rmtree(embedded / FALLBACK)
    with pytest.raises(ModelError, match="no_such_encoder, which is not installed"):
        find_tagger(DEFAULT, named=False)


@pytest.mark.usefixtures("embedded")
def test_an_unknown_name_offers_the_nearest() -> None:
    assert embedded_names() == (DEFAULT, FALLBACK)
    with pytest.raises(ModelError, match="did you mean 'entities_en_small'"):
        find_tagger("entities_small")
    with pytest.raises(ModelError, match="embedded are entities_en, entities_en_small"):
        find_tagger("xyz")


def test_a_tuned_encoder_stands_with_its_tagger_and_needs_the_library_alone(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "tuned"))
    saved = json.loads((folder / "tagger.json").read_text())
    saved["config"]["encoder"] = {"source": "encoder", "tuned": True}
    (folder / "tagger.json").write_text(json.dumps(saved))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "transformers" else None)
    assert find_tagger(str(folder)).digest == tagger_digest(folder)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"bilstm_crf reads the library transformers.*: pip install '\.\[encoder\]'"):
        find_tagger(str(folder))


def test_a_folder_whose_encoder_is_missing_is_refused_before_anything_runs(embedded: Path) -> None:
    with pytest.raises(ModelError, match=r"bilstm_crf reads the encoder no_such_encoder, which is not installed"):
        find_tagger(str(embedded / DEFAULT))
