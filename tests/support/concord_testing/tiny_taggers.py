"""Fixtures of tiny taggers and corpora, imported by the conftests that need them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from concord.models.bundles.checkpoint import save_tagger
from concord.models.bundles.registry import build_tagger
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import TOKENS
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.corpora.gold_corpus import read_gold
from concord_testing.checkout import CHECKOUT

EXAMPLES = CHECKOUT / "examples"
REPRESENTATION = {"word_dimension": 8, "characters": None}
TWO_STAGE: dict[str, Any] = {
    "draft_representation": REPRESENTATION,
    "refine_representation": REPRESENTATION,
    "lstm": {"hidden": 8},
    "samples": 4,
    "label_dimension": 6,
    "two_stream": {"heads": 2, "head_dimension": 8, "layers": 1},
}
"""The configuration of a small UANet or Doc-UANet."""


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small BiLSTM-CRF with random weights; tests must not change it."""
    sentences = [sentence for document in read_gold(EXAMPLES / "train/train.conllu") for sentence in document]
    torch.manual_seed(1)
    config = {"representation": REPRESENTATION, "lstm": {"hidden": 8, "layers": 1}}
    tagger = build_tagger("bilstm_crf", config, Vocabulary.from_sentences(sentences))
    folder = tmp_path_factory.mktemp("taggers") / "tiny"
    save_tagger(tagger.eval(), folder)
    return folder


@pytest.fixture(scope="session")
def token_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small part-of-speech BiLSTM-softmax with random weights; tests must not change it."""
    form = GoldFormat(label_column="upos", label_scheme="TOKENS")
    sentences = [sentence for document in read_gold(EXAMPLES / "train/train.conllu", form) for sentence in document]
    torch.manual_seed(1)
    config = {"scheme": "TOKENS", "representation": REPRESENTATION, "lstm": {"hidden": 8}}
    tagger = build_tagger("bilstm_softmax", config, Vocabulary.from_sentences(sentences, scheme=TOKENS))
    folder = tmp_path_factory.mktemp("taggers") / "tokens"
    save_tagger(tagger.eval(), folder)
    return folder


@pytest.fixture
def write_corpus(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a gold corpus in columns and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "gold.conll"
        path.write_text(text, encoding="utf-8")
        return path

    return write
