"""Tiny taggers, a training that is done once, and a tracking store of its own for each test that needs one."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord, concord_json
from concord_testing.tiny_taggers import tiny_bundle, token_bundle, write_corpus

from concord.models.bundles.checkpoint import save_tagger
from concord.models.bundles.manifest import BUNDLE_NAME
from concord.models.evaluation.significance import Difference
from concord.models.taggers.base import Tagger
from concord.models.training.fit import STATE_NAME, EpochResult, FitConfig, FitResult
from concord.workflows import mlflow_client, progress
from concord.workflows.evaluation import Line

# Named as exported, since a linter sees no use of fixtures.
__all__ = ["tiny_bundle", "token_bundle", "write_corpus"]

EXAMPLES = CHECKOUT / "examples"

TRAIN_YAML = f"""\
tagger: bilstm_crf
data:
  train: [{EXAMPLES}/train/train.conllu]
  dev: {EXAMPLES}/train/dev.conllu
  test: {EXAMPLES}/train/dev.conllu
profiles:
  small:
    model:
      representation: {{word_dimension: 16, characters: null, dropout: 0.1}}
      lstm: {{hidden: 16, layers: 1}}
    fit:
      epochs: 2
      optimizers: {{tagger: {{learning_rate: 1e-2}}}}
register_as: tiny
"""


@pytest.fixture(scope="session")
def store_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty MLflow database, since copying one is faster than creating one, which takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
        with mlflow_client.open_run(experiment="template", name="template", parameters={}, tags={}):
            pass
    return path


@pytest.fixture
def store(tmp_path: Path, store_template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into the folder of a new store, which is then the default one, and return the folder."""
    shutil.copy(store_template, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("CONCORD_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(scope="session")
def tiny_registered(store_template: Path, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a store in which version 1 of ``tiny`` has the alias live; tests must not change it."""
    folder = tmp_path_factory.mktemp("registered")
    shutil.copy(store_template, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        concord_json("registry", "register", tiny_bundle, "--name", "tiny", "--alias", "live")
    return folder


@pytest.fixture
def registered_store(tiny_registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into a copy of the folder with the store in which ``tiny`` is registered, and return it."""
    return enter_copy(tiny_registered, tmp_path, monkeypatch)


class Trained(NamedTuple):
    """A training that was tracked: the folder of its store, what it answered, and its messages."""

    store: Path
    values: dict[str, Any]
    messages: str


@pytest.fixture(scope="session")
def trained(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train once and register models:/tiny/1, which has the alias live; tests must not change it."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copy(store_template, folder / "mlflow.db")
    (folder / "tiny.yaml").write_text(TRAIN_YAML)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setattr(progress, "LINE_SECONDS", 0.0)
        settings = ("--set", "fit.epochs=8", "--set", "fit.batch_sentences=4", "--set", "data.test=null")
        result = concord("train", "tiny.yaml", "--alias", "live", *settings, "--json")
    assert result.exit_code == 0, result.output
    return Trained(folder, json.loads(result.stdout), result.stderr)


@pytest.fixture
def trained_store(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into a copy of the folder with the store and the training, and return it."""
    return enter_copy(trained.store, tmp_path, monkeypatch)


def enter_copy(template: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into a copy of a local store with its artifacts, whose addresses are absolute in its database."""
    shutil.copytree(template, folder, dirs_exist_ok=True)
    columns = {"experiments": ["artifact_location"], "runs": ["artifact_uri"]}
    columns["model_versions"] = ["source", "storage_location"]
    with closing(sqlite3.connect(folder / "mlflow.db")) as database, database:
        for table, names in columns.items():
            for name in names:
                change = f"UPDATE {table} SET {name} = replace({name}, ?, ?)"
                database.execute(change, (template.as_uri(), folder.as_uri()))
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("CONCORD_CACHE", str(folder / "cache"))
    return folder


@pytest.fixture
def fake_fit(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let trainings end at once, untrained, with a dev score of 50; call the fixture for another score."""
    score = 50.0

    def fit(tagger: Tagger, train: object, dev: object, config: FitConfig, folder: Path, **options: Any) -> FitResult:
        state = folder / STATE_NAME
        done = int(state.read_text()) if options["resume"] and state.exists() else 0
        name = "f1" if tagger.vocabulary.scheme.has_entities else "accuracy"
        scores = {f"dev_{name}": score, f"draft_{name}": score}
        shown = {"dev_precision": score, "dev_recall": score} if name == "f1" else {}
        epochs = [
            EpochResult(
                epoch=number,
                loss=1.0,
                threshold=None,
                seconds=1.0,
                dev_seconds=0.0,
                learning_rates={},
                **scores,
                **shown,
            )
            for number in range(1, config.epochs + 1)
        ]
        save_tagger(tagger.eval(), folder / BUNDLE_NAME)
        for epoch in epochs[done:]:
            state.write_text(str(epoch.epoch))
            options["on_epoch"](epoch)
        return FitResult(best=epochs[-1], epochs=tuple(epochs), bundle=folder / BUNDLE_NAME)

    def choose(value: float) -> None:
        nonlocal score
        score = value

    monkeypatch.setattr("concord.workflows.training.train.fit", fit)
    return choose


@pytest.fixture
def line() -> Line:
    """Return the line of a comparison that finds its second tagger better."""
    measured = {"first": 80, "second": 81.2, "p": 0.003, "corrected": 0.003, "detectable": 0.9}
    difference = Difference(mean=1.2, low=0.4, high=2.0)
    return Line(kind="all", name="all", difference=difference, differing=50, verdict="better", **measured)


@pytest.fixture
def train_file(tmp_path: Path) -> Path:
    """Return a training file for a tagger that trains in a second and learns nothing."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TRAIN_YAML)
    return path
