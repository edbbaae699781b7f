"""Taggers that tune their encoder: training, saving and loading."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from concord_testing.checkout import CHECKOUT
from safetensors.torch import load_file
from torch import Tensor

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.manifest import CONFIG_NAME, WEIGHTS_NAME, tagger_digest
from concord.models.bundles.registry import available, build_tagger
from concord.models.data.batch import Batch
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError, EncoderMissingError, ModelError
from concord.models.taggers.base import Tagger
from concord.models.training.fit import (
    EpochResult,
    FitConfig,
    OptimizerConfig,
    build_optimizers,
    fit,
)
from concord.models.words.encoder_config import DIFFERENCE_NAME, ENCODER_NAME
from concord.workflows.training.job import read_train_config

pytestmark = [pytest.mark.encoder, pytest.mark.slow]

CONF = CHECKOUT / "conf" / "train"
PROFILES = {
    path.stem: profiles["tuned"]
    for path in sorted(CONF.glob("*.yaml"))
    if "tuned" in (profiles := read_train_config(path).profiles)
}
REFINE_ALL = PredictOptions(threshold=-1.0)
COLUMNS = ("draft", "label", "probability", "margin", "uncertainty", "refined")
Documents = list[list[Sentence]]
Build = Callable[..., Tagger]


@pytest.fixture
def tuned(encoder_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration values of a tiny encoder that is tuned."""
    return {**encoder_values, "tuned": True}


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


@pytest.mark.parametrize("name", available())
def test_every_tagger_tunes_all_layers_as_a_separate_group_and_predicts_alone_as_in_a_batch(
    name: str, build: Build, documents: Documents, tuned: Mapping[str, Any], random_documents: Callable[..., Documents]
) -> None:
    tagger = build(name, encoder=tuned)
    tagger.train().loss(encode(tagger, documents)).backward()
    assert tagger.tuned_encoder is not None
    reached = {
        part: parameter.grad is not None and bool(parameter.grad.any())
        for part, parameter in tagger.tuned_encoder.named_parameters()
    }
    # The bias of a key shifts all scores of a query equally, which has no effect.
    assert {part for part, found in reached.items() if not found and not part.endswith("key.bias")} == set()
    assert {part.split(".")[3] for part in reached if "encoder.layer" in part} == {"0", "1"}
    groups = tagger.parameter_groups()
    assert [id(weight) for weight in groups["encoder"]] == [id(weight) for weight in tagger.tuned_encoder.parameters()]
    grouped = [id(weight) for group in groups.values() for weight in group]
    assert sorted(grouped) == sorted(id(weight) for weight in tagger.parameters())
    tagger.eval()
    # Sentences of up to 30 words are read in windows.
    documents = random_documents(6, documents=3, longest=30)
    together = tagger.predict_documents(documents, REFINE_ALL)
    for document, expected in zip(documents, together, strict=True):
        (alone,) = tagger.predict_documents([document], REFINE_ALL)
        for left, right in zip(alone, expected, strict=True):
            assert left.probabilities == pytest.approx(right.probabilities, abs=1e-5)
            assert left.uncertainty == pytest.approx(right.uncertainty, abs=1e-5)


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_train_and_predict(
    name: str, tuned: Mapping[str, Any], vocabulary: Vocabulary, documents: Documents, tmp_path: Path
) -> None:
    model, values = PROFILES[name].model, PROFILES[name].fit
    config = model | {"encoder": model["encoder"] | {"source": tuned["source"]}}
    torch.manual_seed(1)
    tagger = build_tagger(name, config, vocabulary)
    result = fit(tagger, documents, [documents], FitConfig.from_mapping(values), tmp_path)
    assert result.epochs[-1].loss < result.epochs[0].loss
    assert set(result.best.learning_rates) == set(tagger.parameter_groups())


@pytest.mark.parametrize("name", ["bilstm_crf", "doc_uanet"])
def test_training_continues_after_prediction_in_inference_mode(
    name: str, build: Build, documents: Documents, tuned: Mapping[str, Any]
) -> None:
    tagger = build(name, encoder=tuned)
    with torch.inference_mode():
        inside = tagger.tabulate(documents, REFINE_ALL)
    outside = tagger.tabulate(documents, REFINE_ALL)
    assert all(torch.equal(getattr(inside, column), getattr(outside, column)) for column in COLUMNS)
    before = weights(tagger)
    train(tagger, documents)
    after = weights(tagger)
    assert all(not torch.equal(after[part], before[part]) for part in before if "word_embeddings" in part)


def test_bf16_is_close_to_fp32(build: Build, documents: Documents, tuned: Mapping[str, Any]) -> None:
    tagger = build("bilstm_crf", encoder=tuned)
    exact, rough = tagger.tabulate(documents), tagger.tabulate(documents, PredictOptions(precision="bf16"))
    assert torch.allclose(exact.probability, rough.probability, atol=0.05)


@pytest.mark.parametrize("name", ["uanet", "doc_uanet"])
def test_only_stage_one_tunes_the_encoder(
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
        tagger.predict_documents(documents, REFINE_ALL)
    assert len(calls) == 1


def test_frozen_encoder_is_not_trained_and_not_part_of_the_tagger(
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
def test_linear_head_on_the_encoder_learns(
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


def test_layers_have_own_learning_rates_and_vectors_no_weight_decay(build: Build, tuned: Mapping[str, Any]) -> None:
    tagger = build("bilstm_crf", encoder=tuned)
    assert tagger.tuned_encoder is not None
    configs = {
        "tagger": OptimizerConfig(learning_rate=0.3),
        "encoder": OptimizerConfig(kind="adamw", learning_rate=0.1, layer_decay=0.5, weight_decay=0.01),
    }
    optimizers = build_optimizers(tagger.parameter_groups(), configs, layers_above=tagger.tuned_encoder.layers_above())
    (plain,) = optimizers["tagger"].param_groups
    assert (plain["lr"], plain["weight_decay"]) == (0.3, 0.0)
    found = {id(weight): group for group in optimizers["encoder"].param_groups for weight in group["params"]}
    for name, parameter in tagger.tuned_encoder.named_parameters():
        rate = 0.05 if ".layer.0." in name else 0.1 if ".layer.1." in name else 0.025
        assert 0.1 * found[id(parameter)]["layer_factor"] == pytest.approx(rate), name
        is_vector = name.endswith("bias") or "LayerNorm" in name
        assert found[id(parameter)]["weight_decay"] == (0.0 if is_vector else 0.01), name


class Killed(Exception):
    """Simulates a kill between two epochs."""


@pytest.mark.parametrize("name", ["bilstm_softmax", "doc_uanet"])
def test_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(
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
    expected = fit(whole, documents, [documents], config, tmp_path / "whole")
    with pytest.raises(Killed):
        fit(broken, documents, [documents], config, tmp_path / "broken", on_epoch=stop)
    found = fit(resumed, documents, [documents], config, tmp_path / "broken")
    assert [epoch.loss for epoch in found.epochs] == [epoch.loss for epoch in expected.epochs]
    assert [epoch.learning_rates for epoch in found.epochs] == [epoch.learning_rates for epoch in expected.epochs]
    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key
    assert all(not torch.equal(value, before[part]) for part, value in weights(whole).items() if "word_emb" in part)


@pytest.mark.parametrize("name", ["bilstm_crf", "doc_uanet"])
def test_saved_tagger_loads_without_the_original_encoder(
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
    first, second = (which.tabulate(documents, REFINE_ALL) for which in (tagger, loaded))
    assert all(torch.equal(getattr(first, column), getattr(second, column)) for column in COLUMNS)

    assert str(tmp_path) not in (bundle / CONFIG_NAME).read_text()
    names = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert names >= {CONFIG_NAME, WEIGHTS_NAME, "encoder/model.safetensors", "encoder/config.json"}
    assert all(name.endswith((".json", ".safetensors", ".txt")) for name in names)
    digest = tagger_digest(bundle)
    save_tagger(loaded, bundle)
    assert tagger_digest(bundle) == digest
    assert torch.equal(load_tagger(bundle).tabulate(documents, REFINE_ALL).label, first.label)


def test_half_precision_weights_are_computed_in_fp32(
    build: Build, documents: Documents, tuned: Mapping[str, Any], tmp_path: Path
) -> None:
    tagger = build("bilstm_crf", encoder=tuned)
    save_tagger(tagger, tmp_path, half=True)
    loaded = load_tagger(tmp_path)
    for name, value in loaded.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, tagger.state_dict()[name].half().float())
    assert torch.allclose(loaded.tabulate(documents).probability, tagger.tabulate(documents).probability, atol=1e-2)


def test_digest_covers_every_file(build: Build, tuned: Mapping[str, Any], tmp_path: Path) -> None:
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


def test_last_layers_alone_are_tuned_on_request(build: Build, documents: Documents, tuned: Mapping[str, Any]) -> None:
    tagger = build("bilstm_crf", encoder={**tuned, "tuned_layers": 1})
    before = weights(tagger)
    train(tagger, documents)
    changed = {name for name, value in weights(tagger).items() if not torch.equal(value, before[name])}
    assert changed
    assert all("encoder.layer.1." in name for name in changed)
    trained = {id(parameter) for parameter in tagger.parameter_groups()["encoder"]}
    assert tagger.tuned_encoder is not None
    assert trained == {id(weight) for name, weight in tagger.tuned_encoder.named_parameters() if ".1." in name}


def test_tuned_weights_are_read_frozen_and_their_difference_is_saved(
    build: Build, documents: Documents, tuned: Mapping[str, Any], encoder_values: Mapping[str, Any], tmp_path: Path
) -> None:
    teacher = build("bilstm_softmax", encoder={**tuned, "tuned_layers": 1})
    train(teacher, documents)
    save_tagger(teacher, tmp_path / "tuned")
    frozen = build("doc_uanet", encoder={**encoder_values, "weights": str(tmp_path / "tuned")})
    features = frozen.encoder_features(encode(frozen, documents))
    expected = teacher.encoder_features(encode(teacher, documents))
    plain = build("doc_uanet", encoder=encoder_values)
    assert features is not None
    assert expected is not None
    assert torch.allclose(features, expected, atol=0.02)  # rounded to fp16
    unlike = plain.encoder_features(encode(plain, documents))
    assert unlike is not None
    assert not torch.allclose(features, unlike, atol=0.02)
    save_tagger(frozen, tmp_path / "saved")
    stored = load_file(tmp_path / "saved" / ENCODER_NAME / DIFFERENCE_NAME)
    assert all("encoder.layer.1." in name and value.dtype == torch.float16 for name, value in stored.items())
    shutil.rmtree(tmp_path / "tuned")
    shutil.move(tmp_path / "saved", tmp_path / "moved")
    loaded = load_tagger(tmp_path / "moved")
    again = loaded.encoder_features(encode(loaded, documents))
    assert again is not None
    assert torch.equal(again, features)
    save_tagger(loaded, tmp_path / "again")
    assert tagger_digest(tmp_path / "again") == tagger_digest(tmp_path / "moved")


def test_weights_without_an_encoder_are_refused(
    build: Build, encoder_values: Mapping[str, Any], tmp_path: Path
) -> None:
    save_tagger(build("bilstm_crf"), tmp_path)
    with pytest.raises(EncoderMissingError, match=r"encoder\.weights: expected a saved tagger with an encoder"):
        build("bilstm_crf", encoder={**encoder_values, "weights": str(tmp_path)})
    with pytest.raises(ConfigError, match="expected tuned or weights, got both"):
        build("bilstm_crf", encoder={**encoder_values, "weights": str(tmp_path), "tuned": True})


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
def test_broken_encoder_is_rejected(
    build: Build, tuned: Mapping[str, Any], tmp_path: Path, harm: Callable[[Path], object], message: str
) -> None:
    save_tagger(build("bilstm_crf", encoder=tuned), tmp_path / "bundle")
    harm(tmp_path / "bundle" / ENCODER_NAME)
    with pytest.raises(ModelError, match=rf"(?s)tagger\.json: .*{message}"):
        load_tagger(tmp_path / "bundle")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_training_and_prediction_run_on_a_gpu(
    build: Build, documents: Documents, tuned: Mapping[str, Any], tmp_path: Path
) -> None:
    for name in ("bilstm_crf", "doc_uanet"):
        tagger = build(name, encoder=tuned)
        expected = tagger.tabulate(documents, REFINE_ALL)
        tagger.move_to("cuda")
        found = tagger.tabulate(documents, REFINE_ALL)
        assert torch.allclose(found.probability, expected.probability, atol=1e-4)
        train(tagger, documents)
        save_tagger(tagger, tmp_path / name)
        loaded = load_tagger(tmp_path / name, device="cuda")
        first, second = (which.tabulate(documents, REFINE_ALL) for which in (tagger, loaded))
        assert torch.equal(first.uncertainty, second.uncertainty)
