"""Versions of models: found by name, and on this machine with the bytes that were registered."""

from dataclasses import replace
from pathlib import Path

import pytest

from models.checkpoint import tagger_digest
from pipeline.errors import ModelError
from workflows import registry
from workflows.registry import DIGEST_TAG, ModelVersion, create_model, fetch, model_names, resolve, versions
from workflows.tracking import TrackingError, open_run


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


def test_a_name_is_made_once(store: Path) -> None:
    assert create_model("lock", tags={"owner": "me"})
    assert not create_model("lock")
    with pytest.raises(TrackingError, match="could not be made in the registry"):
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
def test_a_version_that_is_not_there_is_a_model_error(
    store: Path, tiny_bundle: Path, reference: str, message: str
) -> None:
    register(tiny_bundle)
    with pytest.raises(ModelError, match=message):
        resolve(reference)


def test_a_store_that_is_not_there_is_not_made_by_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ModelError, match="there is no registry at sqlite"):
        resolve("models:/tiny@champion")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_is_fetched_once_and_checked(store: Path, tiny_bundle: Path) -> None:
    version = register(tiny_bundle)
    folder = fetch(version)
    assert folder == store / "cache" / "bundles" / tagger_digest(tiny_bundle)
    assert (folder / "tagger.json").read_bytes() == (tiny_bundle / "tagger.json").read_bytes()
    (Path(version.source.removeprefix("file://")) / "tagger.json").unlink()
    assert fetch(version) == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_bundle_that_was_changed_is_refused(store: Path, tiny_bundle: Path) -> None:
    version = register(tiny_bundle)
    kept = Path(version.source.removeprefix("file://")) / "tagger.json"
    kept.write_bytes(kept.read_bytes() + b" ")
    with pytest.raises(ModelError, match="the files are not what was registered"):
        fetch(version)
    assert list((store / "cache" / "bundles").iterdir()) == []


def test_a_fetched_bundle_that_was_changed_is_refused(store: Path, tiny_bundle: Path) -> None:
    version = register(tiny_bundle)
    folder = fetch(version)
    (folder / "tagger.json").write_text("{}")
    with pytest.raises(ModelError, match="the files are not what was registered"):
        fetch(version)


def test_a_version_without_a_digest_is_fetched_each_time(store: Path, tiny_bundle: Path) -> None:
    version = register(tiny_bundle)
    unsigned = replace(version, digest=None)
    assert fetch(unsigned) == fetch(version)
