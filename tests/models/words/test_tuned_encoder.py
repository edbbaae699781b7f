"""The tuned encoder: the same features as the frozen one, with gradient."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from concord.models.errors import EncoderMissingError
from concord.models.words import encoder as encoder_module
from concord.models.words.encoder import FrozenEncoder, TunedEncoder
from concord.models.words.encoder_config import EncoderConfig

pytestmark = [pytest.mark.encoder, pytest.mark.slow]

# The tiny encoder takes 14 subwords, so that the longer sentences are read in windows.
SENTENCES = (
    ("ada", "laughed", "letters", "paris", "unheardof"),
    ("paris",),
    (),
    ("ada", "king", "met", "ford", "in", "paris", "river", ".") * 5,
    ("ada", "laugh" + "e" * 60, "\u200d"),
)


@pytest.fixture
def tuned(encoder_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration values of a tiny encoder that is tuned."""
    return {**encoder_values, "tuned": True}


@pytest.fixture
def encoder(tuned: Mapping[str, Any]) -> TunedEncoder:
    return TunedEncoder(EncoderConfig.from_mapping(tuned)).eval()


def test_untrained_features_equal_those_of_the_frozen_encoder(
    encoder: TunedEncoder, encoder_values: Mapping[str, Any]
) -> None:
    frozen = FrozenEncoder(EncoderConfig.from_mapping({**encoder_values, "precision": "float32"}))
    found = encoder(SENTENCES, 41)
    assert found.shape == (5, 41, 16)
    assert found.requires_grad
    for row, expected in zip(found.detach(), frozen.features(SENTENCES), strict=True):
        assert torch.allclose(row[: len(expected)], expected, atol=1e-6)
        assert not row[len(expected) :].any()


def test_no_sentences_yield_no_features(encoder: TunedEncoder) -> None:
    assert encoder([()], 0).shape == (1, 0, 16)
    assert encoder([], 0).shape == (0, 0, 16)


def test_gradient_of_a_word_reaches_only_its_own_sentence(encoder: TunedEncoder) -> None:
    encoder([("ada", "laughed"), ("paris",)], 2)[0, 0].sum().backward()
    table = encoder.network.get_input_embeddings().weight.grad
    vocabulary = dict(json.loads(encoder.files["tokenizer.json"])["model"]["vocab"])
    touched = {piece for piece, number in vocabulary.items() if bool(table[number].any())}
    assert touched == {"[CLS]", "ada", "laugh", "##ed", "[SEP]"}


def test_dropout_is_active_only_in_training(encoder: TunedEncoder) -> None:
    assert torch.equal(encoder(SENTENCES, 40), encoder(SENTENCES, 40))
    encoder.train()
    assert not torch.equal(encoder(SENTENCES, 40), encoder(SENTENCES, 40))


def test_layers_above_are_counted_from_the_top(encoder: TunedEncoder) -> None:
    above = encoder.layers_above()
    assert set(above) == set(encoder.parameters())
    for name, parameter in encoder.named_parameters():
        assert above[parameter] == (1 if ".layer.0." in name else 0 if ".layer.1." in name else 2), name


def test_encoder_without_a_pooling_layer_is_read(tiny_encoder: Path, tmp_path: Path) -> None:
    from transformers import DistilBertConfig, DistilBertModel

    folder = tmp_path / "other"
    shutil.copytree(tiny_encoder, folder)
    size = len((folder / "vocab.txt").read_text().split())
    config = DistilBertConfig(vocab_size=size, dim=16, hidden_dim=24, n_heads=2, n_layers=3, max_position_embeddings=16)
    DistilBertModel(config).save_pretrained(folder)
    encoder = TunedEncoder(EncoderConfig(source=str(folder), tuned=True))
    assert sorted(set(encoder.layers_above().values())) == [0, 1, 2, 3]
    encoder(SENTENCES, 40).square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_folder_without_tokenizer_json_cannot_be_tuned(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_encoder, folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(EncoderMissingError, match=r"expected .*tokenizer\.json, got no such file"):
        TunedEncoder(EncoderConfig(source=str(folder), tuned=True))


def test_batch_of_long_documents_keeps_few_activations(encoder: TunedEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = [SENTENCES[3]] * 200

    def measure() -> tuple[int, list[Tensor]]:
        sizes: dict[int, int] = {}

        def record(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            features = encoder.train()(sentences, 40)
            kept = sum(sizes.values())
        return kept, list(torch.autograd.grad(features.square().sum(), list(encoder.parameters())))

    few, recomputed = measure()
    monkeypatch.setattr(encoder_module, "KEPT_SUBWORDS", 10**9)
    everything, plain = measure()
    assert few < 0.5 * everything
    assert all(torch.allclose(left, right, atol=1e-3) for left, right in zip(recomputed, plain, strict=True))
