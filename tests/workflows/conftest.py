"""Tiny taggers, a training file, and a new tracking store for each test that needs one."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.tiny_taggers import tiny_bundle, token_bundle, two_stage_config, write_corpus

from concord.workflows.registry import mlflow_client

# Named as exported, since a linter sees no use of fixtures.
__all__ = ["tiny_bundle", "token_bundle", "two_stage_config", "write_corpus"]

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
        mlflow_client.open_run(experiment="template", name="template", parameters={}, tags={}).close("FINISHED")
    return path


@pytest.fixture
def store(tmp_path: Path, store_template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into the folder of a new store, which is then the default one, and return the folder."""
    shutil.copy(store_template, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("CONCORD_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def train_file(tmp_path: Path) -> Path:
    """Return a training file for a tagger that trains in a second and learns nothing."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TRAIN_YAML)
    return path


@pytest.fixture(scope="session")
def mlflow_server(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run MLflow's server and return its address."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(store_template, folder / "mlflow.db")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "art")),
    ]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)
