"""Encoders: where they are found, and their features: means over subwords and layers, windows, the cache."""

import hashlib
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from concord.models.bundles.registry import build_tagger
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import EncoderMissingError
from concord.models.words.encoder import FrozenEncoder, load_encoder, read_encoder
from concord.models.words.encoder_config import EncoderConfig, find_encoder

pytestmark = [pytest.mark.encoder, pytest.mark.slow]

WORDS = ("ada", "laughed", "letters", "paris", "unheardof")


@pytest.fixture(scope="module")
def config(encoder_values: Mapping[str, Any]) -> EncoderConfig:
    return EncoderConfig.from_mapping({**encoder_values, "precision": "int8"})


@pytest.fixture(scope="module")
def encoder(config: EncoderConfig) -> FrozenEncoder:
    return FrozenEncoder(config)


@pytest.fixture(scope="module")
def exact(config: EncoderConfig) -> FrozenEncoder:
    """Return the encoder in float32, as transformers computes it."""
    return FrozenEncoder(config.model_copy(update={"precision": "float32"}))


@torch.inference_mode()
def direct_features(folder: Path, words: tuple[str, ...], *, last_layers: int) -> Tensor:
    """Encode a short sentence directly: tokenize word by word and average."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    pieces = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word)) or [tokenizer.unk_token_id] for word in words]
    row = [tokenizer.cls_token_id, *(piece for word in pieces for piece in word), tokenizer.sep_token_id]
    states = network(torch.tensor([row]), output_hidden_states=True).hidden_states[-last_layers:]
    mean = sum(layer[0] for layer in states) / last_layers
    rows, place = [], 1
    for word in pieces:
        rows.append(mean[place : place + len(word)].mean(0))
        place += len(word)
    return torch.stack(rows)


@pytest.mark.parametrize("last_layers", [1, 2])
def test_word_is_the_mean_of_its_subwords_over_the_last_layers(
    config: EncoderConfig, tiny_encoder: Path, last_layers: int
) -> None:
    encoder = FrozenEncoder(config.model_copy(update={"last_layers": last_layers, "precision": "float32"}))
    (found,) = encoder.features([WORDS])
    assert encoder.width == 16
    assert found.dtype == torch.float32
    expected = direct_features(tiny_encoder, WORDS, last_layers=last_layers)
    assert float((found - expected).abs().max()) < 1e-5


def test_sentences_in_a_batch_are_independent(encoder: FrozenEncoder) -> None:
    together = encoder.features([WORDS, ("paris",), (), ("ada", "laughed")])
    assert [len(vectors) for vectors in together] == [5, 1, 0, 2]
    for words, vectors in zip([WORDS, ("paris",), (), ("ada", "laughed")], together, strict=True):
        assert torch.equal(encoder.features([words])[0], vectors)


def test_sentence_longer_than_the_capacity_is_read_in_windows(exact: FrozenEncoder, tiny_encoder: Path) -> None:
    """The encoder takes 14 subwords; windows share 3 words, so they start at words 0, 11, 22 and 33."""
    sentence = ("ada", "king", "met", "ford", "in", "paris", "river", ".") * 5
    (found,) = exact.features([sentence])
    assert found.shape == (40, 16)
    assert bool(found.isfinite().all())
    for first, last, kept in ((0, 14, range(12)), (11, 25, range(12, 23)), (22, 36, range(23, 34))):
        window = direct_features(tiny_encoder, sentence[first:last], last_layers=2)
        for word in kept:
            assert torch.allclose(found[word], window[word - first], atol=1e-5), word
    end = direct_features(tiny_encoder, sentence[33:], last_layers=2)
    assert torch.allclose(found[34:], end[1:], atol=1e-5)


def test_long_word_after_short_ones_is_read_in_a_window_of_its_own(config: EncoderConfig, tiny_encoder: Path) -> None:
    """As a web address is that fills most of a window; each pass has a single window here."""
    encoder = FrozenEncoder(config.model_copy(update={"precision": "float32"}), pass_subwords=1)
    short, long = ("ada", "paris", "met", "ada"), ("laugh" + "e" * 13,)
    (found,) = encoder.features([(*short, *long) * 2])
    parts = [direct_features(tiny_encoder, words, last_layers=2) for words in (short, long)]
    assert torch.allclose(found, torch.cat(parts * 2), atol=1e-5)


def test_word_without_subwords_is_the_unknown_subword(encoder: FrozenEncoder) -> None:
    joiner, unknown = encoder.features([("ada", "\u200d", "paris"), ("ada", "unheardof", "paris")])
    assert torch.allclose(joiner, unknown, atol=1e-6)


def test_equal_sentences_are_encoded_once(encoder: FrozenEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[tuple[str, ...]] = []
    encode = encoder._encode

    def record(sentences: list[tuple[str, ...]]) -> list[Tensor]:
        encoded.extend(sentences)
        return encode(sentences)

    monkeypatch.setattr(encoder, "_encode", record)
    first, other, second = encoder.features([WORDS, ("paris",), list(WORDS)])
    assert encoded == [WORDS, ("paris",)]
    assert torch.equal(first, second)
    assert other.shape == (1, 16)


def test_features_are_the_same_in_passes_of_any_size(encoder: FrozenEncoder, config: EncoderConfig) -> None:
    sentences = [WORDS, ("paris",), ("ada", "laughed"), ("river", "paris"), WORDS[:3], WORDS[2:] * 9]
    expected = encoder.features(sentences)
    for subwords in (1, 5, 12):
        features = FrozenEncoder(config, pass_subwords=subwords).features(sentences)
        for left, right in zip(features, expected, strict=True):
            assert torch.equal(left, right)


def test_an_encoder_that_only_transformers_can_read_has_the_same_features(
    exact: FrozenEncoder, config: EncoderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = [WORDS, ("paris",), (), ("ada", "laughed"), WORDS[2:] * 9]
    monkeypatch.setattr("concord.models.words.encoder.read_bert", lambda *arguments, **options: None)
    for left, right in zip(FrozenEncoder(config).features(sentences), exact.features(sentences), strict=True):
        assert torch.allclose(left, right, atol=1e-5)


def test_forgotten_subwords_are_read_again(config: EncoderConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = FrozenEncoder(config).features([WORDS, ("paris", "ada")])
    monkeypatch.setattr("concord.models.words.subwords._KNOWN_WORDS", 1)
    encoder = FrozenEncoder(config)
    for words, vectors in zip([WORDS, ("paris", "ada")], expected, strict=True):
        assert torch.equal(encoder.features([words])[0], vectors)


def test_features_in_int8_are_close_to_those_in_float32(encoder: FrozenEncoder, exact: FrozenEncoder) -> None:
    sentences = [WORDS, ("paris",), ("ada", "laughed"), WORDS[2:] * 9]
    for left, right in zip(encoder.features(sentences), exact.features(sentences), strict=True):
        assert not torch.equal(left, right)
        assert float(torch.cosine_similarity(left, right, dim=1).min()) > 0.999


def test_unusual_words_and_those_longer_than_the_capacity_get_a_vector(encoder: FrozenEncoder) -> None:
    words = ("ada", "laugh" + "e" * 60, "", " ", "\x00", "[SEP]", "\U0001f469\u200d\U0001f680", "e\u0301")
    (found,) = encoder.features([words])
    assert found.shape == (8, 16)
    assert bool(found.isfinite().all())


def test_cached_features_equal_computed_ones(config: EncoderConfig) -> None:
    encoder = FrozenEncoder(config)
    fresh = encoder.features([WORDS, ("paris",)])
    encoder.cache([WORDS, ("paris",), ("ada", "laughed"), (), WORDS])
    for left, right in zip(encoder.features([WORDS, ("paris",)]), fresh, strict=True):
        assert torch.equal(left, right)


def test_taggers_in_a_process_share_one_encoder(config: EncoderConfig) -> None:
    assert load_encoder(config, "cpu") is load_encoder(config.model_copy(), "cpu")


def test_weights_with_another_digest_are_rejected(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_encoder, folder)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    config = EncoderConfig(source=str(folder), sha256=hashlib.sha256(content).hexdigest())
    assert FrozenEncoder(config).width == 16
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(EncoderMissingError, match=r"expected .*model\.safetensors with sha256"):
        FrozenEncoder(config)


def test_features_are_padded_with_zeros(config: EncoderConfig) -> None:
    sentences = [Sentence(words=("ada", "laughed")), Sentence(words=("paris",))]
    vocabulary = Vocabulary.from_sentences([Sentence(words=("ada",), labels=("B-PER",))])
    tagger = build_tagger("bilstm_softmax", {"encoder": config.model_dump(mode="json")}, vocabulary)
    features = tagger.encoder_features(tagger.encode(sentences))
    first, second = load_encoder(config, "cpu").features([sentence.words for sentence in sentences])
    assert features is not None
    assert torch.equal(features[0], first)
    assert torch.equal(features[1, :1], second)
    assert not features[1, 1].any()


def test_missing_encoder_says_where_it_may_be() -> None:
    config = EncoderConfig(source="no_such_encoder")
    with pytest.raises(EncoderMissingError, match=r"expected multilingual-e5-small, a folder .*'no_such_encoder'"):
        find_encoder(config.source)


def test_missing_transformers_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = EncoderConfig(source=str(tmp_path))
    with pytest.raises(EncoderMissingError, match=r"transformers.*extra 'hf'"):
        read_encoder(config)


def test_folder_without_weights_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(EncoderMissingError, match=r"expected .*model\.safetensors"):
        find_encoder(str(tmp_path))


def test_package_is_found_without_running_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "encoder_in_a_package"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('this code must not run')\n")
    (package / "model" / "model.safetensors").write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_encoder(package.name) == package / "model"
    assert package.name not in sys.modules
