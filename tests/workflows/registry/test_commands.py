"""``concord registry``."""

import json
from pathlib import Path

import pytest
from concord_testing.command_line import concord

from concord.models.bundles.manifest import tagger_digest
from concord.workflows.registry.model_versions import resolve

pytestmark = pytest.mark.slow


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


def test_an_empty_registry_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    listed = concord("registry", "list")
    assert (listed.exit_code, "No model is registered at sqlite:" in listed.stdout) == (0, True)
    shown = concord("registry", "show", "tiny")
    assert (shown.exit_code, "there is no registry" in shown.stderr) == (2, True)


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
