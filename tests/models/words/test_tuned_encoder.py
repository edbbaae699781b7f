"""An encoder trained with its tagger: what it learns from, how fast, and that a saved tagger needs nothing else."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from concord_testing.checkout import CHECKOUT
from torch import Tensor

from concord.models.checkpoint import (
    CONFIG_NAME,
    ENCODER_NAME,
    WEIGHTS_NAME,
    ModelLoadError,
    load_tagger,
    save_tagger,
    tagger_digest,
)
from concord.models.config import ConfigError
from concord.models.data.batch import Batch
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.registry import available, build_tagger
from concord.models.tagger import Tagger
from concord.models.training.fit import EpochResult, FitConfig, fit
from concord.models.training.optim import OptimizerConfig, build_optimizers, set_learning_rate
from concord.models.words import tuned_encoder
from concord.models.words.encoder import EncoderConfig, EncoderMissingError
from concord.models.words.frozen_encoder import FrozenEncoder
from concord.models.words.tuned_encoder import TunedEncoder
from concord.workflows.jobs import read_train_config

pytestmark = [pytest.mark.encoder, pytest.mark.slow]

CONF = CHECKOUT / "conf" / "train"
PROFILES = {
    path.stem: profiles["tuned"]
    for path in sorted(CONF.glob("*.yaml"))
    if "tuned" in (profiles := read_train_config(path).profiles)
}
REFINE_ALL = -1.0
COLUMNS = ("draft", "label", "probability", "margin", "uncertainty", "refined")
# The tiny encoder takes 14 subwords at once, so that the longer ones are read in windows.
SENTENCES = (
    ("ada", "laughed", "letters", "paris", "unheardof"),
    ("paris",),
    (),
    ("ada", "king", "met", "ford", "in", "paris", "river", ".") * 5,
    ("ada", "laugh" + "e" * 60, "\u200d"),
)
Documents = list[list[Sentence]]
Build = Callable[..., Tagger]


@pytest.fixture
def tuned(encoder_values: Mapping[str, Any]) -> dict[str, Any]:
    """Give the configuration values of the tiny encoder, to be tuned."""
    return {**encoder_values, "tuned": True}


@pytest.fixture
def encoder(tuned: Mapping[str, Any]) -> TunedEncoder:
    return TunedEncoder(EncoderConfig.from_mapping(tuned)).eval()


def encode(tagger: Tagger, documents: Documents) -> Batch:
    owners = [number for number, document in enumerate(documents) for _ in document]
    return tagger.encode([sentence for document in documents for sentence in document], documents=owners)


def train(tagger: Tagger, documents: Documents, *, steps: int = 3) -> None:
    optimizer = torch.optim.Adam(tagger.train().parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        tagger.loss(encode(tagger, documents)).backward()
        optimizer.step()
    tagger.eval()


def weights(tagger: Tagger) -> dict[str, Tensor]:
    assert tagger.tuned_encoder is not None
    return {name: value.detach().clone() for name, value in tagger.tuned_encoder.named_parameters()}


def test_untrained_it_gives_the_features_of_the_frozen_one(
    encoder: TunedEncoder, encoder_values: Mapping[str, Any]
) -> None:
    frozen = FrozenEncoder(EncoderConfig.from_mapping(encoder_values))
    found = encoder(SENTENCES, 41)
    assert found.shape == (5, 41, 16)
    assert found.requires_grad
    for row, expected in zip(found.detach(), frozen.features(SENTENCES), strict=True):
        assert torch.allclose(row[: len(expected)], expected, atol=1e-6)
        assert not row[len(expected) :].any()


def test_no_sentence_gives_no_feature(encoder: TunedEncoder) -> None:
    assert encoder([()], 0).shape == (1, 0, 16)
    assert encoder([], 0).shape == (0, 0, 16)


def test_sentences_of_a_batch_do_not_touch_each_other(encoder: TunedEncoder) -> None:
    together = encoder(SENTENCES, 40)
    for words, row in zip(SENTENCES, together, strict=True):
        assert torch.allclose(encoder([words], 40)[0], row, atol=1e-6)


def test_a_words_gradient_reaches_the_words_of_its_own_sentence_alone(encoder: TunedEncoder) -> None:
    encoder([("ada", "laughed"), ("paris",)], 2)[0, 0].sum().backward()
    table = encoder.network.get_input_embeddings().weight.grad
    vocabulary = dict(json.loads(encoder.files["tokenizer.json"])["model"]["vocab"])
    touched = {piece for piece, number in vocabulary.items() if bool(table[number].any())}
    assert touched == {"[CLS]", "ada", "laugh", "##ed", "[SEP]"}


def test_dropout_acts_in_training_alone(encoder: TunedEncoder) -> None:
    assert torch.equal(encoder(SENTENCES, 40), encoder(SENTENCES, 40))
    encoder.train()
    assert not torch.equal(encoder(SENTENCES, 40), encoder(SENTENCES, 40))


@pytest.mark.parametrize("name", available())
def test_every_tagger_tunes_every_layer_in_a_group_of_its_own(
    name: str, build: Build, documents: Documents, tuned: Mapping[str, Any]
) -> None:
    tagger = build(name, encoder=tuned)
    tagger.train().loss(encode(tagger, documents)).backward()
    assert tagger.tuned_encoder is not None
    reached = {
        part: parameter.grad is not None and bool(parameter.grad.any())
        for part, parameter in tagger.tuned_encoder.named_parameters()
    }
    # A key's bias shifts all scores of a query alike, which changes no attention.
    assert {part for part, found in reached.items() if not found and not part.endswith("key.bias")} == set()
    assert {part.split(".")[3] for part in reached if "encoder.layer" in part} == {"0", "1"}
    groups = tagger.parameter_groups()
    assert [id(weight) for weight in groups["encoder"]] == [id(weight) for weight in tagger.tuned_encoder.parameters()]
    grouped = [id(weight) for group in groups.values() for weight in group]
    assert sorted(grouped) == sorted(id(weight) for weight in tagger.parameters())


@pytest.mark.parametrize("name", available())
def test_every_tagger_answers_the_same_alone_and_in_a_batch(
    name: str, build: Build, tuned: Mapping[str, Any], random_documents: Callable[..., Documents]
) -> None:
    tagger = build(name, encoder=tuned)
    # Sentences of up to 30 words are read in windows.
    documents = random_documents(6, documents=3, longest=30)
    together = tagger.predict_documents(documents, threshold=REFINE_ALL)
    for document, expected in zip(documents, together, strict=True):
        (alone,) = tagger.predict_documents([document], threshold=REFINE_ALL)
        for left, right in zip(alone, expected, strict=True):
            assert left.probabilities == pytest.approx(right.probabilities, abs=1e-5)
            assert left.uncertainty == pytest.approx(right.uncertainty, abs=1e-5)


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_train_and_predict(
    name: str, tuned: Mapping[str, Any], vocabulary: Vocabulary, documents: Documents, tmp_path: Path
) -> None:
    model, values = PROFILES[name].model, PROFILES[name].fit
    config = model | {"encoder": model["encoder"] | {"source": tuned["source"], "sha256": None}}
    torch.manual_seed(1)
    tagger = build_tagger(name, config, vocabulary)
    result = fit(tagger, documents, documents, FitConfig.from_mapping(values), tmp_path)
    assert result.epochs[-1].loss < result.epochs[0].loss
    assert set(result.best.learning_rates) == set(tagger.parameter_groups())


@pytest.mark.parametrize("name", ["bilstm_crf", "doc_uanet"])
def test_prediction_works_under_inference_mode_and_training_goes_on(
    name: str, build: Build, documents: Documents, tuned: Mapping[str, Any]
) -> None:
    tagger = build(name, encoder=tuned)
    with torch.inference_mode():
        inside = tagger.tabulate(documents, threshold=REFINE_ALL)
    outside = tagger.tabulate(documents, threshold=REFINE_ALL)
    assert all(torch.equal(getattr(inside, column), getattr(outside, column)) for column in COLUMNS)
    before = weights(tagger)
    train(tagger, documents)
    after = weights(tagger)
    assert all(not torch.equal(after[part], before[part]) for part in before if "word_embeddings" in part)


def test_bf16_is_close_to_fp32(build: Build, documents: Documents, tuned: Mapping[str, Any]) -> None:
    tagger = build("bilstm_crf", encoder=tuned)
    exact, rough = tagger.tabulate(documents), tagger.tabulate(documents, precision="bf16")
    assert torch.allclose(exact.probability, rough.probability, atol=0.05)


@pytest.mark.parametrize("name", ["uanet", "doc_uanet"])
def test_stage_one_alone_tunes_the_encoder(
    name: str, build: Build, documents: Documents, tuned: Mapping[str, Any], record_calls: Callable[..., Any]
) -> None:
    from transformers import BertModel

    still = {"word_dimension": 4, "characters": None, "dropout": 0.0, "rare_to_unknown": 0.0}
    lstm = {"hidden": 8, "input_dropout": 0.0, "recurrent_dropout": 0.0, "output_dropout": 0.0}
    tagger: Any = build(name, encoder=tuned, draft_representation=still, refine_representation=still, lstm=lstm)
    batch = encode(tagger, documents)
    assert batch.labels is not None
    encoder = list(tagger.tuned_encoder.parameters())

    with record_calls(BertModel) as calls:
        both = torch.autograd.grad(tagger.loss(batch), encoder)
    assert len(calls) == 1
    logits, _ = tagger.draft_network(batch, tagger.encoder_features(batch))
    first = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="sum")
    own = torch.autograd.grad(first / len(batch.sentences), encoder)
    assert any(bool(gradient.any()) for gradient in own)
    assert all(torch.allclose(left, right, atol=1e-6) for left, right in zip(both, own, strict=True))

    groups = tagger.parameter_groups()
    assert sorted(groups) == ["encoder", "stage_one", "stage_two"]
    assert sum(map(len, groups.values())) == len({id(weight) for group in groups.values() for weight in group})
    with record_calls(BertModel) as calls:
        tagger.predict_documents(documents, threshold=REFINE_ALL)
    assert len(calls) == 1


def test_a_frozen_encoder_stays_frozen_and_outside_the_tagger(
    build: Build, documents: Documents, encoder_values: Mapping[str, Any]
) -> None:
    tagger = build("bilstm_crf", encoder=encoder_values)
    assert tagger.tuned_encoder is None
    assert set(tagger.parameter_groups()) == {"tagger"}
    batch = encode(tagger, documents)
    before = tagger.encoder_features(batch)
    assert before is not None
    assert not before.requires_grad
    train(tagger, documents)
    after = tagger.encoder_features(batch)
    assert after is not None
    assert torch.equal(before, after)


@pytest.mark.parametrize("name", ["bilstm_crf", "bilstm_softmax"])
def test_a_bare_head_on_the_encoder_learns(
    name: str, build: Build, documents: Documents, tuned: Mapping[str, Any]
) -> None:
    bare = {"word_dimension": 0, "characters": None, "dropout": 0.0}
    tagger = build(name, encoder=tuned, representation=bare, lstm=None)
    own = {part for part, _ in tagger.named_parameters() if not part.startswith("tuned_encoder")}
    assert {part for part in own if not part.startswith("crf")} == {"output.weight", "output.bias"}
    batch = encode(tagger, documents)
    before = float(tagger.loss(batch).detach())
    train(tagger, documents, steps=15)
    assert float(tagger.loss(batch).detach()) < 0.7 * before


def test_layers_are_counted_from_the_top(encoder: TunedEncoder) -> None:
    above = encoder.layers_above()
    assert set(above) == set(encoder.parameters())
    for name, parameter in encoder.named_parameters():
        assert above[parameter] == (1 if ".layer.0." in name else 0 if ".layer.1." in name else 2), name


def test_an_encoder_of_another_make_without_a_pooling_layer(tiny_encoder: Path, tmp_path: Path) -> None:
    from transformers import DistilBertConfig, DistilBertModel

    folder = tmp_path / "other"
    shutil.copytree(tiny_encoder, folder)
    size = len((folder / "vocab.txt").read_text().split())
    config = DistilBertConfig(vocab_size=size, dim=16, hidden_dim=24, n_heads=2, n_layers=3, max_position_embeddings=16)
    DistilBertModel(config).save_pretrained(folder)
    encoder = TunedEncoder(EncoderConfig(source=str(folder), sha256=None, tuned=True))
    assert sorted(set(encoder.layers_above().values())) == [0, 1, 2, 3]
    encoder(SENTENCES, 40).square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_each_layer_has_its_own_learning_rate_and_vectors_do_not_decay(build: Build, tuned: Mapping[str, Any]) -> None:
    tagger = build("bilstm_crf", encoder=tuned)
    assert tagger.tuned_encoder is not None
    configs = {
        "tagger": OptimizerConfig(learning_rate=0.3),
        "encoder": OptimizerConfig(kind="adamw", learning_rate=0.1, layer_decay=0.5, weight_decay=0.01),
    }
    optimizers = build_optimizers(tagger.parameter_groups(), configs, layers_above=tagger.tuned_encoder.layers_above())
    (plain,) = optimizers["tagger"].param_groups
    assert (plain["lr"], plain["weight_decay"]) == (0.3, 0.0)
    set_learning_rate(optimizers["encoder"], 0.1)
    found = {id(weight): group for group in optimizers["encoder"].param_groups for weight in group["params"]}
    for name, parameter in tagger.tuned_encoder.named_parameters():
        rate = 0.05 if ".layer.0." in name else 0.1 if ".layer.1." in name else 0.025
        assert found[id(parameter)]["lr"] == pytest.approx(rate), name
        spared = name.endswith("bias") or "LayerNorm" in name
        assert found[id(parameter)]["weight_decay"] == (0.0 if spared else 0.01), name


def test_training_needs_an_optimizer_for_the_encoder(
    build: Build, documents: Documents, tuned: Mapping[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"expected the groups \['encoder', 'tagger'\], got \['tagger'\]"):
        fit(build("bilstm_crf", encoder=tuned), documents, documents, FitConfig(), tmp_path)


class Killed(Exception):
    """Stands for a kill between two epochs."""


@pytest.mark.parametrize("name", ["bilstm_softmax", "doc_uanet"])
def test_a_resumed_training_ends_with_the_weights_of_an_undisturbed_one(
    name: str, build: Build, documents: Documents, tuned: Mapping[str, Any], tmp_path: Path
) -> None:
    def stop(result: EpochResult) -> None:
        if result.epoch == 1:
            raise Killed

    whole, broken, resumed = (build(name, encoder=tuned) for _ in range(3))
    heads = {"kind": "adamw", "learning_rate": 0.01, "weight_decay": 0.01}
    optimizers: dict[str, Any] = dict.fromkeys(whole.parameter_groups(), heads)
    optimizers["encoder"] = {**heads, "learning_rate": 0.001, "layer_decay": 0.8, "schedule": "linear"}
    config = FitConfig.from_mapping({"epochs": 3, "batch_sentences": 3, "optimizers": optimizers})
    before = weights(whole)
    expected = fit(whole, documents, documents, config, tmp_path / "whole")
    with pytest.raises(Killed):
        fit(broken, documents, documents, config, tmp_path / "broken", on_epoch=stop)
    found = fit(resumed, documents, documents, config, tmp_path / "broken")
    assert [epoch.loss for epoch in found.epochs] == [epoch.loss for epoch in expected.epochs]
    assert [epoch.learning_rates for epoch in found.epochs] == [epoch.learning_rates for epoch in expected.epochs]
    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key
    assert all(not torch.equal(value, before[part]) for part, value in weights(whole).items() if "word_emb" in part)


@pytest.mark.parametrize("name", ["bilstm_crf", "doc_uanet"])
def test_saved_equals_loaded_without_the_encoder_it_began_from(
    name: str, build: Build, documents: Documents, tuned: dict[str, Any], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(tuned["source"], source)
    tagger = build(name, encoder=tuned | {"source": str(source)})
    train(tagger, documents)
    shutil.rmtree(source)
    save_tagger(tagger, tmp_path / "bundle")
    bundle = (tmp_path / "bundle").rename(tmp_path / "moved")

    loaded = load_tagger(bundle)
    assert not any(module.training for module in loaded.modules())
    assert all(torch.equal(value, loaded.state_dict()[part]) for part, value in tagger.state_dict().items())
    first, second = (which.tabulate(documents, threshold=REFINE_ALL) for which in (tagger, loaded))
    assert all(torch.equal(getattr(first, column), getattr(second, column)) for column in COLUMNS)

    assert str(tmp_path) not in (bundle / CONFIG_NAME).read_text()
    names = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert names >= {CONFIG_NAME, WEIGHTS_NAME, "encoder/model.safetensors", "encoder/config.json"}
    assert all(name.endswith((".json", ".safetensors", ".txt")) for name in names)
    digest = tagger_digest(bundle)
    save_tagger(loaded, bundle)
    assert tagger_digest(bundle) == digest
    assert torch.equal(load_tagger(bundle).tabulate(documents, threshold=REFINE_ALL).label, first.label)


def test_half_precision_is_computed_with_in_fp32(
    build: Build, documents: Documents, tuned: Mapping[str, Any], tmp_path: Path
) -> None:
    tagger = build("bilstm_crf", encoder=tuned)
    save_tagger(tagger, tmp_path, half=True)
    loaded = load_tagger(tmp_path)
    for name, value in loaded.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, tagger.state_dict()[name].half().float())
    assert torch.allclose(loaded.tabulate(documents).probability, tagger.tabulate(documents).probability, atol=1e-2)


def test_the_digest_covers_every_file(build: Build, tuned: Mapping[str, Any], tmp_path: Path) -> None:
    save_tagger(build("bilstm_crf", encoder=tuned), tmp_path)
    digests = {tagger_digest(tmp_path)}
    files = sorted(path for path in (tmp_path / ENCODER_NAME).iterdir())
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        digests.add(tagger_digest(tmp_path))
        path.write_bytes(content)
    (tmp_path / ENCODER_NAME / "added_tokens.json").write_text("{}")
    digests.add(tagger_digest(tmp_path))
    assert len(digests) == len(files) + 2


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: (folder / "model.safetensors").write_bytes(b"{}"), "with sha256"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"encoder/model\.safetensors"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"encoder/tokenizer\.json"),
        (lambda folder: (folder / "config.json").unlink(), r"expected a Hugging Face model in .*encoder"),
        (lambda folder: (folder / "config.json").write_text("[1"), r"expected a Hugging Face model in .*encoder"),
        (shutil.rmtree, "encoder"),
    ],
    ids=["weights", "no weights", "no tokenizer", "no configuration", "configuration", "nothing"],
)
def test_a_broken_encoder_is_refused(
    build: Build, tuned: Mapping[str, Any], tmp_path: Path, harm: Callable[[Path], object], message: str
) -> None:
    save_tagger(build("bilstm_crf", encoder=tuned), tmp_path / "bundle")
    harm(tmp_path / "bundle" / ENCODER_NAME)
    with pytest.raises(ModelLoadError, match=rf"(?s)tagger\.json: .*{message}"):
        load_tagger(tmp_path / "bundle")


def test_a_folder_without_the_tokenizer_of_the_library_cannot_be_tuned(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_encoder, folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(EncoderMissingError, match=r"expected .*tokenizer\.json, got no such file"):
        TunedEncoder(EncoderConfig(source=str(folder), sha256=None, tuned=True))


def test_a_batch_of_long_documents_keeps_few_activations(
    encoder: TunedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = [SENTENCES[3]] * 200

    def measure() -> tuple[int, list[Tensor]]:
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            features = encoder.train()(sentences, 40)
            kept = sum(sizes.values())
        return kept, list(torch.autograd.grad(features.square().sum(), list(encoder.parameters())))

    few, recomputed = measure()
    monkeypatch.setattr(tuned_encoder, "_KEPT_SUBWORDS", 10**9)
    all_of_them, plain = measure()
    assert few < 0.5 * all_of_them
    assert all(torch.allclose(left, right, atol=1e-3) for left, right in zip(recomputed, plain, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_training_and_prediction_run_on_a_gpu(
    build: Build, documents: Documents, tuned: Mapping[str, Any], tmp_path: Path
) -> None:
    for name in ("bilstm_crf", "doc_uanet"):
        tagger = build(name, encoder=tuned)
        expected = tagger.tabulate(documents, threshold=REFINE_ALL)
        tagger.move_to("cuda")
        found = tagger.tabulate(documents, threshold=REFINE_ALL)
        assert torch.allclose(found.probability, expected.probability, atol=1e-4)
        train(tagger, documents)
        save_tagger(tagger, tmp_path / name)
        loaded = load_tagger(tmp_path / name, device="cuda")
        first, second = (which.tabulate(documents, threshold=REFINE_ALL) for which in (tagger, loaded))
        assert torch.equal(first.uncertainty, second.uncertainty)
