"""Tiny taggers, a training file, and a new tracking store for each test that needs one."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from concord_testing.checkout import CHECKOUT

from concord.models.checkpoint import save_tagger
from concord.models.data.vocabulary import Vocabulary
from concord.models.registry import build_tagger
from concord.models.schemes import TOKENS
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.corpora.read_corpus import read_gold
from concord.workflows.registry import mlflow_client

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
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small BiLSTM-CRF with random weights; tests must not change it."""
    sentences = [sentence for document in read_gold(EXAMPLES / "train/train.conllu") for sentence in document]
    torch.manual_seed(1)
    config = {"representation": {"word_dimension": 8, "characters": None}, "lstm": {"hidden": 8, "layers": 1}}
    tagger = build_tagger("bilstm_crf", config, Vocabulary.from_sentences(sentences))
    folder = tmp_path_factory.mktemp("taggers") / "tiny"
    save_tagger(tagger.eval(), folder)
    return folder


@pytest.fixture(scope="session")
def two_stage_config() -> dict[str, Any]:
    """Return the configuration of a small UANet or Doc-UANet."""
    representation = {"word_dimension": 8, "characters": None}
    return {
        "draft_representation": representation,
        "refine_representation": representation,
        "lstm": {"hidden": 8},
        "samples": 4,
        "label_dimension": 6,
        "two_stream": {"heads": 2, "head_dimension": 8, "layers": 1},
    }


@pytest.fixture(scope="session")
def token_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small part-of-speech BiLSTM-softmax with random weights; tests must not change it."""
    form = GoldFormat(label_column="upos", label_scheme="TOKENS")
    sentences = [sentence for document in read_gold(EXAMPLES / "train/train.conllu", form) for sentence in document]
    torch.manual_seed(1)
    config = {"scheme": "TOKENS", "representation": {"word_dimension": 8, "characters": None}, "lstm": {"hidden": 8}}
    tagger = build_tagger("bilstm_softmax", config, Vocabulary.from_sentences(sentences, scheme=TOKENS))
    folder = tmp_path_factory.mktemp("taggers") / "tokens"
    save_tagger(tagger.eval(), folder)
    return folder


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


@pytest.fixture
def write_corpus(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a gold corpus in columns and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "gold.conll"
        path.write_text(text, encoding="utf-8")
        return path

    return write


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
